"""Probes: what is measured when, of which network, and that a run with them has the bits of a run without."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.neighbors import NearestCentroid

from onepass.config import Config
from onepass.data import source
from onepass.errors import Refused
from onepass.learner import Adam, Learner
from onepass.loop import prepare, run
from onepass.nets import ResNet18
from onepass.probes import NCM, Drift, MemoryFeatures, Moment, Predictions, nearest_class_mean
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


# ---- nearest class mean, drift, features of the memory

EVERYTHING = (Predictions(every=10), NCM(), Drift(every=2, rows=5, of=("student", "average")), MemoryFeatures())


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return run(small(probes=EVERYTHING), tmp_path_factory.mktemp("everything"))


def raw_features(learner: Learner, which: Any, x: torch.Tensor) -> torch.Tensor:
    """One image after another through a copy of the network."""
    net: Any = deepcopy(learner.network(which)).eval()
    with torch.no_grad():
        return torch.cat([net.core.features(image[None].float() / 255) for image in x])


def test_nearest_class_mean_is_that_of_sklearn() -> None:
    rng = torch.Generator().manual_seed(0)
    y = torch.tensor([1, 4, 2])[torch.randint(3, (40,), generator=rng)]
    remembered = torch.randn(40, 5, generator=rng) + 2 * torch.eye(5)[y]
    asked = torch.randn(200, 5, generator=rng) + 2 * torch.eye(5)[torch.randint(5, (200,), generator=rng)]
    theirs = NearestCentroid().fit(remembered.numpy(), y.numpy()).predict(asked.numpy())
    assert nearest_class_mean(remembered, y, asked).tolist() == theirs.tolist()
    naive = [min(sorted(set(y.tolist())), key=lambda c: float((remembered[y == c].mean(0) - f).norm())) for f in asked]
    assert theirs.tolist() == naive


def test_ncm_is_asked_at_the_end_of_the_student_and_of_what_predicts() -> None:
    learner, stream, test = trained(small(precision="fp32"))
    moment = Moment(18, 20, (8, 16, 20), last=True)
    out = dict(NCM()(learner, stream, test, moment))
    assert list(out) == ["ncm/student", "ncm/average"]
    assert NCM().due(moment) and not NCM().due(Moment(6, 8, ENDS, False))
    tasks = [c for task in stream.spec.tasks[:3] for c in task]
    rows, memory = torch.isin(test.y, torch.tensor(tasks)), learner.memory.all()
    for name, predicted in out.items():
        which = name.partition("/")[2]
        h = raw_features(learner, which, memory.x)
        means = {c: h[memory.y == c].mean(0) for c in sorted(set(memory.y.tolist()))}
        naive = [min(means, key=lambda c: float((means[c] - f).norm())) for f in raw_features(learner, which, test.x[rows])]
        assert predicted.dtype == np.int16 and (predicted[~rows] == -1).all()
        assert predicted[rows].tolist() == naive and len(set(naive)) > 1
    alone, stream, test = trained(small("er"))
    assert list(dict(NCM()(alone, stream, test, moment))) == ["ncm/student"]


def test_drift_is_the_mean_norm_of_what_one_update_changes() -> None:
    """Before and after batch 11 (of 2), in the third task: images of the first two, by hand."""
    learner, stream, test = trained(small(optim=Adam(lr=0.02)))
    probe = Drift(every=5, of=("student", "average", "teacher"))
    moment = Moment(20, 22, ENDS, False, 10)
    old = [c for task in stream.spec.tasks[:2] for c in task]
    past = [i for i, c in enumerate(learner.memory.y[: len(learner.memory)].tolist()) if c in old]
    x = learner.memory.x[past].clone()
    assert probe.due(moment) and 0 < len(past) < len(learner.memory)
    then = {which: raw_features(learner, which, x) for which in probe.of}
    moment.seen[probe] = probe.before(learner, stream, moment)
    learner.observe(next(stream.batches(2, start=20)))
    out = dict(probe(learner, stream, test, moment))
    assert list(out) == ["drift/student", "drift/average", "drift/teacher"]
    for which in probe.of:
        moved = raw_features(learner, which, x) - then[which]
        naive = sum(float((row**2).sum() ** 0.5) for row in moved.double()) / len(past)
        assert naive > 0 and float(out[f"drift/{which}"]) == pytest.approx(naive, rel=1e-3)


def test_drift_looks_at_rows_all_over_the_memory_and_never_at_what_came_since() -> None:
    learner, stream, _ = trained(small())
    moment = Moment(20, 22, ENDS, False, 10)
    x, looked = Drift(rows=3).before(learner, stream, moment)
    old = torch.isin(learner.memory.y[: len(learner.memory)], torch.tensor(sum(stream.spec.tasks[:2], ()))).nonzero()[:, 0]
    assert torch.equal(x, learner.memory.x[old[[0, len(old) // 3, 2 * len(old) // 3]]]) and len(looked["student"]) == 3
    learner.memory.x.zero_()
    assert x.any()


def test_drift_is_due_every_n_batches_once_a_task_is_over(measured: Record) -> None:
    def due(batches: int, before: int) -> bool:
        return Drift(every=5).due(Moment(before, before + 2, ENDS, False, batches))

    assert not due(0, 0) and not due(5, 6) and due(5, 8) and not due(6, 10) and due(10, 20)
    for which in "student", "average":
        times, drift = measured.results.at(f"drift/{which}")
        assert times.tolist() == list(range(10, 41, 4))  # after batches 5, 7, ... of 2, which are numbered from 0
        assert drift.shape == times.shape and (drift > 0).all()


def test_drift_on_a_blurry_stream_and_of_networks_that_there_are(tmp_path: Path) -> None:
    record = run(small("er", kind="blurry", batch_size=3, probes=(Drift(every=1, of=("student", "average")),)), tmp_path)
    times, drift = record.results.at("drift/student")
    assert (
        times.tolist() == [12, 15, 18, 21, 24, 27, 30, 33, 36, 40] and (drift > 0).all()
    )  # 9 went over the first end; none is left alone
    assert not [name for name in record.results.arrays if name.startswith("drift/average")]


def test_no_rows_and_no_batches_measure_nothing() -> None:
    for wrong in {"every": 0}, {"rows": 0}:
        with pytest.raises(Refused, match=f"`{next(iter(wrong))}=0` measures no drift"):
            Drift(**wrong)


def test_what_is_remembered_is_kept_as_features(measured: Record) -> None:
    arrays, model = measured.results.arrays, load_file(measured.path / "model.safetensors")
    (features,), (y,) = measured.results.at("memory/features")[1], measured.results.at("memory/y")[1]
    assert features.shape == (9, model["core.classifier.weight"].shape[1]) and features.dtype == np.float32
    assert y.shape == (9,) and set(y) <= set(arrays["y"].tolist())
    learner, stream, test = trained(small(precision="fp32"), 40)
    out = dict(MemoryFeatures(of="average")(learner, stream, test, Moment(38, 40, ENDS, True)))
    np.testing.assert_allclose(out["memory/features"], raw_features(learner, "average", learner.memory.x), rtol=1e-4, atol=1e-5)
    assert out["memory/y"].tolist() == learner.memory.y.tolist()


# ---- and nothing moves


@pytest.mark.parametrize(
    "probes", [(), (Predictions(every=2), Predictions(every=3)), EVERYTHING], ids=["none", "often", "everything"]
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
    moment = Moment(18, 20, ENDS, True, 10)
    moment.seen.update({p: p.before(learner, stream, moment) for p in EVERYTHING if isinstance(p, Drift)})
    for probe in EVERYTHING:
        assert dict(probe(learner, stream, test, moment))
    after = learner.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)
    assert modes == [m.training for net in (learner.student, *learner.followers.values()) for m in net.modules()]
    assert torch.equal(generator, torch.get_rng_state())
