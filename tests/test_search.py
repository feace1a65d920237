"""A search: its spaces, its trials when it is killed, and what it refuses."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gated import gated

from onepass.augment import Partial
from onepass.cli import main
from onepass.config import Config, changes, with_fields
from onepass.data import source
from onepass.engine import Outcome, Tell
from onepass.errors import Refused
from onepass.files import locked
from onepass.held_out import FirstTasks, LastTenth
from onepass.learner import SGD, Adam
from onepass.loop import Interrupted, Progress, run
from onepass.losses import lambda_for
from onepass.nets import Custom
from onepass.paper.item import Cell
from onepass.paper.tab_hp import Grid, cells
from onepass.pool import Processes
from onepass.probes import Drift
from onepass.recipes import recipe
from onepass.record import Record, records
from onepass.search import FIRST, Findings, Search, search
from onepass.space import AroundTheLaw, Fields, Range, fields, grid
from onepass.teachers import EMA, HypoExponential
from onepass.terminal import Live

NET = gated()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search")
    (folder / "net.py").write_text(NET)
    return folder


def tiny(folder: Path, word: str = "er", **changed: Any) -> Config:
    """An ordinary run of 25 updates, of which the last tenth of the images (one of each class) is held out."""
    made = replace(recipe(word, source("digits")), per_class=6, precision="fp32", held_out=LastTenth())
    return replace(made, net=Custom(f"{folder / 'net.py'}:build"), **changed)


def base(word: str = "er+mkd") -> Config:
    return replace(recipe(word, source("digits")), held_out=LastTenth())


def wait_for(what: Any, seconds: float = 400) -> None:
    until = time.monotonic() + seconds
    while not what() and time.monotonic() < until:
        time.sleep(0.005)
    assert what()


# ---- spaces


def test_a_range_is_of_the_kind_of_its_field() -> None:
    space = fields(base(), ["optim.lr=log:1e-4:1e-1", "memory=lin:10:40", "distill.weight=lin:1:9"])
    assert space.dimensions == {
        "memory": Range(10, 40, whole=True),
        "optim.lr": Range(1e-4, 0.1, log=True),
        "distill.weight": Range(1.0, 9.0),  # a number, or none
    }
    made = space.at({"memory": 12, "optim.lr": 0.01, "distill.weight": 2.0})
    assert (made.memory, made.optim) == (12, Adam(lr=0.01)) and made.held_out == LastTenth()


def test_a_range_with_points_is_a_list() -> None:
    dimensions = fields(base(), ["optim.lr=log:1e-4:1e-1:4", "batch-size=lin:1:4:9", "optim=Adam,SGD,Adam"]).dimensions
    assert dimensions == {"optim.lr": (1e-4, 1e-3, 1e-2, 1e-1), "batch_size": (1, 2, 3, 4), "optim": ("Adam", "SGD")} | {
        "batch_size": tuple(dict.fromkeys(round(1 + 3 * i / 8) for i in range(9)))
    }


def test_a_field_that_some_choices_have_is_asked_for_with_those_alone() -> None:
    space = fields(base("er"), ["optim.momentum=0,0.9", "optim=Adam,SGD", "optim.lr=0.1,0.01"])
    points = grid(space)
    assert len(points) == 6
    assert {space.at(p).optim for p in points} == {Adam(lr=lr) for lr in (0.1, 0.01)} | {
        SGD(lr=lr, momentum=m) for lr in (0.1, 0.01) for m in (0.0, 0.9)
    }
    assert [("optim.momentum" in p) for p in points] == [p["optim"] == "SGD" for p in points]


@pytest.fixture(scope="module")
def table() -> list[Cell]:
    return cells("full", "default")


@pytest.mark.parametrize("word", ["er", "dvc", "gsa", "er+sdp", "er+te"])
def test_the_papers_grid_has_the_points_of_its_table(word: str, table: list[Cell]) -> None:
    """But for the recipe's own, which the table adds."""
    mine = {cell.config.identity: cell.keys["recipe"] for cell in table if cell.keys["method"] == word}
    space = Grid(replace(recipe(word, source("cifar100"), memory=5000), held_out=LastTenth()))
    found = {space.at(point).identity for point in grid(space)}
    assert found <= set(mine) and all(mine[identity] == "yes" for identity in set(mine) - found) and len(mine) > 1


