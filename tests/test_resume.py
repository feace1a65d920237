"""A run that is killed or stopped at any moment, and taken up again, ends with the bits of one that was left alone."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gated import gated
from safetensors.torch import load_file

from onepass.cli import main
from onepass.config import Config
from onepass.data import source
from onepass.loop import run
from onepass.nets import ResNet18
from onepass.recipes import recipe
from onepass.record import Record

PROBES = [{"is": "Predictions", "every": 10}, {"is": "Drift", "every": 13}, {"is": "NCM"}, {"is": "MemoryFeatures"}]
WORDS = ["er+mkd", "--net.width", "2", "--per-class", "6", "--memory", "7", "--probes", json.dumps(PROBES)]
LENGTH, ENDS = 60, (12, 24, 36, 48, 60)


def config() -> Config:
    """What WORDS say."""
    made = recipe("er+mkd", source("digits"), memory=7)
    tree = made.to_json() | {"per_class": 6, "probes": PROBES}
    return Config.from_json(tree | {"net": {"is": "ResNet18", "width": 2}})


def test_the_words_say_the_config() -> None:
    assert config().net == ResNet18(width=2) and config().memory == 7 and config().per_class == 6


# ---- processes that are cut off at a chosen moment: real ones, forked from a server that has torch imported already

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["torch._dynamo", "sklearn.datasets", "pytest", "onepass.cli", "onepass.terminal"])


@dataclass(frozen=True)
class Moment:
    """Just before the `count`-th time that the process does something (an audit event of Python) to a file of this name."""

    event: str
    name: str
    count: int = 1


def live(root: str, moment: Moment | None, number: int, words: list[str]) -> None:
    """In a process of its own: a run that sends itself a signal at a moment, and keeps a copy of its last checkpoint."""
    os.setsid()
    torch.set_num_threads(1)
    said = os.open(os.path.join(root, "said"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    times = 0

    def hook(event: str, args: Any) -> None:
        nonlocal times
        if event == "open":
            path, mode, _ = args
            if not isinstance(mode, str) or not set(mode) & set("wa"):
                return
        elif event in ("os.rename", "os.remove"):
            path = args[event == "os.rename"]
        else:
            return
        name = os.path.basename(str(path))
        if event == "os.remove" and name == "checkpoint.safetensors":
            shutil.copy(path, os.path.join(root, "last.safetensors"))
        if moment is not None and (event, name) == (moment.event, moment.name):
            times += 1
            if times == moment.count:
                os.kill(os.getpid(), number)

    sys.addaudithook(hook)
    if words:
        sys.exit(main(["run", *words, "--runs", root]))
    run(config(), root)


def begin(root: Path, moment: Moment | None = None, number: int = signal.SIGKILL, words: list[str] | None = None) -> Any:
    root.mkdir(exist_ok=True)
    child = SERVER.Process(target=live, args=(str(root), moment, int(number), words or []))
    child.start()
    return child


def process(root: Path, moment: Moment | None = None, number: int = signal.SIGKILL, words: list[str] | None = None) -> int:
    """The exit code of such a process; less than 0: the signal that killed it."""
    return ended(begin(root, moment, number, words))


def ended(child: Any) -> int:
    child.join(120)
    assert child.exitcode is not None
    return child.exitcode


@dataclass(frozen=True)
class Bits:
    """Everything a run leaves that may not depend on how often it was interrupted."""

    model: dict[str, torch.Tensor]
    last: dict[str, torch.Tensor]  # student, teacher, optimiser, memory and clock at the end
    log: str
    probes: dict[str, np.ndarray]
    summary: dict[str, float]


def only(root: Path) -> Path:
    (file,) = root.rglob("config.json")
    return file.parent


def bits(path: Path, last: Path | None = None) -> Bits:
    with np.load(path / "probes.npz") as file:
        probes = {k: file[k] for k in file.files}
    done = json.loads((path / "done.json").read_text())
    model = load_file(path / "model.safetensors")
    state = load_file(last) if last is not None else {}
    return Bits(model, state, (path / "log.jsonl").read_text(), probes, done["summary"])


def same(a: Bits, b: Bits) -> None:
    assert a.log == b.log
    for mine, theirs in (a.model, b.model), (a.last, b.last):
        assert mine.keys() == theirs.keys()
        assert [k for k in mine if not torch.equal(mine[k], theirs[k])] == []
    assert a.probes.keys() == b.probes.keys()
    assert [k for k in a.probes if not np.array_equal(a.probes[k], b.probes[k])] == []
    assert a.summary == b.summary


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Bits:
    """The run that nobody interrupts."""
    root = tmp_path_factory.mktemp("whole")
    assert process(root) == 0
    return bits(only(root), root / "last.safetensors")


def test_the_uninterrupted_run_is_worth_comparing_with(whole: Bits) -> None:
    lines = [json.loads(line) for line in whole.log.splitlines()]
    assert [line["samples"] for line in lines] == list(range(4, LENGTH + 1, 2))  # the first batch finds no memory
    times = {name: [int(k[-9:]) for k in sorted(whole.probes) if k.startswith(name)] for name in ("task/average", "curve/average")}
    assert times == {"task/average": list(ENDS), "curve/average": [10, 20, 30, 40, 50]}
    assert [k for k in sorted(whole.probes) if k.startswith("drift")] == ["drift/student@000000028", "drift/student@000000054"]
    parts = {key.partition(".")[0] for key in whole.last}
    assert parts == {"student", "follower", "optimizer", "memory", "clock", "seen", "new"}
    assert whole.last["clock"][0] == LENGTH


MOMENTS = {
    "before anything is written": Moment("open", "lock"),
    "before its config is written": Moment("os.rename", "config.json"),
    "before the first checkpoint": Moment("os.rename", "checkpoint.safetensors"),
    "after a probe within a task": Moment("open", "probes.npz.aside", 4),
    "after a probe, before the checkpoint that knows of it": Moment("open", "checkpoint.safetensors.aside", 2),
    "between the log and the checkpoint": Moment("os.rename", "checkpoint.safetensors", 4),
    "after the last checkpoint": Moment("open", "model.safetensors.aside"),
    "before it is said to be done": Moment("os.rename", "done.json"),
}


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=list(MOMENTS))
def test_a_killed_run_resumed_has_the_bits_of_the_whole(tmp_path: Path, whole: Bits, moment: Moment) -> None:
    root = tmp_path / "runs"
    assert process(root, moment) == -signal.SIGKILL
    assert not list(root.rglob("done.json")) and not (root / "last.safetensors").exists()
    assert process(root) == 0
    same(bits(only(root), root / "last.safetensors"), whole)
    assert not list(root.rglob("*.aside"))


def test_a_run_killed_again_and_again_has_the_bits_of_the_whole(tmp_path: Path, whole: Bits) -> None:
    root = tmp_path / "runs"
    saved: list[int] = []
    for name, count in ("log.jsonl", 2), ("probes.npz.aside", 3), ("probes.npz.aside", 4), ("checkpoint.safetensors.aside", 2):
        assert process(root, Moment("open", name, count)) == -signal.SIGKILL
        saved += [int(load_file(file)["clock"][0]) for file in root.rglob("checkpoint.safetensors")]
    assert len(saved) > 2 and sorted(set(saved)) == saved  # each got further than the one before
    assert process(root) == 0
    same(bits(only(root), root / "last.safetensors"), whole)
    env = Record(only(root)).env
    assert [r["at"] for r in env["resumed"]] == saved


def test_killed_just_after_it_was_done_it_is_done(tmp_path: Path, whole: Bits) -> None:
    root = tmp_path / "runs"
    assert process(root, Moment("os.remove", "checkpoint.safetensors")) == -signal.SIGKILL
    assert process(root) == 0
    same(bits(only(root), root / "last.safetensors"), whole)


def test_ctrl_c_saves_says_how_to_go_on_and_loses_nothing(tmp_path: Path, whole: Bits) -> None:
    root = tmp_path / "runs"
    moment = Moment("open", "probes.npz.aside", 2)  # at 12 images, which are seen to before it stops
    assert process(root, moment, signal.SIGINT, WORDS) == 130
    said = (root / "said").read_text()
    (line,) = [line for line in said.splitlines() if line.startswith("onepass: ")]
    assert "saved" in line and "same command" in line and "Traceback" not in said
    assert load_file(only(root) / "checkpoint.safetensors")["clock"][0] == 12
    assert process(root) == 0
    same(bits(only(root), root / "last.safetensors"), whole)


def test_ctrl_c_within_a_task_stops_after_the_batch(tmp_path: Path, whole: Bits) -> None:
    root = tmp_path / "runs"
    assert process(root, Moment("open", "probes.npz.aside", 3), signal.SIGINT, WORDS) == 130
    assert load_file(only(root) / "checkpoint.safetensors")["clock"][0] == 20
    assert process(root) == 0
    same(bits(only(root), root / "last.safetensors"), whole)


def test_a_request_to_end_is_taken_as_ctrl_c(tmp_path: Path, whole: Bits) -> None:
    root = tmp_path / "runs"
    assert process(root, Moment("open", "probes.npz.aside", 3), signal.SIGTERM, WORDS) == 130
    assert load_file(only(root) / "checkpoint.safetensors")["clock"][0] == 20
    assert process(root) == 0
    same(bits(only(root), root / "last.safetensors"), whole)


# ---- the command itself, killed from outside


def start(root: Path, *words: str) -> subprocess.Popen[str]:
    src = str(Path(__file__).parents[1] / "src")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in (src, os.environ.get("PYTHONPATH")) if p), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "onepass.cli", "run", *words, "--runs", str(root)],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def wait_for(happened: Callable[[], bool], child: Any) -> None:
    until = time.monotonic() + 60
    while not happened():
        running = child.poll() is None if isinstance(child, subprocess.Popen) else child.is_alive()
        assert running and time.monotonic() < until
        time.sleep(0.002)


def test_the_command_killed_from_outside_goes_on_when_it_is_given_again(tmp_path: Path, whole: Bits) -> None:
    root = tmp_path / "runs"
    child = start(root, *WORDS)
    wait_for(lambda: bool(list(root.rglob("checkpoint.safetensors"))), child)
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
    assert child.returncode == -signal.SIGKILL and not list(root.rglob("done.json"))
    child = start(root, *WORDS)
    out, err = child.communicate()
    assert child.returncode == 0, err
    assert f"{100 * whole.summary['accuracy']:.1f}" in out.splitlines()[2].split()[1]
    mine = bits(only(root))
    same(mine, Bits(whole.model, {}, whole.log, whole.probes, whole.summary))
    assert Record(only(root)).env["resumed"][0]["at"] in ENDS


# ---- two at a time

NET = gated(drop=0.3)


def records(root: Path) -> list[Path]:
    return sorted(file.parent for file in root.rglob("config.json"))


def clocks(root: Path) -> list[int]:
    return [int(load_file(file)["clock"][0]) for file in sorted(root.rglob("checkpoint.safetensors"))]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two runs side by side: killed with all their processes, begun again and stopped by Ctrl-C, begun again."""
    folder = tmp_path_factory.mktemp("two")
    gate, root, apart = folder / "gate", folder / "together", folder / "apart"
    (folder / "net.py").write_text(NET)
    words = ["er", "er+mkd", "--per-class", "6", "--net", f"{folder / 'net.py'}:build", "--precision", "fp32", "--workers"]
    seen: dict[str, Any] = {}

    assert process(apart, None, 0, [*words, "1"]) == 0
    seen["apart"] = {path.parts[-4:]: bits(path) for path in records(apart)}

    gate.write_text("12")  # in the second task of ER+MKD, in the third of ER
    child = begin(root, None, 0, [*words, "2"])
    wait_for(lambda: len(clocks(root)) == 2, child)
    os.killpg(child.pid, signal.SIGKILL)
    seen["killed"] = ended(child), clocks(root)

    gate.write_text("0")  # a terminal interrupts each process in front, and the parent passes the wish on: with batches that
    child = begin(root, None, 0, [*words, "2"])  # take their time, a worker hears of it twice within one
    wait_for(lambda: all(len(Record(p).env.get("resumed", [])) == 1 for p in records(root)), child)
    time.sleep(0.2)
    os.killpg(child.pid, signal.SIGINT)
    time.sleep(1.5)
    gate.unlink()
    seen["stopped"] = ended(child), clocks(root)
    seen["said"] = (root / "said").read_text()

    child = begin(root, None, 0, [*words, "2"])
    seen["resumed"] = ended(child)
    seen["records"] = records(root)
    return seen


def test_two_runs_killed_with_all_their_processes_keep_their_checkpoints(two: dict[str, Any]) -> None:
    code, saved = two["killed"]
    assert code == -signal.SIGKILL and len(saved) == 2 and all(at in ENDS for at in saved)


def test_ctrl_c_at_a_terminal_saves_both_runs_and_says_how_to_go_on(two: dict[str, Any]) -> None:
    _, before = two["killed"]
    code, saved = two["stopped"]
    assert code == 130
    (line,) = [line for line in two["said"].splitlines() if line.startswith("onepass: ")]
    assert "2 runs" in line and "saved" in line and "same command" in line
    assert "Traceback" not in two["said"]
    assert len(saved) == 2 and all(b < at < LENGTH for b, at in zip(before, saved, strict=True))


def test_two_runs_killed_and_stopped_end_with_the_bits_of_runs_left_alone(two: dict[str, Any]) -> None:
    assert two["resumed"] == 0
    assert len(two["records"]) == 2
    for path in two["records"]:
        same(bits(path), two["apart"][path.parts[-4:]])
        assert len(Record(path).env["resumed"]) == 2
