"""A run on disk: what is in its folder, how it is written, what is refused, and what is read from it."""

from __future__ import annotations

import fcntl
import json
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from onepass import metrics
from onepass.__about__ import RESULTS_VERSION, __version__
from onepass.config import Config
from onepass.data import source
from onepass.errors import Refused
from onepass.learner import Learner
from onepass.loop import Progress, prepare, run
from onepass.nets import Custom, ResNet18
from onepass.probes import Predictions
from onepass.recipes import recipe
from onepass.record import Record, Recorder, Results, aside, delete, records
from onepass.stream import Clear

ENDS, LENGTH = (8, 16, 24, 32, 40), 40


def small(word: str = "er+mkd", **changes: Any) -> Config:
    config = recipe(word, source("digits"), memory=9)
    return replace(config, **{"net": ResNet18(width=2), "per_class": 4, "probes": (Predictions(every=10),)} | changes)


class Enough(Exception):
    """Not an error of the run: nobody wants to wait for the rest."""


def until(samples: int, act: Callable[[], None] | None = None) -> Callable[[Progress], None]:
    def tell(progress: Progress) -> None:
        if progress.samples == samples:
            if act is None:
                raise Enough
            act()

    return tell


def broken_off(root: Path, config: Config, samples: int = 20) -> Path:
    with pytest.raises(Enough):
        run(config, root, tell=until(samples))
    return root / config.folder


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(Refused) as error:
        act()
    assert "\n" not in str(error.value)
    return str(error.value)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def strict(text: str) -> Any:
    """JSON as other programs read it: without NaN."""

    def no(word: str) -> Any:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=no)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run of ER+MKD, one of ER at seed 1, and one of ER that was broken off after 20 images."""
    folder = tmp_path_factory.mktemp("record") / "runs"
    run(small(), folder)
    run(small("er", seed=1), folder)
    broken_off(folder, small("er", seed=2))
    return folder


@pytest.fixture(scope="module")
def done(root: Path) -> Record:
    return Record(root / small().folder)


@pytest.fixture
def broken(root: Path, tmp_path: Path) -> Path:
    """A copy of all of it, to spoil."""
    shutil.copytree(root, tmp_path / "runs")
    return tmp_path / "runs" / small("er", seed=2).folder


# ---- the folder


def test_a_finished_run_has_these_files_and_no_others(done: Record) -> None:
    assert sorted(contents(done.path)) == [
        "config.json", "done.json", "env.json", "lock", "log.jsonl", "model.safetensors", "probes.npz", "stream.json",
        "timing.jsonl",
    ]  # fmt: skip


def test_it_lies_where_its_setting_method_memory_seed_and_identity_say(root: Path, done: Record) -> None:
    assert done.path == root / "digits-clear" / "er+mkd" / "m9" / f"s0-{small().identity}"
    assert (done.title, done.seed) == ("er+mkd", 0)


def test_config_json_is_the_whole_tree_and_its_identity(done: Record) -> None:
    file = strict((done.path / "config.json").read_text())
    assert file == {
        "identity": small().identity, "results": RESULTS_VERSION, "onepass": __version__, "config": small().to_json(),
    }  # fmt: skip
    assert Config.from_json(file["config"]) == small()


def test_env_json_says_where_it_was_made(done: Record) -> None:
    env = strict((done.path / "env.json").read_text())
    names = {"command", "commit", "onepass", "torch", "numpy", "python", "device", "precision", "threads", "began"}
    assert env.keys() == names
    assert env["torch"] == torch.__version__ and env["threads"] == torch.get_num_threads()
    assert env["precision"] in ("fp32", "bf16")  # what auto came to
    assert env["device"].startswith("cpu (") and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", env["began"])


def test_stream_json_says_what_its_numbers_mean(done: Record) -> None:
    stream, test, fingerprint = prepare(small())
    assert strict((done.path / "stream.json").read_text()) == {
        "classes": 10, "image": [1, 8, 8], "tasks": [list(t) for t in stream.spec.tasks], "original": list(stream.spec.original),
        "names": list(stream.spec.names), "task_ends": list(ENDS), "length": LENGTH, "infer": "average", "data": fingerprint,
    }  # fmt: skip
    assert done.results.arrays["y"].tolist() == test.y.tolist()


def test_done_json_sums_it_up(done: Record) -> None:
    file = strict((done.path / "done.json").read_text())
    assert file["summary"] == done.results.summary()
    assert set(file["seconds_of"]) == {"train", "probe", "save"} and min(file["seconds_of"].values()) > 0
    assert file["seconds"] == pytest.approx(sum(file["seconds_of"].values()), abs=0.002)
    assert file["images_per_second"] == pytest.approx(LENGTH / file["seconds_of"]["train"], rel=0.02)
    assert file["clock"] == {"samples": LENGTH, "batches": LENGTH // 2, "updates": LENGTH // 2}


def test_what_cannot_be_measured_is_still_json(tmp_path: Path) -> None:
    record = run(small("er", stream=Clear(1), per_class=2), tmp_path)  # one task: no backward transfer, no forgetting
    summary = strict((record.path / "done.json").read_text())["summary"]
    assert 0 <= summary["accuracy"] <= 1


def test_the_model_is_the_network_that_predicts(done: Record) -> None:
    stream, test, _ = prepare(small())
    learner = small().learner(stream.spec, sharp=True)
    for batch in stream.batches(2):
        learner.observe(batch)
    saved, net = load_file(done.path / "model.safetensors"), learner.network("average").state_dict()
    assert saved.keys() == net.keys() and all(torch.equal(saved[k], v) for k, v in net.items())
    _, predictions = done.results.at("task/average")
    assert predictions[-1].tolist() == learner.predict(test.x, "average").tolist()


# ---- the log


def test_a_log_line_says_what_was_lost_when_and_not_at_what_time(done: Record) -> None:
    lines = [strict(line) for line in (done.path / "log.jsonl").read_text().splitlines()]
    assert all(line.keys() == {"samples", "updates", "loss"} for line in lines)
    assert [line["samples"] for line in lines] == list(range(4, LENGTH + 1, 2))  # nothing to replay with the first batch
    assert [line["updates"] for line in lines] == list(range(2, LENGTH // 2 + 1))  # that one is counted, too
    assert lines == done.log


def test_the_same_run_elsewhere_and_later_has_the_same_log(done: Record, tmp_path: Path) -> None:
    again = run(small(), tmp_path)
    assert (again.path / "log.jsonl").read_bytes() == (done.path / "log.jsonl").read_bytes()
    times = [strict(line) for line in (again.path / "timing.jsonl").read_text().splitlines()]
    assert times[-1]["samples"] == LENGTH and all(t["seconds"] > 0 for t in times)  # here is the clock on the wall


# ---- files are written aside


def test_a_file_is_the_old_one_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with aside(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full disk", "ctrl-c"])
def test_a_writer_that_fails_leaves_the_old_file_whole_and_no_rubbish(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(type(error)), aside(path) as file:
        file.write(b"ne")
        raise error
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


# ---- a checkpoint that will not do


def attempt(config: Config, root: Path) -> tuple[Recorder, Learner, Callable[[], None]]:
    stream, test, fingerprint = prepare(config)
    learner, recorder = config.learner(stream.spec, sharp=True), Recorder(root, config)
    return recorder, learner, lambda: recorder.open(stream, fingerprint, test.y, learner)


def refused_and_untouched(broken: Path, root: Path) -> str:
    """Neither the folder nor the learner is changed by a checkpoint that is refused."""
    recorder, learner, begin = attempt(small("er", seed=2), root)
    files = contents(broken)
    before = {k: v.clone() for k, v in learner.state_dict().items()}
    said = refusal(begin)
    recorder.close()
    after = learner.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)
    assert contents(broken) == files
    return said


def test_a_checkpoint_that_is_whole_is_taken_up(broken: Path) -> None:
    recorder, learner, begin = attempt(small("er", seed=2), broken.parents[3])
    assert "curve/student@000000020" in Record(broken).results.arrays
    begin()
    recorder.close()
    assert {name.partition("@")[2] for name in recorder.results.arrays} == {"", "000000008", "000000010", "000000016"}
    assert learner.clock.samples == 16 and len(learner.memory) == 9
    lines = (broken / "log.jsonl").read_text().splitlines()
    assert strict(lines[-1])["samples"] == 16


@pytest.mark.parametrize("left", [0.0, 0.0001, 0.01, 0.5, 0.9999])
def test_a_truncated_checkpoint_is_refused_and_nothing_of_it_loaded(broken: Path, left: float) -> None:
    file = broken / "checkpoint.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: int(left * len(data))])
    said = refused_and_untouched(broken, broken.parents[3])
    assert str(file) in said and "damaged" in said and "delete" in said


def test_a_checkpoint_of_another_config_is_refused(broken: Path, root: Path) -> None:
    other = broken_off(broken.parents[3], small("er", seed=3))
    shutil.copy(other / "checkpoint.safetensors", broken / "checkpoint.safetensors")
    said = refused_and_untouched(broken, broken.parents[3])
    assert small("er", seed=2).identity in said and small("er", seed=3).identity in said and "delete" in said


def test_a_file_of_tensors_that_is_no_checkpoint_is_refused(broken: Path) -> None:
    save_file({"x": torch.zeros(3)}, broken / "checkpoint.safetensors")
    assert "checkpoint.safetensors" in refused_and_untouched(broken, broken.parents[3])


def test_a_run_is_not_resumed_on_other_data(broken: Path) -> None:
    file = broken / "stream.json"
    file.write_text(file.read_text().replace(strict(file.read_text())["data"], "0" * 64))
    said = refused_and_untouched(broken, broken.parents[3])
    assert "data" in said and str(broken) in said


def test_what_is_refused_by_the_recorder_is_refused_by_the_run(broken: Path) -> None:
    (broken / "checkpoint.safetensors").write_bytes(b"no tensors")
    assert "damaged" in refusal(lambda: run(small("er", seed=2), broken.parents[3]))
    (broken / "checkpoint.safetensors").unlink()  # as it says
    assert run(small("er", seed=2), broken.parents[3]).done


# ---- one process at a time

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
input()
"""


