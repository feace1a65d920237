"""What there is here, and how long an update takes: of the update that a run makes, with a full memory, in a later task."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from onepass import doctor
from onepass.cli import main
from onepass.config import Config
from onepass.data import source
from onepass.doctor import examine, midway, seconds_per_update
from onepass.errors import Refused
from onepass.learner import Learner
from onepass.methods import METHODS
from onepass.nets import ResNet18
from onepass.recipes import recipe


def small(word: str = "er+mkd", data: str = "digits", **more: Any) -> Config:
    return replace(recipe(word, source(data), memory=300), **{"net": ResNet18(width=4), "precision": "fp32"} | more)


@pytest.mark.parametrize("word", [*METHODS, "derpp+mkd", "ocm+mkd", "er+sdp", "er+snapshot"])
def test_what_is_timed_is_a_later_task_with_a_full_memory(word: str) -> None:
    config = small(word, replay_size=8)
    learner, batches = midway(config)
    assert learner.memory.count == len(learner.memory) == 300 and len(learner.memory.y.unique()) == 8
    first = next(batches)
    assert len(first) == config.batch_size and set(first.y.tolist()) <= {8, 9}
    loss = learner.observe(first)["loss"]
    assert loss.isfinite() and learner.task == 1 and learner.seen.sum() > 8
    if "teacher" in learner.followers:
        assert learner.followers["teacher"].ready


@pytest.mark.parametrize("setting", ["blurry", "imbalanced", "blend"])
def test_any_stream_can_be_timed(setting: Any) -> None:
    config = replace(recipe("ocm", source("digits"), stream=setting), net=ResNet18(width=4), replay_size=4)
    learner, batches = midway(config)
    learner.observe(next(batches))
    assert learner.task == 1


def test_it_is_the_median_of_single_updates_after_a_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = iter([0.5, 0.01, 0.2, 0.01, 0.01, 0.01, *[0.01] * 100])
    monkeypatch.setattr(Learner, "observe", lambda self, batch: time.sleep(next(pauses)))
    began = time.monotonic()
    assert 0.01 <= seconds_per_update(small(), budget=0.9) < 0.1
    assert time.monotonic() - began < 3
    pauses = iter([0.0, 0.04, 0.04, 0.04])
    assert 0.01 <= seconds_per_update(small(updates=4), budget=0.0) < 0.04
    assert next(pauses) == 0.04  # two were timed, since the budget had room for none


def test_it_grows_with_the_work() -> None:
    little, much = (seconds_per_update(small(replay_size=n), budget=0.2) for n in (5, 300))
    assert much > little > 0


def test_measuring_moves_no_global_generator() -> None:
    ours, theirs = torch.get_rng_state(), np.random.get_state()[1].copy()
    seconds_per_update(small(), budget=0.0)
    assert torch.equal(torch.get_rng_state(), ours) and np.array_equal(np.random.get_state()[1], theirs)


def test_data_of_ones_own_is_looked_at_for_its_size(tmp_path: Path) -> None:
    x = np.zeros((40, 9, 9, 3), np.uint8)
    y = np.arange(40) % 4
    np.savez(tmp_path / "mine.npz", x=x, y=y, x_test=x, y_test=y)
    config = small("er", f"npz:{tmp_path / 'mine.npz'}", memory=5)
    learner, batches = midway(config)
    assert next(batches).x.shape[1:] == (3, 9, 9) and learner.spec.classes == 4
    assert learner.memory.count == 5


def test_known_sizes_are_those_of_the_data() -> None:
    data = source("digits").load()
    assert doctor.IMAGES["digits"] == (len(data.names), tuple(data.train.x.shape[1:]))
    assert doctor.IMAGES.keys() == {"digits", *doctor.ARCHIVES, "imagenet100"}


# ---- for a person


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Runs of a narrow network, and an empty place for data."""
    monkeypatch.setattr(doctor, "recipe", lambda word, data, **more: replace(recipe(word, data, **more), net=ResNet18(width=2)))
    monkeypatch.setenv("ONEPASS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_it_says_what_there_is(quick: Path) -> None:
    (quick / "data" / "cifar-100-python").mkdir(parents=True)
    (quick / "data" / "imagenet" / "train").mkdir(parents=True)
    (quick / "data" / "imagenet" / "val").mkdir(parents=True)
    (quick / "cache" / "onepass" / "decoded" / "x").mkdir(parents=True)
    (quick / "cache" / "onepass" / "decoded" / "x" / "train.u8").write_bytes(bytes(30_000_000))
    said = "\n".join(examine("cpu", budget=0.1))
    for part in (
        torch.__version__, "devices     cpu (", "`auto` is", "cores to use", "GiB", f"free for data, in {quick / 'data'}",
        "digits         comes with", f"cifar100       {quick / 'data' / 'cifar-100-python'}",
        "cifar10        not here; `onepass data get cifar10`", f"imagenet100    {quick / 'data' / 'imagenet'}",
        "decoded        0.03 GB",
    ):  # fmt: skip
        assert part in said, said
    for word in "er ", "er+mkd ":
        line = next(line for line in said.splitlines() if line.strip().startswith(word))
        assert " ms an update" in line
    assert f"with {torch.get_num_threads()} threads" in said


def test_a_folder_given_comes_first(quick: Path) -> None:
    (quick / "mine" / "cifar-10-batches-py").mkdir(parents=True)
    assert dict(doctor.data(quick / "mine"))["cifar10"] == str(quick / "mine" / "cifar-10-batches-py")


@pytest.mark.parametrize("native", [True, False])
def test_the_reason_for_the_precision_is_that_of_the_precision(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: native)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert doctor.why("cpu").startswith("this processor multiplies" if native else "this processor does not multiply")


def test_a_container_with_less_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    read: Callable[[Path], str] = Path.read_text

    def limited(self: Path, *args: Any, **more: Any) -> str:
        return str(2**30) if str(self) == "/sys/fs/cgroup/memory.max" else read(self, *args, **more)

    monkeypatch.setattr(Path, "read_text", limited)
    assert doctor.memory().endswith("this container may have 1.0")


def test_a_busy_machine_is_told(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the counters: user, nice, system, idle, waiting for a disk, three kinds of interrupts, and what is counted already."""
    tick, clock = os.sysconf("SC_CLK_TCK"), iter(range(9))  # a second between two looks
    looks = iter(["cpu  50 0 7 400 1 0 0 0 9\ncpu0", f"cpu  50 0 {7 + tick} {400 + tick} 9 0 0 0 999\ncpu0"])
    read: Callable[[Path], str] = Path.read_text
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", lambda self, *a, **k: next(looks) if str(self) == "/proc/stat" else read(self, *a, **k))
        patch.setattr(doctor, "time", SimpleNamespace(sleep=lambda seconds: None, monotonic=lambda: next(clock)))
        assert doctor.others_at_work() == pytest.approx(1.0)
    for busy, said in (1.0, True), (0.1, False):
        monkeypatch.setattr(doctor, "others_at_work", lambda busy=busy: busy)
        assert ("other processes keep 1.0 of" in "\n".join(examine("cpu", budget=0.1))) is said


def test_the_command(quick: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--seconds", "0.1", "--device", "cpu"]) == 0
    assert "ms an update" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--device", "gpu"], "`device=gpu` cannot be computed on"), (["--seconds", "0"], "`--seconds 0` is no time")],
)
def test_what_makes_no_sense_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *words]) == 2
    out, err = capsys.readouterr()
    assert said in err and err.count("\n") == 1 and not out


def test_a_refused_device_is_refused_before_anything_is_said() -> None:
    with pytest.raises(Refused):
        next(examine("cuda:99"))
