"""Held-out protocols: what is tested on comes from the training images, and the test images have no say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from onepass.cli import main
from onepass.config import Config
from onepass.data import Dataset, source
from onepass.data.digits import Digits
from onepass.errors import Refused
from onepass.held_out import FirstTasks, HeldOut, LastTenth
from onepass.loop import prepare, run
from onepass.nets import ResNet18
from onepass.recipes import recipe
from onepass.record import records
from onepass.stream import Batch

NAMES = ("a", "b", "c")


def rows(counts: tuple[int, ...]) -> Batch:
    """So many images of each class, in no order; the pixel tells which row it is."""
    y = torch.from_numpy(np.random.RandomState(1).permutation(np.repeat(np.arange(len(counts)), counts)))
    return Batch(torch.arange(len(y), dtype=torch.uint8).view(-1, 1, 1, 1), y)


def small(held: HeldOut | None, per_class: int = 12) -> Config:
    config = recipe("er", source("digits"), memory=10)
    return replace(config, net=ResNet18(width=2), per_class=per_class, held_out=held, precision="fp32")


def test_the_last_tenth_of_each_class_is_held_out() -> None:
    there = rows((30, 7, 59))
    train, held = LastTenth().split(there, NAMES)
    for c, n in enumerate((30, 7, 59)):
        all_of_it = [i for i in range(len(there)) if there.y[i] == c]  # the slow way
        last = max(1, n // 10)
        assert held.x[held.y == c].flatten().tolist() == all_of_it[n - last :]
        assert train.x[train.y == c].flatten().tolist() == all_of_it[: n - last]
    for part in train, held:
        places = part.x.flatten().tolist()
        assert places == sorted(places) and part.y.tolist() == there.y[places].tolist()


def test_the_first_tasks_end_the_stream_and_are_tested_on_what_it_never_shows() -> None:
    whole, test, fingerprint = prepare(small(LastTenth()))
    stream, same, _ = prepare(small(FirstTasks(2)))
    assert len(stream) == whole.task_ends[1] == 2 * 2 * 11 and stream.task_ends == whole.task_ends[:2]
    assert torch.equal(stream.order, whole.order[: len(stream)]) and torch.equal(same.x, test.x)
    assert fingerprint == prepare(small(None))[2]
    shown = {bytes(x.numpy().tobytes()) for b in whole.batches(50) for x in b.x}
    assert len(test) == 10 and not shown & {bytes(x.numpy().tobytes()) for x in test.x}


@pytest.mark.parametrize("held", [LastTenth(), FirstTasks(2)])
def test_the_test_images_have_no_influence(held: HeldOut, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits and numbers when the test images are others under other labels, and when there are none at all."""
    mine = run(small(held, 11), tmp_path / "there")
    real = Digits().load()
    others = Batch(255 - real.test.x[:50], (real.test.y[:50] + 1) % 10)
    for name, test in ("other", others), ("none", None):
        data = Dataset(real.train, test, real.names, real.fingerprint)  # type: ignore[arg-type]
        monkeypatch.setattr(Digits, "load", lambda self, folder=None, data=data: data)
        other = run(small(held, 11), tmp_path / name)
        assert (mine.path / "log.jsonl").read_bytes() == (other.path / "log.jsonl").read_bytes()
        weights, again = (load_file(r.path / "model.safetensors") for r in (mine, other))
        assert all(torch.equal(weights[k], again[k]) for k in weights)
        assert mine.results.arrays.keys() == other.results.arrays.keys()
        assert all(np.array_equal(v, other.results.arrays[k]) for k, v in mine.results.arrays.items())
        assert mine.done is not None and other.done is not None and mine.done["summary"] == other.done["summary"]


def test_it_is_another_run_in_another_folder_and_without_it_nothing_changes() -> None:
    tested, held = small(None), small(LastTenth())
    assert tested.folder.parts[0] == "digits-clear" and held.folder.parts[0] == "digits-clear-held-out"
    assert len({tested.identity, held.identity, small(FirstTasks(2)).identity, small(FirstTasks(3)).identity}) == 4
    assert Config.from_json(held.to_json()) == held
    old = {k: v for k, v in tested.to_json().items() if k != "held_out"}  # as it was written down before there was one
    assert Config.from_json(old).identity == tested.identity


def test_a_flag_asks_for_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "er", "--net.width", "2", "--per-class", "4", "--held-out", "FirstTasks", "--held-out.tasks", "1"]
    assert main([*words, "--runs", str(tmp_path / "runs")]) == 0
    (record,) = records(tmp_path / "runs")
    assert record.config["config"]["held_out"] == {"is": "FirstTasks", "tasks": 1}
    assert len(record.results.arrays["y"]) == 10 and record.results.stream["length"] == 6


@pytest.mark.parametrize(
    ("held", "per_class", "said"),
    [
        (LastTenth(), 1, "Class `0` has one training image"),
        (FirstTasks(6), 3, "`held_out.tasks=6` is more than the stream's 5 tasks"),
    ],
)
def test_what_makes_no_sense_is_refused(held: HeldOut, per_class: int, said: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=said):
        run(small(held, per_class), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("words", "said"), [(("FirstTasks", "--held-out.tasks", "0"), "at least 1"), (("tenth",), "LastTenth")])
def test_so_is_a_protocol_that_does_not_exist(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "er", "--held-out", *words]) == 2
    assert said in capsys.readouterr().err
