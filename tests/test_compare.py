"""Two runs beside each other: what differs, and never more than so many seeds can tell."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onepass.cli import main
from onepass.compare import compare
from onepass.config import Config
from onepass.data import source
from onepass.errors import Refused
from onepass.loop import run
from onepass.nets import ResNet18
from onepass.paper.agreement import paired
from onepass.recipes import recipe
from onepass.record import Record, records


def small(word: str = "er", seed: int = 0, **changes: Any) -> Config:
    config = recipe(word, source("digits"), memory=9, seed=seed)
    return replace(config, net=ResNet18(width=2), per_class=4, precision="fp32", batch_size=5, replay_size=5, **changes)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ER at seeds 0, 1 and 2, ER+MKD at 0, 1 and 3; ER with another memory at seed 0."""
    folder = tmp_path_factory.mktemp("compare") / "runs"
    for word, seeds in ("er", (0, 1, 2)), ("er+mkd", (0, 1, 3)):
        for seed in seeds:
            run(small(word, seed), folder)
    run(replace(small(), memory=5), folder)
    return folder


def one(root: Path, word: str, seed: int) -> Path:
    return next((root / "digits-clear" / word / "m9").glob(f"s{seed}-*"))


def part(text: str, name: str) -> dict[str, list[str]]:
    """The rows of one of its tables, by their first cell."""
    table = next(block for block in text.split("\n\n") if block.startswith(name))
    rows = [re.split(r" {2,}", line) for line in table.splitlines()]
    return {row[0]: row[1:] for row in [rows[0], *rows[2:]]}


def accuracy(root: Path, word: str) -> dict[int, float]:
    return {r.seed: 100 * r.summary["accuracy"] for r in records(root / "digits-clear" / word / "m9")}


def test_two_runs(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = one(root, "er", 0), one(root, "er+mkd", 0)
    assert main(["compare", str(a), str(b)]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"A  {a}\nB  {b}\n\n")
    config = part(text, "config")
    assert config["teacher"] == ["none", "EMA"] and config["name"] == ["er", "er+mkd"]
    assert not {"seed", "data", "optim", "precision", "probes"} & config.keys()  # which are the same
    assert "environment: the same" in text
    rows, (x, y) = part(text, "results"), (accuracy(root, word)[0] for word in ("er", "er+mkd"))
    assert rows["results"] == ["A", "B", "B - A"]
    assert rows["accuracy"] == [f"{x:.1f}", f"{y:.1f}", f"{y - x:+.1f}"]
    last = [Record(path).results.matrix()[-1] for path in (a, b)]
    for task in range(5):
        assert rows[f"task {task + 1}, at the end"][:2] == [f"{100 * row[task]:.1f}" for row in last]
    assert {"anytime", "backward transfer", "forgetting", "recency", "images/s", "seconds", "peak MiB"} <= rows.keys()
    assert "interval" not in text and "One run each" in text


def test_seeds_are_paired_and_the_interval_is_that_of_the_pairs(root: Path) -> None:
    folder = root / "digits-clear"
    shown = compare(folder / "er" / "m9", folder / "er+mkd")
    assert shown.seeds == (0, 1)
    text = shown.text()
    assert "seed 2 of A, seed 3 of B" in text and "2 pairs by seed" in text
    rows, interval = part(text, "results"), paired(accuracy(root, "er+mkd"), accuracy(root, "er"))
    assert interval is not None and interval.n == 2
    x, y = ([accuracy(root, word)[seed] for seed in (0, 1)] for word in ("er", "er+mkd"))
    assert rows["accuracy"] == [
        *(f"{v:.1f}" for v in (np.mean(x), np.std(x, ddof=1), np.mean(y), np.std(y, ddof=1))),
        f"{interval.mean:+.1f}",
        f"{interval.low:+.1f} to {interval.high:+.1f}",
    ]


def test_the_same_run_twice_differs_in_nothing(root: Path) -> None:
    a = one(root, "er", 1)
    text = compare(a, a).text()
    assert "config: the same" in text and "environment: the same" in text
    assert {row[-1] for name, row in part(text, "results").items() if name != "results"} <= {"+0.0", "+0"}


def test_another_seed_is_not_paired(root: Path) -> None:
    text = compare(one(root, "er", 0), one(root, "er+mkd", 3)).text()
    assert "They share no seed" in text and "interval" not in text
    shown = compare(root / "digits-clear" / "er" / "m9", one(root, "er+mkd", 3))  # three and one
    assert shown.seeds == () and len(shown.a.runs) == 3 and "One run each" not in shown.text()


def test_another_memory_is_the_same_stream(root: Path) -> None:
    shown = compare(one(root, "er", 0), root / "digits-clear" / "er" / "m5")
    assert shown.seeds == (0,) and part(shown.text(), "config") == {"config": ["A", "B"], "memory": ["9", "5"]}


def changed(root: Path, tmp_path: Path, file: str, **values: Any) -> Path:
    """A copy of a run, in whose file something else stands."""
    copy = Path(shutil.copytree(one(root, "er", 0), tmp_path / "runs" / "copy"))
    told = json.loads((copy / file).read_text())
    (copy / file).write_text(json.dumps(told | values))
    return copy


def test_other_data_is_not_paired(root: Path, tmp_path: Path) -> None:
    shown = compare(one(root, "er", 0), changed(root, tmp_path, "stream.json", data="other"))
    assert shown.seeds == () and "not on the same stream: the data's files differ" in shown.text()


def test_another_environment_is_shown_and_warned_of(root: Path, tmp_path: Path) -> None:
    text = compare(one(root, "er", 0), changed(root, tmp_path, "env.json", commit="abc", threads=99)).text()
    assert (
        set(part(text, "environment")) == {"environment", "commit", "threads"} and part(text, "environment")["commit"][1] == "abc"
    )
    assert "Seconds and images/s say nothing of the methods here" in text


def test_what_cannot_be_compared_is_refused(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = one(root, "er", 0)
    with pytest.raises(Refused, match=r"holds runs of 2 configs \(er, er\+mkd\)|holds runs of 3 configs"):
        compare(a, root)
    unfinished = changed(root, tmp_path, "env.json")
    (unfinished / "done.json").unlink()
    for folder, why in ((unfinished, "1 left out: not finished"), (tmp_path / "nowhere", "There is no folder")):
        assert main(["compare", str(a), str(folder)]) == 2
        out, err = capsys.readouterr()
        assert not out and why in err and err.startswith("onepass: ") and err.count("\n") == 1