def test_a_run_that_another_process_is_at_is_refused(broken: Path) -> None:
    files = contents(broken)
    with subprocess.Popen([sys.executable, "-c", HOLD, broken / "lock"], stdin=-1, stdout=-1, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        said = refusal(lambda: run(small("er", seed=2), broken.parents[3]))
        other.communicate("\n")
    assert "another process" in said and str(broken) in said
    assert contents(broken) == files
    assert run(small("er", seed=2), broken.parents[3]).done  # and is free again


def test_a_run_holds_its_folder_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    config = small("er", per_class=1)
    tries: list[int] = []

    def attempt() -> None:
        command = [sys.executable, "-c", HOLD, tmp_path / config.folder / "lock"]
        tries.append(subprocess.run(command, input="\n", text=True, capture_output=True).returncode)

    run(config, tmp_path, tell=until(2, attempt))
    attempt()
    assert tries == [1, 0]


# ---- a finished run


def test_a_finished_run_is_returned_at_once_and_not_touched(done: Record, root: Path) -> None:
    files, times = contents(done.path), {f: f.stat().st_mtime_ns for f in done.path.iterdir()}
    began = time.perf_counter()
    again = run(small(), root)
    assert time.perf_counter() - began < 0.5
    assert again.path == done.path and again.done == done.done
    assert contents(done.path) == files and {f: f.stat().st_mtime_ns for f in done.path.iterdir()} == times


def test_a_run_that_another_process_ends_meanwhile_is_returned_and_not_begun_anew(
    done: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at what is there and the lock lies the reading of the data."""
    there = tmp_path / small().folder

    def slow(config: Config, data_dir: Path | None = None) -> Any:
        shutil.copytree(done.path, there)
        return prepare(config, data_dir)

    monkeypatch.setattr("onepass.loop.prepare", slow)
    again = run(small(), tmp_path, tell=until(2))
    assert again.path == there and contents(there) == contents(done.path)
    with open(there / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody holds it


def test_a_finished_run_that_lacks_a_probe_is_probed_or_done_again(root: Path, tmp_path: Path) -> None:
    config = small("er", seed=1)
    shutil.copytree(root / config.folder, tmp_path / config.folder)
    asked = run(replace(config, probes=(Predictions(every=4),)), tmp_path)
    times, _ = asked.results.at("curve/student")
    assert times.tolist() == [t for t in range(4, LENGTH, 4) if t not in ENDS]


# ---- a full disk


@pytest.fixture
def disk() -> Iterator[Callable[[int], None]]:
    """Makes every write beyond so many bytes of a file fail, as one to a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("file", ["probes.npz", "checkpoint.safetensors"])
def test_a_full_disk_is_one_line_and_leaves_the_last_checkpoint_whole(
    done: Record, tmp_path: Path, disk: Callable[[int], None], file: str
) -> None:
    folder = tmp_path / small().folder
    no_limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]

    def fill() -> None:
        disk((folder / file).stat().st_size - 100)  # the next checkpoint may be a few digits of seconds shorter

    try:
        said = refusal(lambda: run(small(), tmp_path, tell=until(18, fill)))
    finally:
        disk(no_limit)
    assert str(folder) in said and "written" in said
    assert not list(folder.glob("*.aside"))
    assert load_file(folder / "checkpoint.safetensors")["clock"][0] == 16
    again = run(small(), tmp_path)  # there is room now
    assert (again.path / "log.jsonl").read_bytes() == (done.path / "log.jsonl").read_bytes()
    mine, theirs = load_file(again.path / "model.safetensors"), load_file(done.path / "model.safetensors")
    assert all(torch.equal(mine[k], v) for k, v in theirs.items())


def test_a_disk_that_is_full_from_the_start_is_one_line(tmp_path: Path, disk: Callable[[int], None]) -> None:
    no_limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    disk(10)
    try:
        said = refusal(lambda: run(small("er"), tmp_path))
    finally:
        disk(no_limit)
    assert str(tmp_path) in said and "written" in said


# ---- a loss that is not a number


def test_a_run_that_diverges_stops_names_the_update_and_keeps_its_log(tmp_path: Path) -> None:
    config = small("er")
    config = replace(config, optim=replace(config.optim, lr=1e30))
    said = refusal(lambda: run(config, tmp_path))
    folder = tmp_path / config.folder
    last = strict((folder / "log.jsonl").read_text().splitlines()[-1])
    assert f"update {last['updates'] + 1}," in said and f"{last['samples'] + 2} images" in said and "diverged" in said
    assert not (folder / "done.json").exists() and not (folder / "model.safetensors").exists()
    assert not (folder / "checkpoint.safetensors").exists()  # none of what diverged is kept


FRAGILE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.classifier = nn.Linear(64, classes)
        self.register_buffer("count", torch.tensor(0))

    def features(self, x):
        self.count += self.training
        return x.flatten(1) + (torch.nan if self.count > 5 else 0.0)

def build(classes, image):
    return Net(classes)
"""


def test_what_was_saved_before_a_loss_was_lost_is_kept(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(FRAGILE)
    config = small("er", net=Custom(f"{tmp_path / 'net.py'}:build"))
    for _ in range(2):  # the same command again comes to the same end
        assert "at update 7, after 14 images" in refusal(lambda: run(config, tmp_path / "runs"))
        folder = tmp_path / "runs" / config.folder
        state = load_file(folder / "checkpoint.safetensors")
        assert state["clock"][0] == 8 and all(v.isfinite().all() for v in state.values())
        assert strict((folder / "log.jsonl").read_text().splitlines()[-1])["samples"] == 12


# ---- Results, against loops


def by_hand(classes: int = 6) -> tuple[Results, np.ndarray, dict[int, np.ndarray], list[list[int]]]:
    rng = np.random.RandomState(0)
    tasks = [[0, 1], [2, 3], [4, 5]]
    y = np.repeat(np.arange(classes), 7).astype(np.int16)
    predictions: dict[int, np.ndarray] = {}
    arrays: dict[str, np.ndarray] = {"y": y}
    for samples, seen in (5, 1), (10, 1), (15, 2), (20, 2), (30, 3):
        row = np.where(y < 2 * seen, rng.randint(0, classes, len(y)), -1).astype(np.int16)
        right = rng.rand(len(y)) < 0.5
        row[right & (row >= 0)] = y[right & (row >= 0)]
        predictions[samples] = row
        kind = "task" if samples in (10, 20, 30) else "curve"
        arrays[f"{kind}/average@{samples:09d}"] = row
        if kind == "task":
            arrays[f"task/student@{samples:09d}"] = np.where(row >= 0, 0, -1).astype(np.int16)
    stream = {"tasks": tasks, "classes": classes, "infer": "average", "task_ends": [10, 20, 30], "length": 30}
    return Results(arrays, stream), y, predictions, tasks


def share(row: np.ndarray, y: np.ndarray, task: list[int]) -> float:
    of = [i for i in range(len(y)) if y[i] in task]
    return sum(row[i] == y[i] for i in of) / len(of) if all(row[i] >= 0 for i in of) else float("nan")


def test_the_matrix_is_each_tasks_accuracy_at_each_tasks_end() -> None:
    results, y, predictions, tasks = by_hand()
    hand = [[share(predictions[t], y, task) for task in tasks] for t in (10, 20, 30)]
    np.testing.assert_allclose(results.matrix(), hand)
    assert np.isnan(results.matrix()[0, 1:]).all()
    ones = [[share(np.where(predictions[t] >= 0, 0, -1), y, task) for task in tasks] for t in (10, 20, 30)]
    np.testing.assert_allclose(results.matrix("student"), ones)


def test_the_curve_is_the_accuracy_on_the_tasks_so_far() -> None:
    results, y, predictions, tasks = by_hand()
    times, values = results.curve()
    assert times.tolist() == [5, 10, 15, 20, 30]
    hand = [np.mean([share(predictions[t], y, task) for task in tasks[: {5: 1, 10: 1, 15: 2, 20: 2, 30: 3}[t]]]) for t in times]
    np.testing.assert_allclose(values, hand)


def test_the_confusion_counts_the_last_predictions() -> None:
    results, y, predictions, _ = by_hand()
    hand = np.zeros((6, 6), dtype=int)
    for true, predicted in zip(y, predictions[30], strict=True):
        hand[true, predicted] += 1
    assert (results.confusion() == hand).all()


def test_the_summary_is_the_arithmetic_of_the_design() -> None:
    results, y, predictions, tasks = by_hand()
    a = [[share(predictions[t], y, task) for task in tasks] for t in (10, 20, 30)]
    older = [i for i in range(len(y)) if y[i] < 4]
    hand = {
        "accuracy": sum(a[2]) / 3,
        "anytime": (a[0][0] + sum(a[1][:2]) / 2 + sum(a[2]) / 3) / 3,
        "backward_transfer": ((a[2][0] - a[0][0]) + (a[2][1] - a[1][1])) / 2,
        "forgetting": ((max(a[0][0], a[1][0], a[2][0]) - a[2][0]) + (max(a[1][1], a[2][1]) - a[2][1])) / 2,
        "recency": sum(predictions[30][i] in (4, 5) for i in older) / len(older),
        "accuracy_average": sum(a[2]) / 3,
        "accuracy_student": 1 / 6,
    }
    summary = results.summary()
    assert summary.keys() == hand.keys()
    for name, value in hand.items():
        assert summary[name] == pytest.approx(value), name


def test_of_a_stream_cut_short_the_last_task_is_the_last_that_came() -> None:
    results, y, predictions, _ = by_hand()
    arrays = {k: v for k, v in results.arrays.items() if not k.endswith("30")}
    summary = Results(arrays, {**results.stream, "task_ends": [10, 20], "length": 20}).summary()
    older = [i for i in range(len(y)) if y[i] < 2]
    assert summary["recency"] == pytest.approx(sum(predictions[20][i] in (2, 3) for i in older) / len(older)) != 0


def test_measurements_come_in_the_order_of_time() -> None:
    rows = {f"task/student@{t:09d}": np.full(2, i) for i, t in enumerate((9, 10, 100, 1000))}
    results = Results(dict(reversed(rows.items())) | {"curve/student@000000005": np.zeros(2)}, {})
    times, values = results.at("task/student")
    assert times.tolist() == [9, 10, 100, 1000] and values[:, 0].tolist() == [0, 1, 2, 3]


# ---- records and the data frame


def test_records_are_every_run_of_a_folder_finished_or_not(root: Path) -> None:
    found = records(root)
    paths = [root / config.folder for config in (small("er", seed=1), small("er", seed=2), small())]
    assert [r.path for r in found] == sorted(paths)
    assert [r.done is None for r in found] == [r.seed == 2 for r in found]
    assert [r.path for r in records(str(root / "digits-clear" / "er+mkd"))] == [root / small().folder]
    assert all(r.bytes == sum(len(b) for b in contents(r.path).values()) for r in found)


def test_other_peoples_files_are_not_records(broken: Path) -> None:
    root = broken.parents[3]
    (root / "notes").mkdir()
    (root / "notes" / "config.json").write_text('{"a": 1}')
    (root / "config.json").write_text("not json")
    assert len(records(root)) == 3


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "none" in refusal(lambda: records(tmp_path / "none"))


def test_the_frame_has_a_row_for_each_finished_run(root: Path, done: Record) -> None:
    frame = records(root).frame()
    assert sorted(zip(frame["method"], frame["seed"], strict=True)) == [("er", 1), ("er+mkd", 0)]
    assert set(frame["setting"]) == {"digits-clear"} and set(frame["memory"]) == {9}
    row = frame[frame["method"] == "er+mkd"].iloc[0]
    assert done.done is not None and row["path"] == str(done.path)
    for name, value in (done.done["summary"] | {k: done.done[k] for k in ("seconds", "images_per_second")}).items():
        assert row[name] == pytest.approx(value), name
    er = frame[frame["method"] == "er"].iloc[0]
    assert np.isnan(er["accuracy_teacher"])  # it has none
    assert metrics.average_accuracy(done.results.matrix()[-1]) == row["accuracy"]


@pytest.mark.parametrize("below", [".", "digits-clear", "digits-clear/er+mkd/m9"])
def test_the_frame_is_the_same_from_wherever_one_stands(root: Path, monkeypatch: pytest.MonkeyPatch, below: str) -> None:
    monkeypatch.chdir(root / below)
    frame = records(".").frame()
    mine = frame[frame["method"] == "er+mkd"]
    assert len(mine) == 1 and mine["memory"].tolist() == [9] and mine["setting"].tolist() == ["digits-clear"]


def test_deleting_runs_removes_them_and_the_folders_they_leave_empty(broken: Path) -> None:
    root = broken.parents[3]
    delete([r for r in records(root) if r.title == "er+mkd"])
    assert not (root / "digits-clear" / "er+mkd").exists() and len(records(root)) == 2
    delete([r for r in records(root) if r.seed == 2])
    assert [r.seed for r in records(root)] == [1] and (root / "digits-clear" / "er" / "m9").is_dir()
    (root / "digits-clear" / "figures").mkdir()
    delete(records(root))
    assert (root / "digits-clear" / "figures").is_dir() and not (root / "digits-clear" / "er").exists()
