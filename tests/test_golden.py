"""The losses of ten steps against stored ones: a refactor changes nothing.

`python tests/test_golden.py --write` stores them anew, when mathematics or a default was changed on purpose.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from onepass.data import source
from onepass.distill import EQUATION_3
from onepass.loop import prepare
from onepass.nets import ResNet18
from onepass.recipes import recipe

FILE = Path(__file__).with_suffix("").with_name("golden.json")
COMMAND = "python tests/test_golden.py --write"
STEPS = 10

ROWS = {  # name: recipe
    "er": "er",
    "er+mkd, Algorithm 1": "er+mkd",
    "er+mkd, Equation 3": "er+mkd",
    "er+sdp": "er+sdp",
    "derpp": "derpp",
    "derpp+mkd": "derpp+mkd",
    "er-ace": "er-ace",
    "er-ace+mkd": "er-ace+mkd",
    "dvc": "dvc",
    "dvc+mkd": "dvc+mkd",
    "ocm": "ocm",
    "ocm+mkd": "ocm+mkd",
    "gsa": "gsa",
    "gsa+mkd": "gsa+mkd",
    "gsa+sdp": "gsa+sdp",
    "pcr": "pcr",
    "pcr+mkd": "pcr+mkd",
}
FIELDS: dict[str, dict[str, Any]] = {  # what a row has of its own, as "field" or "part.field"
    "er+mkd, Equation 3": {"distill.pairs": EQUATION_3},
    "dvc": {"method.candidates": 40},  # more than are replayed, and fewer than the memory has in the end: they are scored
    "dvc+mkd": {"method.candidates": 40},
    **{name: {"method.patience": 2} for name in ("gsa", "gsa+mkd", "gsa+sdp")},  # of the four batches of a task
    "ocm": {"replay_size": 10},  # 16 x 2 x (10 + 10) images
    "ocm+mkd": {"replay_size": 10},
}


@cache
def losses(name: str) -> list[float]:
    """Those of the first ten updates on the digits, whose first tasks, with two boundaries, are met within them."""
    config = recipe(ROWS[name], source("digits"), memory=50)
    config = replace(config, precision="fp64", net=ResNet18(width=4), batch_size=10, replay_size=30, per_class=20)
    for path, value in FIELDS.get(name, {}).items():
        part, _, key = path.partition(".")
        config = replace(config, **{part: replace(getattr(config, part), **{key: value}) if key else value})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    stream, _, _ = prepare(config)
    learner = config.learner(stream.spec, sharp=stream.sharp)
    found: list[float] = []
    for batch in stream.batches(config.batch_size):
        loss = learner.observe(batch).get("loss")
        if loss is not None:
            assert loss.dtype == torch.float64
            found.append(loss.item())
        if len(found) == STEPS:
            break
    torch.set_num_threads(threads)
    assert learner.task >= 2
    return found


def write() -> None:
    stored = {name: [f"{loss:.12g}" for loss in losses(name)] for name in ROWS}
    tree = {"written by": COMMAND, "torch": torch.__version__, "losses": stored}
    FILE.write_text(json.dumps(tree, indent=1) + "\n")


def stored() -> dict[str, list[float]]:
    return {name: [float(loss) for loss in row] for name, row in json.loads(FILE.read_text())["losses"].items()}


def test_the_file_holds_the_rows_there_are() -> None:
    assert list(stored()) == list(ROWS), f"`{COMMAND}` writes them"


@pytest.mark.parametrize("name", ROWS)
def test_the_losses_of_ten_steps_are_the_stored_ones(name: str) -> None:
    assert len(stored()[name]) == STEPS
    assert losses(name) == pytest.approx(stored()[name], rel=1e-6, abs=0.0), f"if that is meant, `{COMMAND}`"


def test_no_two_rows_are_the_same() -> None:
    assert len({tuple(row) for row in stored().values()}) == len(ROWS)


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(f"Usage: {COMMAND}")
    write()
