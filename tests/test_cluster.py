"""Runs on a Ray cluster: the bits of the local engine, whatever dies meanwhile; and what it refuses."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gated import gated
from safetensors.torch import load_file

from onepass import cluster, needs
from onepass.boundaries import NewClass
from onepass.cli import main
from onepass.cluster import Ray, engine
from onepass.config import Config
from onepass.data import source
from onepass.engine import Outcome, drive
from onepass.errors import Refused
from onepass.loop import Interrupted, Progress
from onepass.needs import Need, measure
from onepass.nets import Custom
from onepass.place import Place
from onepass.pool import Processes, sweep
from onepass.recipes import recipe
from onepass.record import Record
from onepass.store import Store

NET = gated(waiting='(HERE / f"pid{os.getpid()}").touch()')  # who waits, to be killed

FILES = ["config.json", "done.json", "env.json", "log.jsonl", "model.safetensors", "probes.npz", "stream.json", "timing.jsonl"]


def same_bits(a: Record, b: Record) -> None:
    assert (a.path / "log.jsonl").read_bytes() == (b.path / "log.jsonl").read_bytes()
    mine, theirs = load_file(a.path / "model.safetensors"), load_file(b.path / "model.safetensors")
    assert mine.keys() == theirs.keys() and [k for k in mine if not torch.equal(mine[k], theirs[k])] == []
    assert a.results.arrays.keys() == b.results.arrays.keys()
    assert all(np.array_equal(v, b.results.arrays[k]) for k, v in a.results.arrays.items())
    assert a.done is not None and b.done is not None and a.done["summary"] == b.done["summary"]


def all_same(mine: list[Outcome], theirs: list[Outcome]) -> None:
    for a, b in zip(mine, theirs, strict=True):
        assert isinstance(a, Record) and isinstance(b, Record), (a, b)
        same_bits(a, b)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "net.py").write_text(NET)
    return folder


def configs(folder: Path, seeds: int) -> list[Config]:
    net = Custom(f"{folder / 'net.py'}:build")
    made = replace(recipe("er+mkd", source("digits")), per_class=6, precision="fp32", net=net)
    return [replace(made, seed=seed) for seed in range(seeds)]


@pytest.fixture(scope="module")
def ray(folder: Path) -> Iterator[Any]:
    """A local cluster of two cores, whose workers wait for the next test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_idle_worker_killing_time_threshold_ms", "120000")
        module = cluster._ray()
        cluster._join(module, None, 2)
        yield module
        module.shutdown()


@pytest.fixture(scope="module")
def alone(folder: Path) -> list[Outcome]:
    """Eight runs, one after the other, in this process."""
    return sweep(configs(folder, 8), folder / "alone", workers=1)


