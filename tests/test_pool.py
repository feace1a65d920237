"""Several runs in processes of their own: the same bits as one after the other, and what becomes of the rest when one fails."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
from onepass.learner import Adam
from onepass.loop import Progress, run
from onepass.nets import Custom, ResNet18
from onepass.pool import available_cores, sweep
from onepass.probes import Predictions
from onepass.recipes import recipe
from onepass.record import Diverged, Record, records

SHARE = max(1, available_cores() // 2)  # threads of each of two workers

NET = gated()


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def mistakes(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("onepass: ")]


def say(*words: str | Path) -> Said:
    """The command in this process, which is the parent of its workers."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
    return Said(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def by_title(root: Path) -> dict[str, Record]:
    return {record.title: record for record in records(root)}


def same_bits(a: Record, b: Record) -> None:
    assert (a.path / "log.jsonl").read_bytes() == (b.path / "log.jsonl").read_bytes()
    mine, theirs = load_file(a.path / "model.safetensors"), load_file(b.path / "model.safetensors")
    assert mine.keys() == theirs.keys() and [k for k in mine if not torch.equal(mine[k], theirs[k])] == []
    assert a.results.arrays.keys() == b.results.arrays.keys()
    assert all(np.array_equal(v, b.results.arrays[k]) for k, v in a.results.arrays.items())
    assert a.done is not None and b.done is not None and a.done["summary"] == b.done["summary"]


def small(word: str, **changes: Any) -> Config:
    return replace(recipe(word, source("digits")), **{"net": ResNet18(width=2), "per_class": 3} | changes)


# ---- two workers


@pytest.fixture(scope="module")
def side_by_side(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Said]:
    """ER with room to learn, beside ER+MKD with a weight that no number can hold."""
    root = tmp_path_factory.mktemp("pool") / "runs"
    words = ["er", "er+mkd", "--net.width", "2", "--per-class", "3", "--distill.weight", "1e300", "--workers", "2"]
    return root, say("run", *words, "--runs", root)


def test_a_run_in_a_worker_has_the_bits_of_one_alone_at_as_many_threads(side_by_side: tuple[Path, Said], tmp_path: Path) -> None:
    root, _ = side_by_side
    with threads(SHARE):
        alone = run(small("er"), tmp_path)
    same_bits(by_title(root)["er"], alone)


def test_the_threads_are_shared_out_and_written_down(side_by_side: tuple[Path, Said]) -> None:
    root, _ = side_by_side
    assert {title: record.env["threads"] for title, record in by_title(root).items()} == {"er": SHARE, "er+mkd": SHARE}


def test_a_run_that_diverges_does_not_take_the_others_with_it(side_by_side: tuple[Path, Said]) -> None:
    root, said = side_by_side
    found = by_title(root)
    assert found["er"].done is not None and found["er+mkd"].done is None
    assert said.code == 2
    assert [line.split()[0] for line in said.out.splitlines()[2:3]] == ["er"] and str(found["er"].path) in said.out
    assert "er+mkd" not in said.out.splitlines()[2]


def test_and_is_told_in_one_line_with_its_step(side_by_side: tuple[Path, Said]) -> None:
    _, said = side_by_side
    (line,) = said.mistakes
    assert re.search(r"`er\+mkd` \(seed 0\) is (nan|inf) at update \d+, after \d+ images", line)
    assert "Traceback" not in said.err


def test_one_after_the_other_it_does_not_either(tmp_path: Path) -> None:
    configs = [small("er", per_class=1), small("er", per_class=1, optim=Adam(lr=1e30)), small("er", per_class=1, seed=1)]
    heard: list[tuple[int, Any]] = []
    outcomes = sweep(configs, tmp_path, workers=1, tell=lambda i, event: heard.append((i, event)))
    assert [type(outcome) for outcome in outcomes] == [Record, Diverged, Record]
    assert [r.path for r in outcomes if isinstance(r, Record)] == [tmp_path / configs[i].folder for i in (0, 2)]
    ends = [(i, event) for i, event in heard if not isinstance(event, Progress)]
    assert ends == list(enumerate(outcomes))
    seen = [event.samples for i, event in heard if i == 0 and isinstance(event, Progress)]
    assert seen == [2, 4, 6, 8, 10]


def test_finished_runs_start_no_process(side_by_side: tuple[Path, Said]) -> None:
    root, _ = side_by_side
    began = time.perf_counter()
    at_work: list[Any] = []
    (outcome,) = sweep([small("er")], root, workers=2, tell=lambda i, event: at_work.extend(multiprocessing.active_children()))
    assert time.perf_counter() - began < 1.0 and at_work == []
    assert isinstance(outcome, Record) and outcome.path == by_title(root)["er"].path


# ---- a worker that is killed


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two runs of which one loses its process by SIGKILL when both have a checkpoint; and the same command again."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "net.py").write_text(NET)
    gate, root = folder / "gate", folder / "runs"
    words = ["er", "er+mkd", "--net", f"{folder / 'net.py'}:build", "--per-class", "6", "--precision", "fp32", "--workers"]
    gate.write_text("12")  # in the second task of ER+MKD, in the third of ER
    dead: list[int] = []

    def kill_one() -> None:
        until = time.monotonic() + 60
        while len(list(root.rglob("checkpoint.safetensors"))) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        pids = [p.pid for p in multiprocessing.active_children() if p.name.startswith("SpawnProcess")]
        dead.extend(pid for pid in pids[:1] if pid is not None)
        for pid in dead:
            os.kill(pid, signal.SIGKILL)
        time.sleep(1.5)  # until the other one has heard of it
        gate.unlink()

    killer = threading.Thread(target=kill_one)
    killer.start()
    first = say("run", *words, "2", "--runs", root)
    killer.join()
    left = {record.title: (record.done, (record.path / "checkpoint.safetensors").exists()) for record in records(root)}
    again = say("run", *words, "2", "--runs", root)
    with threads(SHARE):
        apart = say("run", *words, "1", "--runs", folder / "apart")
    return {"dead": dead, "first": first, "left": left, "again": again, "apart": apart, "folder": folder}


def test_a_killed_worker_is_told_in_one_line(killed: dict[str, Any]) -> None:
    said = killed["first"]
    assert len(killed["dead"]) == 1
    assert said.code == 2 and "Traceback" not in said.err
    (line,) = said.mistakes
    assert "killed" in line and "same command" in line


def test_a_killed_worker_leaves_every_run_to_be_taken_up(killed: dict[str, Any]) -> None:
    # the executor may hear of a death late, and the other run end meanwhile
    assert set(killed["left"]) == {"er", "er+mkd"}
    assert any(done is None for done, _ in killed["left"].values())
    assert all(saved == (done is None) for done, saved in killed["left"].values())


def test_the_same_command_resumes_what_a_killed_worker_left(killed: dict[str, Any]) -> None:
    assert killed["again"].code == 0, killed["again"].err
    assert killed["again"].mistakes == []
    for record in records(killed["folder"] / "runs"):
        done, _ = killed["left"][record.title]
        assert len(record.env.get("resumed", [])) == (done is None)


def test_and_ends_with_the_bits_of_runs_one_after_the_other(killed: dict[str, Any]) -> None:
    assert killed["apart"].code == 0
    mine, theirs = by_title(killed["folder"] / "runs"), by_title(killed["folder"] / "apart")
    assert set(mine) == set(theirs) == {"er", "er+mkd"}
    for title in mine:
        same_bits(mine[title], theirs[title])


# ---- threads


def test_a_run_goes_on_with_the_threads_it_was_begun_with(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    config = small("er", per_class=1, limit=6, probes=(Predictions(),), net=Custom(f"{tmp_path / 'net.py'}:build"))
    seen: list[int] = []

    def stop(progress: Progress) -> None:
        seen.append(torch.get_num_threads())
        if progress.samples == 4:
            raise ArithmeticError("nobody waits for the rest")

    before = torch.get_num_threads()
    with threads(2):
        with pytest.raises(ArithmeticError):
            run(config, tmp_path, tell=stop)
        assert seen == [2, 2]
    with threads(1):
        record = run(config, tmp_path, tell=lambda progress: seen.append(torch.get_num_threads()))
        assert torch.get_num_threads() == 1  # whoever called has its own back
    assert seen[2:] and set(seen[2:]) == {2}
    assert record.env["threads"] == 2 and record.env["resumed"][0]["threads"] == 2
    assert torch.get_num_threads() == before