def test_a_method_with_a_suffix_has_its_methods_grid() -> None:
    assert len(grid(Grid(base("er+mkd")))) == 24 == len(grid(Grid(base("er-ace+sdp"))))  # digits have one augmentation, not two
    made = Grid(base("derpp+mkd"))
    assert {made.at(point).teacher for point in grid(made)[:50]} == {EMA(0.05)}  # alpha is DER++'s there
    with pytest.raises(Refused, match="no grid of the paper's for `ocm`"):
        _ = Grid(base("ocm")).dimensions


def test_around_the_law() -> None:
    space = AroundTheLaw(base())
    assert space.dimensions == {"alpha": Range(1e-3, 0.3, log=True), "lambda/law": Range(0.5, 2.0, log=True)}
    made = space.at({"alpha": 0.03, "lambda/law": 2.0})
    assert made.teacher == EMA(0.03) and made.distill is not None
    assert vars(made.distill)["weight"] == pytest.approx(2 * lambda_for(0.03), rel=1e-3)
    for word in "er", "er+te", "er+sdp":
        with pytest.raises(Refused, match="no alpha and lambda to search"):
            AroundTheLaw(base(word))


@pytest.mark.parametrize(
    "made",
    [
        {"optim": SGD(lr=0.02, momentum=0.5)},
        {"optim": Adam(lr=0.02), "memory": 33, "limit": 10},
        {"augment": Partial(padding=1)},
        {"teacher": HypoExponential(mu=10.0, c2=0.6), "distill": None, "infer": "student"},
        {},
    ],
)
def test_flags_say_what_changed(made: dict[str, Any]) -> None:
    before = base()
    after = replace(before, **made)
    texts = changes(before, after)
    assert texts is not None and with_fields(before, texts) == (after, set())


# ---- trials


class Scripted:
    """An engine whose runs come to what a function says, so that nothing is trained."""

    def __init__(self, accuracy: Any, slots: int = 1):
        self.accuracy, self.slots, self.stopped, self.seen = accuracy, slots, list[int](), list[Config]()

    @contextmanager
    def open(self, root: Path, tell: Tell, **_: Any) -> Iterator[Any]:
        self.root, self.tell, self.waiting = root, tell, list[tuple[int, Config]]()
        yield self

    def submit(self, i: int, config: Config) -> None:
        self.seen.append(config)
        self.waiting.append((i, config))

    def listen(self, seconds: float) -> None:
        for i, config in [self.waiting.pop(0)] if self.waiting else []:
            steps = self.accuracy(config)
            for samples, accuracy in steps:
                if i not in self.stopped and isinstance(accuracy, float):
                    self.tell(i, Progress(samples, steps[-1][0], 1.0, accuracy, samples))
            end = steps[-1][1]
            self.tell(i, Interrupted("") if i in self.stopped else Done(config, end) if isinstance(end, float) else end)

    def stop(self, i: int) -> None:
        self.stopped.append(i)

    def stop_all(self, now: bool = False) -> None:
        self.waiting.clear()


class Done(Record):
    def __init__(self, config: Config, accuracy: float):
        super().__init__(Path("nowhere") / config.folder)
        self.accuracy = accuracy

    @property
    def summary(self) -> dict[str, float]:
        return {"accuracy": self.accuracy}


def lr(config: Config) -> float:
    return float(vars(config.optim)["lr"])


def plan(folder: Path, *words: str, trials: int = 12, **more: Any) -> Search:
    return Search(fields(tiny(folder, **more.pop("config", {})), list(words) or ["optim.lr=log:1e-4:1e-1"]), trials, **more)


def test_those_in_the_worse_half_are_stopped_and_the_first_are_not(folder: Path, tmp_path: Path) -> None:
    def worse_and_worse(config: Config) -> list[tuple[int, float]]:
        n = len(engine.seen)
        return [(200, 0.9 - 0.01 * n), (400, 0.8 - 0.01 * n), (700, 0.7 - 0.01 * n), (1290, 0.6 - 0.01 * n)]

    engine = Scripted(worse_and_worse)
    found = search(plan(folder, config={"per_class": None}), tmp_path, engine=engine)  # type: ignore[arg-type]
    assert [t.state for t in found.trials] == ["done"] * FIRST + ["stopped"] * (12 - FIRST)
    assert [t.seen for t in found.trials] == [None] * FIRST + [400] * (12 - FIRST)  # the first measurement after a quarter
    assert [t.number for t in found.ranked] == list(range(12)) and engine.stopped == list(range(FIRST, 12))
    engine = Scripted(worse_and_worse)
    found = search(plan(folder, config={"per_class": None}, early=False), tmp_path, engine=engine)  # type: ignore[arg-type]
    assert [t.state for t in found.trials] == ["done"] * 12 and not engine.stopped


