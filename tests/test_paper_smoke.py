"""The paper at scale `smoke`, for real: a part of `paper all` from nothing, and a command that is killed twice."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import onepass.doctor
from onepass.cli import main
from onepass.paper.ask import parts
from onepass.record import Record

COMMAND = """
import sys
import onepass.doctor, onepass.pool
onepass.doctor.seconds_per_update = lambda config, budget=10.0: 0.1  # nobody waits for the ten seconds
onepass.pool.available_cores = lambda: 2  # of which two workers have one each, as many threads as one run alone has here
from onepass.cli import main
sys.exit(main(sys.argv[1:]))
"""
TWO = ["tab_ablation", "fig:feature_drift", "--where", "method=er+mkd,er+mkd-single-view", "seed=0"]


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine that is quickly measured, and knows nothing of others."""
    monkeypatch.setattr(onepass.doctor, "seconds_per_update", lambda config, budget=10.0: 0.1)  # pyright: ignore
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def words(asked: list[str], folder: Path, workers: int = 1) -> list[str]:
    where = ["--runs", str(folder / "runs"), "--out", str(folder / "out")]
    return ["paper", *asked, "--scale", "smoke", "--run", *where, "--workers", str(workers)]


def test_a_part_of_all_from_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything that has a cell of ER at seed 0: 16 of 24 labels, from 7 runs."""
    assert main(words(["all", "--where", "method=er", "seed=0"], tmp_path)) == 0
    out, err = capsys.readouterr()
    assert re.search(r"^onepass: 7 runs to do: about \d+ \w+ on this machine", err, re.M)
    page = (tmp_path / "out" / "index.md").read_text()
    labels = re.findall(r"^## (.+)$", page, re.M)
    assert len(labels) == 16 and {"tab:clear_setting_all", "tab:blurry_all", "tab:all_hp", "fig:tsne", "tab:controls"} <= {*labels}
    assert "not comparable" in page and "| runs | 7, each once |" in page and "| seeds | 0 |" in page
    drawn = re.findall(r"!\[.+\]\((.+)\)", page)
    assert len(drawn) == 7 and all((tmp_path / "out" / name).is_file() for name in drawn)
    (clear,) = re.findall(r"^\| er \| 1 \| (\S+) \|$", (tmp_path / "out" / "tab_clear.md").read_text(), re.M)
    ((cell,),) = (part.cells for part in parts(["tab_clear"], {"method": ("er",), "seed": ("0",)}, "smoke", "default"))
    record = Record(tmp_path / "runs" / cell.config.folder)
    assert float(clear) == pytest.approx(100 * record.summary["accuracy"], abs=0.005) and clear in out
    assert "not run" not in out and page.count("of 1 runs are there") >= 10


def test_killed_twice_it_ends_the_same(tmp_path: Path) -> None:
    """By SIGKILL: once the parent of two workers alone, which must not live on and hold their runs; once all there is."""
    killed, whole = tmp_path / "killed", tmp_path / "whole"

    def begin(workers: int) -> subprocess.Popen[str]:
        line = [sys.executable, "-c", COMMAND, *words(TWO, killed, workers)]
        return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)

    child = begin(2)
    wait(lambda: len(found(killed, "checkpoint.safetensors")) == 2, child)
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    wait(lambda: all(map(unlocked, found(killed, "lock"))))
    assert not found(killed, "done.json")

    child = begin(1)
    wait(lambda: len(found(killed, "done.json")) == 1, child)
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
    assert not (killed / "out").exists()

    child = begin(1)
    _, err = child.communicate()
    assert child.returncode == 0 and "1 run to do" in err
    records = [Record(path.parent) for path in found(killed, "done.json")]
    assert len(records) == 2 and all(record.env["resumed"] for record in records)

    assert main(words(TWO, whole)) == 0
    tables = [f"tab_ablation.{ending}" for ending in ("md", "tex", "csv")]
    names = {path.name for path in (whole / "out").iterdir()}
    assert names == {"index.md", "fig_feature_drift.png", "fig_feature_drift.svg", *tables}
    for name in names - {"index.md"}:  # which says when, and how long it took
        assert (killed / "out" / name).read_bytes() == (whole / "out" / name).read_bytes(), name


def found(folder: Path, name: str) -> list[Path]:
    return sorted((folder / "runs").rglob(name))


def unlocked(path: Path) -> bool:
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def wait(until: Callable[[], Any], child: subprocess.Popen[str] | None = None) -> None:
    end = time.monotonic() + 120
    while not until():
        assert child is None or child.poll() is None, child.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.01)