def wait_for(what: Any, seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not what() and time.monotonic() < until:
        time.sleep(0.02)
    assert what()


# ---- the same bits


def test_a_worker_is_killed_and_all_end_with_the_bits_of_the_local_engine(ray: Any, folder: Path, alone: list[Outcome]) -> None:
    runs, gate, dead = folder / "killed", folder / "gate", list[int]()
    mine = configs(folder, 8)

    def kill_one() -> None:
        wait_for(lambda: len(list(runs.rglob("checkpoint.safetensors"))) == 2 and len(list(folder.glob("pid*"))) >= 2)
        dead.append(int(next(iter(folder.glob("pid*"))).name[3:]))
        os.kill(dead[0], signal.SIGKILL)
        time.sleep(0.5)
        gate.unlink()

    killer = threading.Thread(target=kill_one)
    heard: list[tuple[int, Progress | Outcome]] = []

    with Ray(workers=2).open(runs, lambda i, event: heard.append((i, event)), runs=8) as at_work:
        first = at_work
        assert isinstance(first, cluster._Tasks) and (first.slots, first.cores) == (2, 1)
        first.submit(0, mine[0])
        drive(first, lambda: bool(first._measuring))
        assert [need.memory > 1e8 for need in first._needs.values() if need is not None] == [True]
        gate.write_text("12")
        killer.start()
        for i, config in enumerate(mine[1:], 1):
            first.submit(i, config)
        assert not first._measuring  # runs that differ in their seed alone are measured once
        drive(first, lambda: sum(not isinstance(e, Progress) for _, e in heard) < 8)
    killer.join()
    assert len(dead) == 1
    ends = dict((i, e) for i, e in heard if not isinstance(e, Progress))
    all_same([ends[i] for i in range(8)], alone)
    again = [r for r in ends.values() if isinstance(r, Record) and r.env.get("resumed")]
    assert [r.env["resumed"][0]["at"] > 0 for r in again] == [True]
    assert {i for i, e in heard if isinstance(e, Progress)} == set(range(8))  # the live table fills
    assert [p.name for p in runs.iterdir()] == ["digits-clear"]  # nothing else is left in the folder


def test_records_that_workers_cannot_see_go_by_a_store(ray: Any, folder: Path, alone: list[Outcome]) -> None:
    """Stopped half-way and taken up again by way of the store, which has whole records and nothing else."""
    address, runs, gate = f"file://{folder / 'store'}", folder / "fetched", folder / "gate"
    mine = configs(folder, 2)
    heard: dict[int, Outcome] = {}

    def tell(i: int, event: Progress | Outcome) -> None:
        if not isinstance(event, Progress):
            heard[i] = event

    gate.write_text("12")
    with Ray(workers=2, store=address).open(runs, tell, runs=2) as at_work:
        assert isinstance(at_work, cluster._Tasks)
        at_work._needs[replace(mine[0], seed=0).identity] = Need(0)
        for i, config in enumerate(mine):
            at_work.submit(i, config)
        wait_for(lambda: len(list((folder / "store").rglob("checkpoint.safetensors"))) == 2)
        at_work.stop_all()
        gate.unlink()
        drive(at_work, lambda: len(heard) < 2)
    assert [type(heard[i]) for i in range(2)] == [Interrupted, Interrupted]
    assert "images; saved" in str(heard[0]) and not list(runs.rglob("*.*"))
    again = sweep(mine, runs, engine=Ray(workers=2, store=address))
    all_same(again, alone[:2])
    assert all(r.env["resumed"][0]["at"] > 0 for r in again if isinstance(r, Record))
    there = sorted(p.name for p in (folder / "store").rglob("*") if p.is_file())
    assert there == sorted(2 * FILES)


# ---- what it refuses


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["run", "er", *words]) == 2
    err = capsys.readouterr().err
    assert "Traceback" not in err
    (line,) = [line for line in err.splitlines() if line.startswith("onepass: ")]
    return line