def test_the_same_seed_gives_the_same_trials_however_often_it_is_begun_anew(folder: Path, tmp_path: Path) -> None:
    def peak(config: Config) -> list[tuple[int, float]]:
        return [(100, 1 - abs(lr(config) - 0.01))]

    whole = search(plan(folder), tmp_path / "whole", engine=Scripted(peak))  # type: ignore[arg-type]
    for trials in (1, 4, 5, 11, 12):
        pieces = search(plan(folder, trials=trials), tmp_path / "pieces", engine=Scripted(peak))  # type: ignore[arg-type]
        assert len(pieces.trials) == trials
    assert pieces == whole
    assert len({str(t.point) for t in whole.trials}) == 12
    other = search(plan(folder, config={"seed": 1}), tmp_path / "other", engine=Scripted(peak))  # type: ignore[arg-type]
    assert other.trials[0].point != whole.trials[0].point


def test_a_point_that_was_tried_is_not_run_again(folder: Path, tmp_path: Path) -> None:
    engine = Scripted(lambda config: [(100, lr(config))], slots=2)
    found = search(plan(folder, "optim.lr=0.1,0.01", trials=9), tmp_path, engine=engine)  # type: ignore[arg-type]
    assert len(engine.seen) == 2 and len({c.identity for c in engine.seen}) == 2
    assert len(found.trials) == 9 and {(t.point["optim.lr"], t.accuracy) for t in found.trials} == {("0.1", 0.1), ("0.01", 0.01)}


def test_a_grid_has_each_point_once_in_an_order_of_the_seed(folder: Path, tmp_path: Path) -> None:
    words = ("optim.lr=log:1e-4:1e-1:4", "memory=10,20,30")
    engine = Scripted(lambda config: [(100, lr(config))])
    few = search(plan(folder, *words, trials=5, sampler="grid"), tmp_path, engine=engine)  # type: ignore[arg-type]
    found = search(plan(folder, *words, trials=10**9, sampler="grid"), tmp_path, engine=engine)  # type: ignore[arg-type]
    assert found.trials[:5] == few.trials and len(found.trials) == len({str(t.point) for t in found.trials}) == 12 == len(
        engine.seen
    )
    assert found.best is not None and found.best.point["optim.lr"] == 0.1
    assert set(found.importance) == {"optim.lr", "memory"} and found.importance["optim.lr"] > 0.9


def test_a_mistake_that_is_not_the_points_ends_the_search_and_loses_no_trial(folder: Path, tmp_path: Path) -> None:
    broken = Scripted(lambda config: [(100, Refused("The disk is full."))])
    with pytest.raises(Refused, match="The disk is full"):
        search(plan(folder, trials=3), tmp_path, engine=broken)  # type: ignore[arg-type]
    mended = Scripted(lambda config: [(100, 0.5)])
    found = search(plan(folder, trials=3), tmp_path, engine=mended)  # type: ignore[arg-type]
    assert [t.state for t in found.trials] == ["done"] * 3 and broken.seen == mended.seen[:1]


def test_values_that_do_not_go_together_are_no_trials_of_a_grid_and_failed_ones_of_tpe(folder: Path, tmp_path: Path) -> None:
    space = fields(tiny(folder, "er+sdp"), ["teacher.mu=10,100", "teacher.c2=0.5,0.9"])
    assert len(grid(space)) == 3  # mu 10 and c2 0.9 have no two rates
    engine = Scripted(lambda config: [(100, 0.5)])
    found = search(Search(space, 12), tmp_path, engine=engine)  # type: ignore[arg-type]
    assert {t.state for t in found.trials if t.point == {"teacher.mu": "10", "teacher.c2": "0.9"}} == {"failed"}
    assert {t.state for t in found.trials} == {"done", "failed"} and "has no two rates" in "".join(t.why for t in found.trials)


# ---- trials that are runs


