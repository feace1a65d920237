"""Probes: what is measured when, of which network, and that a run with them has the bits of a run without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from onepass.config import Config
from onepass.data import source
from onepass.learner import Adam, Learner
from onepass.loop import prepare, run
from onepass.nets import ResNet18
from onepass.probes import Moment, Predictions
from onepass.recipes import recipe
from onepass.record import Record
from onepass.stream import Batch, Pass

ENDS, LENGTH = (8, 16, 24, 32, 40), 40


def small(word: str = "er+mkd", **changes: Any) -> Config:
    config = recipe(word, source("digits"), stream=changes.pop("kind", "clear"), memory=9)
    return replace(config, **{"net": ResNet18(width=2), "per_class": 4, "probes": (Predictions(every=10),)} | changes)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return run(small(), tmp_path_factory.mktemp("probes"))


def trained(config: Config, samples: int = 20) -> tuple[Learner, Pass, Batch]:
    stream, test, _ = prepare(config)
    learner = config.learner(stream.spec, sharp=stream.sharp)
    for batch in stream.batches(2):
        if learner.clock.samples < samples:
            learner.observe(batch)
    return learner, stream, test


def asked(learner: Learner, stream: Pass, test: Batch, moment: Moment) -> dict[str, np.ndarray]:
    return dict(Predictions(every=10)(learner, stream, test, moment))


# ---- when


def test_tasks_end_where_they_do_and_where_the_stream_does() -> None:
    def ends(before: int, after: int, last: bool = False) -> tuple[bool, int]:
        moment = Moment(before, after, (8, 16), last)
        return moment.task_end, moment.ended

    assert ends(6, 8) == (True, 1) and ends(14, 16) == (True, 2)
    assert ends(4, 6) == (False, 0) and ends(8, 10) == (False, 1)
    assert ends(7, 9) == (True, 1)  # a blurry stream's batch goes over a nominal end
    assert ends(6, 18) == (True, 2)  # even over two
    assert ends(10, 12, last=True) == (True, 1)


def test_predictions_are_due_at_task_ends_and_every_n_images() -> None:
    def due(every: int | None) -> list[int]:
        moments = [Moment(t, t + 3, (8, 16), t + 3 == 21) for t in range(0, 21, 3)]
        return [m.after for m in moments if Predictions(every).due(m)]

    assert due(None) == [9, 18, 21]
    assert due(5) == [6, 9, 12, 15, 18, 21]  # 5, 8 and 10, ... are passed within a batch of 3
    assert due(1) == [3, 6, 9, 12, 15, 18, 21]
    assert due(100) == [9, 18, 21]


def test_a_run_is_probed_at_each_task_end_and_every_n_images_between(record: Record) -> None:
    for which in "student", "teacher", "average":
        times, _ = record.results.at(f"task/{which}")
        assert times.tolist() == list(ENDS)
    assert record.results.at("curve/average")[0].tolist() == [10, 20, 30]  # 40 is the end of a task
    assert not [name for name in record.results.arrays if name.startswith(("curve/student", "curve/teacher"))]
    times, _ = record.results.curve()
    assert times.tolist() == sorted({*ENDS, 10, 20, 30})


def test_without_a_teacher_there_is_only_the_student(tmp_path: Path) -> None:
    arrays = run(small("er"), tmp_path).results.arrays
    assert {name.partition("@")[0] for name in arrays} == {"y", "task/student", "curve/student"}


def test_without_every_there_is_no_curve(tmp_path: Path) -> None:
    arrays = run(small("er", probes=(Predictions(),)), tmp_path).results.arrays
    assert {name.partition("@")[0] for name in arrays} == {"y", "task/student"}


# ---- what


def test_each_network_is_asked_and_answers_as_predict_does() -> None:
    learner, stream, test = trained(small(optim=Adam(lr=0.02), net=ResNet18(width=4)), 24)
    out = asked(learner, stream, test, Moment(22, 24, ENDS, False))
    tasks = [c for task in stream.spec.tasks[:3] for c in task]
    rows = torch.isin(test.y, torch.tensor(tasks))
    assert list(out) == ["task/student", "task/teacher", "task/average"]
    for name, predicted in out.items():
        assert predicted.dtype == np.int16 and len(predicted) == len(test)
        assert predicted[rows].tolist() == learner.predict(test.x[rows], name.partition("/")[2]).tolist()  # pyright: ignore
        assert (predicted[~rows] == -1).all() and (predicted[rows] >= 0).all()
    assert len({tuple(p) for p in out.values()}) == 3  # three networks, three opinions


def test_within_a_task_its_classes_are_asked_for_and_by_the_network_that_predicts() -> None:
    learner, stream, test = trained(small())
    out = asked(learner, stream, test, Moment(18, 20, ENDS, False))  # in the third task
    assert list(out) == ["curve/average"]
    seen = [c for task in stream.spec.tasks[:3] for c in task]
    assert (out["curve/average"] >= 0).tolist() == torch.isin(test.y, torch.tensor(seen)).tolist()


def test_tasks_not_yet_seen_are_minus_one(record: Record) -> None:
    stream, test, _ = prepare(small())
    for which in "student", "teacher", "average":
        _, predictions = record.results.at(f"task/{which}")
        for t, row in enumerate(predictions):
            seen = [c for task in stream.spec.tasks[: t + 1] for c in task]
            assert (row >= 0).tolist() == [int(y) in seen for y in test.y]
    times, predictions = record.results.at("curve/average")
    for time, row in zip(times, predictions, strict=True):
        begun = sum(end <= time for end in ENDS) + 1
        seen = [c for task in stream.spec.tasks[:begun] for c in task]
        assert (row >= 0).tolist() == [int(y) in seen for y in test.y]


def test_a_stream_cut_short_asks_for_the_tasks_it_came_to(tmp_path: Path) -> None:
    record = run(small("er", limit=12), tmp_path)
    times, predictions = record.results.at("task/student")
    assert times.tolist() == [8, 12]
    tasks = record.results.tasks
    assert (predictions[-1] >= 0).tolist() == np.isin(record.results.arrays["y"], tasks[0] + tasks[1]).tolist()
    assert record.done is not None and 0 <= record.done["summary"]["accuracy"] <= 1


def test_a_blurry_stream_is_probed_at_nominal_ends(tmp_path: Path) -> None:
    record = run(small("er", kind="blurry", batch_size=3), tmp_path)
    times, predictions = record.results.at("task/student")
    assert times.tolist() == [9, 18, 24, 33, 40]  # the first batch that goes over each
    tasks, y = record.results.tasks, record.results.arrays["y"]
    for t, row in enumerate(predictions):
        assert (row >= 0).tolist() == np.isin(y, sum(tasks[: t + 1], [])).tolist()


# ---- and nothing moves


@pytest.mark.parametrize(
    "probes", [(), (Predictions(),), (Predictions(every=2), Predictions(every=3))], ids=["none", "ends", "often"]
)
def test_a_run_has_the_same_bits_whatever_is_probed(record: Record, tmp_path: Path, probes: Any) -> None:
    other = run(small(probes=probes), tmp_path)
    assert other.path != record.path and other.path.name == record.path.name  # the same run by its identity
    assert (other.path / "log.jsonl").read_bytes() == (record.path / "log.jsonl").read_bytes()
    mine, theirs = (load_file(r.path / "model.safetensors") for r in (other, record))
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[k], theirs[k]) for k in mine)


def test_a_probe_leaves_everything_of_the_learner_as_it_was() -> None:
    learner, stream, test = trained(small())
    before = {k: v.clone() for k, v in learner.state_dict().items()}
    modes = [m.training for net in (learner.student, *learner.followers.values()) for m in net.modules()]
    generator = torch.get_rng_state()
    asked(learner, stream, test, Moment(22, 24, ENDS, False))
    asked(learner, stream, test, Moment(18, 20, ENDS, False))
    after = learner.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)
    assert modes == [m.training for net in (learner.student, *learner.followers.values()) for m in net.modules()]
    assert torch.equal(generator, torch.get_rng_state())