@pytest.mark.parametrize("silent", [False, True])
def test_an_address_that_does_not_answer_is_told_within_ten_seconds(
    silent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where nobody listens, and where somebody does who never says a word."""
    module: Any = cluster._ray()
    monkeypatch.setattr(module, "is_initialized", lambda: False)
    monkeypatch.setattr(module, "shutdown", lambda: None)  # of the cluster that the other tests are on
    with socket.socket() as there:
        there.bind(("127.0.0.1", 0))
        if silent:
            there.listen()
        began = time.monotonic()
        address = f"127.0.0.1:{there.getsockname()[1]}"
        line = said(capsys, "--engine", "ray", "--address", address, "--runs", str(tmp_path / "runs"))
        assert time.monotonic() - began < 10.5
    assert f"No Ray cluster answers at `--address {address}`" in line
    assert list(tmp_path.iterdir()) == []


def test_what_is_wrong_with_the_flags_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "`--address` is of a cluster, and the engine is local" in said(capsys, "--address", "a:1")
    assert "`--store` is of a cluster" in said(capsys, "--store", "s3://bucket")
    assert "no engine `rye`; did you mean `ray`?" in said(capsys, "--engine", "rye")
    assert "`--workers 0` would run nothing" in said(capsys, "--engine", "ray", "--workers", "0")
    module: Any = cluster._ray()
    monkeypatch.setattr(module, "is_initialized", lambda: False)
    monkeypatch.setattr(module, "shutdown", lambda: None)  # of the cluster that the other tests are on
    assert "is not HOST:PORT" in said(capsys, "--engine", "ray", "--address", "ray://head:10001")
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install 'onepass[ray]'" in said(capsys, "--engine", "ray")
    assert list(tmp_path.iterdir()) == []


def test_one_device_of_one_machine_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(Refused, match="`device=cuda:1` is one device of one machine"),
        engine("ray").open(tmp_path, lambda i, event: None, runs=1, device="cuda:1"),
    ):
        pass
    assert engine("local", workers=3) == Processes(3)


def test_a_run_that_no_machine_has_room_for_is_refused(ray: Any, folder: Path, tmp_path: Path) -> None:
    heard: list[Any] = []
    with Ray(workers=2).open(tmp_path, lambda i, event: heard.append(event), runs=1) as at_work:
        assert isinstance(at_work, cluster._Tasks)
        (config,) = configs(folder, 1)
        at_work._needs[config.identity] = Need(2**50)
        at_work.submit(0, config)
    (refused,) = heard
    assert isinstance(refused, Refused) and "takes 1048576.0 GiB and 0 of a CUDA device" in str(refused)


def test_a_folder_that_the_workers_do_not_see_or_cannot_write_is_refused(tmp_path: Path) -> None:
    with Place.found(tmp_path / "runs", None, None) as place:
        place.check()
        elsewhere = replace(place, shared=tmp_path)  # as on a machine where that name is another folder
        with pytest.raises(Refused, match="is not there on .* or it is another one"):
            elsewhere.check()
        (tmp_path / "runs" / "sub").mkdir()
        unwritable = replace(place, shared=Path("/proc/self"), token="status")  # there, and nobody may write it
        with pytest.raises(Refused, match="`/proc/self` cannot be written on"):
            unwritable.check()
    assert not (tmp_path / "runs" / place.token).exists()
    with pytest.raises(Refused, match="`/proc/nowhere` cannot be written"):
        Place.found(Path("/proc/nowhere"), None, None)


def test_a_folder_that_no_worker_can_write_stops_all_before_it_begins(ray: Any, tmp_path: Path, folder: Path) -> None:
    """A store that lives in each process alone is not shared."""
    with pytest.raises(Refused, match=r"`--store memory://runs` is another place on"):
        sweep(configs(folder, 1), tmp_path / "runs", engine=Ray(workers=2, store="memory://runs"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ["nothing://bucket", "/proc/nowhere"])
def test_a_store_that_cannot_be_opened_is_refused(address: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=f"`--store {address}` cannot be"):
        Place.found(tmp_path, address, None)


# ---- its parts


def test_a_store_keeps_whole_files_alone(tmp_path: Path) -> None:
    store, here, run = Store(f"file://{tmp_path / 'there'}"), tmp_path / "here", Path("a/b")
    (here / run).mkdir(parents=True)
    for name in "log.jsonl", "checkpoint.safetensors", "lock", "probes.npz.aside":
        (here / run / name).write_text(name)
    store.put(run, here)
    assert sorted(p.name for p in (tmp_path / "there" / run).iterdir()) == ["checkpoint.safetensors", "log.jsonl"]
    (here / run / "done.json").write_text("{}")
    store.put(run, here)
    assert sorted(p.name for p in (tmp_path / "there" / run).iterdir()) == ["done.json", "log.jsonl"]
    store.fetch(run, tmp_path / "again")
    assert sorted(p.name for p in (tmp_path / "again" / run).iterdir()) == ["done.json", "log.jsonl"]
    store.fetch(Path("never/was"), tmp_path / "again")


def test_a_store_that_fails_on_the_way_is_a_run_that_is_refused_and_not_the_end_of_all(tmp_path: Path) -> None:
    store, run = Store(f"file://{tmp_path / 'there'}"), Path("a/b")
    (tmp_path / "here" / run).mkdir(parents=True)
    (tmp_path / "here" / run / "log.jsonl").write_text("{}")
    store.put(run, tmp_path / "here")
    (tmp_path / "again").write_text("a file")
    with pytest.raises(Refused, match="cannot be read"):
        store.fetch(run, tmp_path / "again")
    (tmp_path / "there" / "a" / "c").write_text("a file")
    (tmp_path / "here" / "a" / "c").mkdir()
    with pytest.raises(Refused, match="cannot be written"):
        store.put(Path("a/c"), tmp_path / "here")


@pytest.mark.parametrize(("stream", "rule"), [("clear", None), ("blurry", NewClass(lag=100))])
def test_a_measurement_reaches_the_second_task(stream: Any, rule: NewClass | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a method like OCM takes the most; the folder of the measurement is gone afterwards."""
    seen: list[Config] = []

    def watched(config: Config, root: Any, **more: Any) -> Record:
        seen.append(config)
        return run_itself(config, root, **more)

    run_itself = needs.run
    monkeypatch.setattr(needs, "run", watched)
    config = replace(recipe("er", source("digits"), stream=stream), replay_size=4, boundaries=rule)
    need = measure(config)
    assert need.device == 0 and 1e8 < need.memory < 1e10
    (few,) = seen
    assert few.per_class == 3 and few.limit == 3 * 2 + 2 * 2
    assert few.boundaries == (rule and NewClass(lag=2))


# ---- another process on the same cluster: last, for its workers take the place of those that wait

JOIN = """
import sys
from pathlib import Path
from onepass.cluster import engine
from onepass.errors import Refused
try:
    with engine("ray", address=sys.argv[1]).open(Path(sys.argv[2]), lambda i, event: None, runs=8) as at_work:
        print("joined", at_work.slots, at_work.cores)
except Refused as error:
    print(error)
"""


@pytest.mark.parametrize(("token", "said"), [(None, "joined 2 1"), ("another", "wants its token")])
def test_a_cluster_is_joined_by_its_address(token: str | None, said: str, ray: Any, folder: Path) -> None:
    address = ray.get_runtime_context().gcs_address
    env = os.environ | {"RAY_AUTH_MODE": "token", "PYTHONPATH": str(Path(__file__).parents[1] / "src")}
    env |= {} if token is None else {"RAY_AUTH_TOKEN": token}
    call = [sys.executable, "-c", JOIN, address, str(folder / "joined")]
    done = subprocess.run(call, env=env, capture_output=True, text=True, timeout=300)
    assert said in done.stdout and "Traceback" not in done.stderr, done.stdout + done.stderr


def marked(mark: str) -> list[int]:
    """Every process that has this in its environment: all that a command started, whoever their parents are by now."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


@pytest.mark.parametrize("name", ["local", "ray"])
def test_ctrl_c_saves_the_runs_and_leaves_nothing_running(name: str, folder: Path) -> None:
    """SIGINT to the command alone; a terminal would send it to its workers as well."""
    runs, gate, mark = folder / f"stopped-{name}", folder / "gate", f"ONEPASS_TEST_MARK={name}-{os.getpid()}"
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "src"), "OMP_NUM_THREADS": "1"} | dict([mark.split("=")])
    words = f"run er --seeds 0 1 --workers 2 --engine {name} --net {folder / 'net.py'}:build --per-class 6 --precision fp32"
    gate.write_text("12")
    call, said = [sys.executable, "-m", "onepass.cli", *words.split(), "--runs", str(runs)], folder / f"said-{name}"
    with open(said, "w") as file:
        child = subprocess.Popen(call, env=env, stdout=subprocess.DEVNULL, stderr=file, start_new_session=True)
    try:
        wait_for(lambda: len(list(runs.rglob("checkpoint.safetensors"))) == 2, 300)
        assert len(marked(mark)) >= 3
        child.send_signal(signal.SIGINT)
        time.sleep(1)
        gate.unlink()
        assert child.wait(300) == 130
        assert "2 runs stopped and saved; the same command goes on" in said.read_text()
        wait_for(lambda: not marked(mark), 30)
    finally:
        gate.unlink(missing_ok=True)
        for pid in marked(mark):
            os.kill(pid, signal.SIGKILL)
    assert len(list(runs.rglob("checkpoint.safetensors"))) == 2 and not list(runs.rglob("done.json"))