def words(folder: Path, root: Path, trials: int) -> list[str]:
    return shlex.split(
        f"search er --space optim.lr=log:1e-4:1e-1 memory=lin:5:30 --trials {trials} --net {folder / 'net.py'}:build "
        f"--per-class 6 --precision fp32 --workers 1 --runs {root}"
    )


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    """Twenty trials that nobody disturbs."""
    assert main(words(folder, folder / "whole", 20)) == 0
    return folder / "whole"


def findings(root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Findings:
    """What is there, without doing anything."""
    made = fields(tiny(folder, "er"), ["optim.lr=log:1e-4:1e-1", "memory=lin:5:30"])
    found = search(Search(made, 20), root, engine=Scripted(lambda config: 1 / 0))  # type: ignore[arg-type]
    return found


def waits(root: Path) -> bool:
    """Whether the last run has been at the same checkpoint for a while."""
    last = max(root.rglob("config.json"), key=lambda file: file.stat().st_mtime_ns).parent / "checkpoint.safetensors"
    return last.is_file() and time.time() - last.stat().st_mtime > 1


def test_killed_half_way_and_resumed_twenty_trials_are_twenty(
    folder: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SIGKILL to the process in the middle of a run; then the same command."""
    root, gate = folder / "killed", folder / "gate"
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "src"), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-m", "onepass.cli", *words(folder, root, 20)], env=env, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: len(list(root.rglob("done.json"))) >= 9)
        gate.write_text("8")  # in the second task
        wait_for(lambda: waits(root))
    finally:
        process.kill()
        assert process.wait() == -signal.SIGKILL
        gate.unlink(missing_ok=True)
    ended = len(list(root.rglob("done.json")))
    assert 9 <= ended < 20 and len(list(root.rglob("checkpoint.safetensors"))) >= 1
    capsys.readouterr()
    assert main(words(folder, root, 20)) == 0
    said = capsys.readouterr()
    mine, theirs = findings(root, folder, monkeypatch), findings(whole, folder, monkeypatch)
    assert [t.number for t in mine.trials] == list(range(20)) and len({str(t.point) for t in mine.trials}) == 20
    assert mine == theirs  # the same points, the same accuracies, the same ones stopped
    made = records(root)
    assert len(made) == 20 == len({r.path for r in made})
    assert len([r for r in made if r.env.get("resumed")]) == 1
    begun = {int(number) for number in re.findall(r"^trial (\d+) ", said.err, re.M)}
    assert begun == set(range(min(begun), 20)) and min(begun) >= ended  # what was over is not begun again
    assert main(words(folder, root, 20)) == 0  # and again: nothing is left to do
    again = capsys.readouterr()
    assert again.out == said.out and "trial " not in again.err.partition("\n")[2]


def test_what_is_printed_at_the_end(
    folder: Path, whole: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(words(folder, whole, 20)) == 0
    out = capsys.readouterr().out
    found = findings(whole, folder, monkeypatch)
    rows = [line.split() for line in out.splitlines()[2:22]]
    assert [int(row[0]) for row in rows] == [t.number for t in found.ranked]
    done = [float(row[3]) for row in rows if len(row) == 4]
    assert done == sorted(done, reverse=True) and len(done) >= FIRST
    figures = [Path(line) for line in out.splitlines() if "importance." in line]
    assert [p.suffix for p in figures] == [".svg", ".png", ".pdf"] and all(p.stat().st_size > 1000 for p in figures)
    assert "memory" in figures[0].read_text() and "optim.lr" in figures[0].read_text()
    (best,) = [line.removeprefix("best: ") for line in out.splitlines() if line.startswith("best: ")]
    program, *command = shlex.split(best)
    assert program == "onepass" and main([*command, "--explain"]) == 0
    said = capsys.readouterr().out
    assert found.best is not None and f"{found.best.point['optim.lr']}" in said and "held_out" in said
    value = {line.split()[0]: line.split()[1] for line in said.splitlines() if len(line.split()) == 3}
    assert value["held_out"] == "none" and value["memory"] == str(found.best.point["memory"])


def test_a_trial_is_an_ordinary_run_and_one_that_was_stopped_keeps_its_checkpoint(
    folder: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = findings(whole, folder, monkeypatch)
    space = fields(tiny(folder, "er"), ["optim.lr=log:1e-4:1e-1", "memory=lin:5:30"])
    paths = {t.number: whole / space.at(t.point).folder for t in found.trials}
    stopped = [t for t in found.trials if t.state == "stopped"]
    assert stopped and all(t.number >= FIRST for t in stopped)
    for t in found.trials:
        record = Record(paths[t.number])
        if t.state == "done":
            assert record.done is not None and record.summary["accuracy"] == t.accuracy
            assert record.path == run(space.at(t.point), whole).path  # at once
        else:
            assert record.done is None and (record.path / "checkpoint.safetensors").is_file()
            assert t.seen is not None and 12 <= t.seen < 50
    log = [line for line in (next(whole.rglob("trials.jsonl"))).read_text().splitlines()]
    assert log and all(line.startswith("{") for line in log)


def test_two_workers_try_as_many_and_none_twice(folder: Path, tmp_path: Path) -> None:
    heard: list[tuple[int, Progress | Outcome]] = []
    made = Search(fields(tiny(folder, "er"), ["optim.lr=log:1e-4:1e-1"]), 6)
    found = search(made, tmp_path, engine=Processes(2), tell=lambda i, event: heard.append((i, event)))
    assert [t.state for t in found.trials].count("done") >= FIRST and len(records(tmp_path)) == len(found.trials) == 6
    assert {i for i, event in heard if not isinstance(event, Progress)} == set(range(6))


def test_one_that_diverges_is_the_worst_and_the_search_goes_on(folder: Path, tmp_path: Path) -> None:
    made = Search(fields(tiny(folder, "er"), ["optim.lr=1e30,1e-3"]), 2, "grid")
    found = search(made, tmp_path, engine=Processes(1))
    by_rate = {t.point["optim.lr"]: t for t in found.trials}
    assert by_rate["1e-3"].state == "done" and by_rate["1e30"].state == "stopped" and "it diverged" in by_rate["1e30"].why
    assert found.best == by_rate["1e-3"] == found.ranked[0] and found.importance == {}


def test_ctrl_c_stops_it_and_the_same_command_goes_on(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Search(fields(tiny(folder, "er"), ["optim.lr=log:1e-4:1e-1"]), 3)

    def interrupt(i: int, event: Progress | Outcome) -> None:
        if i == 1 and isinstance(event, Progress) and event.samples == 20:
            signal.raise_signal(signal.SIGINT)

    found = search(made, tmp_path, engine=Processes(1), tell=interrupt)
    assert found.stopped and [t.state for t in found.trials] == ["done", "open"]
    again = search(made, tmp_path, engine=Processes(1))
    assert not again.stopped and [t.state for t in again.trials] == ["done"] * 3
    assert again.trials[1].point == found.trials[1].point
    assert [r.env["resumed"][0]["at"] for r in records(tmp_path) if r.env.get("resumed")] == [22]


def test_ctrl_c_in_the_first_of_two_searches_begins_no_second(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(live: Live, i: int, event: Progress | Outcome) -> None:
        if isinstance(event, Progress) and event.samples == 20:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Live, "tell", interrupted)
    _, *flags = words(folder, tmp_path, 2)
    assert main(["search", "er", "er-ace", *flags[1:]]) == 130
    assert len(list(tmp_path.rglob("search.json"))) == 1
    assert capsys.readouterr().err.count("the search was stopped") == 1


def test_a_line_that_a_power_cut_cut_short_is_left_out(folder: Path, tmp_path: Path) -> None:
    engine = Scripted(lambda config: [(100, 0.5)])
    first = search(plan(folder, trials=2), tmp_path, engine=engine)  # type: ignore[arg-type]
    (file,) = tmp_path.rglob("trials.jsonl")
    with open(file, "a") as log:
        log.write('{"op_code": 4, "worker')
    assert search(plan(folder, trials=2), tmp_path, engine=engine) == first  # type: ignore[arg-type]


def test_two_processes_do_not_search_the_same(folder: Path, tmp_path: Path) -> None:
    made = plan(folder, trials=1)
    (tmp_path / made.folder).mkdir(parents=True)
    with locked(tmp_path / made.folder / "lock"), pytest.raises(Refused, match="is being searched by another process"):
        search(made, tmp_path, engine=Scripted(lambda config: [(100, 0.5)]))  # type: ignore[arg-type]


# ---- what it refuses


WRONG = {
    "er+mkd --space optim.rate=log:1e-4:1": "There is no field `optim.rate`; did you mean `optim.lr`?",
    "er --space teacher.alpha=log:1e-3:0.3": "There is no field `teacher.alpha`",
    "er --space optim=log:1:2": "is a range of numbers, and `optim` is none",
    "er --space optim=Adam,SGE": "There is no `optim` `SGE`; did you mean `SGD`?",
    "er --space memory=1,2.5": "`memory=2.5` is not a whole number",
    "er --space memory=lin:1.5:9": "`memory=1.5` is not a whole number",
    "er --space optim.lr=fast,slow": "`optim.lr=fast` is not a number",
    "er --space optim.lr=log:1e-1:1e-4": "is empty: LO has to be below HI",
    "er --space optim.lr=log:0:1": "has no logarithm",
    "er --space optim.lr=log:1e-4": "is not a range; write log:LO:HI",
    "er --space optim.lr=lin:0.1:0.2:1": "has 1 points; take at least 2",
    "er+mkd --space teacher.alpha=lin:0.5:3": "`alpha=3.0`",
    "er --space optim.lr": "says no values",
    "er --space optim.lr=0.1": "has one point, and there is nothing to choose",
    "er --space held_out=none,LastTenth": "`held_out` is part of what judges",
    "er --space seed=0,1,2": "`seed` is part of what judges",
    "er": "`--space` says what is searched, and it is missing",
    "--space optim.lr=0.1,0.2": "name a method",
    "er --space paper optim.lr=0.1,0.2": "`paper` is a whole space",
    "ocm --space paper": "There is no grid of the paper's for `ocm`",
    "er --space alpha": "`er` has no alpha and lambda to search",
    "alpha er+mkd --space optim.lr=0.1,0.2": "has its space",
    "er --space optim.lr=log:1e-4:1 --trials 0": "`--trials 0` would try nothing",
    "er --space optim.lr=log:1e-4:1 --trials many": "is not a whole number",
    "er --space optim.lr=log:1e-4:1 --sampler tpa": "There is no sampler `tpa`; did you mean `tpe`?",
    "er --space optim.lr=log:1e-4:1 --sampler grid": "`optim.lr` is a range without them; list its values (optim.lr=a,b,c)",
    "er --space optim.lr=log:1e-4:1 --held-out last-third": "did you mean `last-tenth`?",
    "er --space optim.lr=log:1e-4:1 --held-out first-tasks:9": "is more than the stream's 5 tasks",
    "er --space optim.lr=log:1e-4:1 --held-out first-tasks:0": "leaves nothing of the stream",
    "er --space optim.lr=log:1e-4:1 --per-class 1": "holding it out leaves none to learn from",
    "gsa --space optim.lr=log:1e-4:1 --stream blurry": "cannot be run on a `Blurry` stream",
    "er --space optim.lr=log:1e-4:1 --seeds 0 1": "give `--seeds` one number",
    "er --space optim.lr=log:1e-4:1 --optim.rate 3": "There is no field `optim.rate`",
    "er --space optim.lr=log:1e-4:1 --engine rye": "There is no engine `rye`",
}


@pytest.mark.parametrize("asked", WRONG)
def test_a_mistake_is_one_line_and_nothing_is_written(
    asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["search", *shlex.split(asked)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("onepass: ") and WRONG[asked] in line
    assert list(tmp_path.iterdir()) == []


def test_without_optuna_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(["search", "er", "--space", "optim.lr=log:1e-4:1"]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("onepass: ")]
    assert "pip install 'onepass[optuna]'" in line and list(tmp_path.iterdir()) == []


def test_a_search_has_to_have_something_to_judge_by(folder: Path) -> None:
    space = {"optim.lr": Range(0.1, 0.2)}
    for config, what in (
        (replace(base(), held_out=None), "`held_out` is none"),
        (replace(base(), probes=(Drift(),)), "`probes` has"),
    ):
        with pytest.raises(Refused, match=what):
            Search(Fields(config, space), 3)


def test_what_a_protocol_is_called(capsys: pytest.CaptureFixture[str]) -> None:
    call = ["search", "alpha", "--held-out", "first-tasks:2", "--explain", "--seeds", "3"]
    assert main(call) == 0
    out = capsys.readouterr().out
    assert "lambda/law" in out and "er+mkd, seed 3" in out and "digits-clear-held-out/er+mkd/m20/s3-search-" in out
    assert "held_out.tasks" in out and FirstTasks(2).tasks == 2
