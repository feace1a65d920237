"""The rules that say when a task starts, on streams whose tasks are known and against a slow loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from onepass.boundaries import Boundaries, NewClass, Oracle
from onepass.errors import Refused
from onepass.seeds import Seeds
from onepass.stream import Batch, Blurry, Clear, Pass, Spec


def changes(rule: Boundaries, batches: list[list[int]], spec: Spec) -> list[int]:
    """The batches with which a task starts, the rule being asked as the protocol says: not on the first."""
    seen, since, starts = torch.zeros(spec.classes, dtype=torch.bool), 0, []
    for i, classes in enumerate(batches):
        present = torch.zeros(spec.classes, dtype=torch.bool)
        present[classes] = True
        if i and rule(present, seen, since, spec):
            starts.append(i)
            since = 0
        seen, since = seen | present, since + 1
    return starts


def classes_of(stream: Pass, size: int = 10) -> list[list[int]]:
    return [b.y.tolist() for b in stream.batches(size)]


def over(kind: Clear | Blurry, n: int, classes: int, seed: int = 0) -> Pass:
    data = Batch(torch.zeros(n, 1, 1, 1, dtype=torch.uint8), torch.arange(n) % classes)
    return kind.over(data, tuple(map(str, range(classes))), Seeds(seed))


def naive(batches: list[list[int]], lag: int) -> list[int]:
    """A class never seen before starts a task, unless one started (the first: at batch 0) fewer than `lag` ago."""
    seen, last, starts = set(batches[0]), 0, []
    for i in range(1, len(batches)):
        if not set(batches[i]) <= seen and i - last >= lag:
            starts.append(i)
            last = i
        seen |= set(batches[i])
    return starts


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("n", "classes", "tasks"), [(600, 12, 6), (630, 10, 5), (300, 4, 4), (200, 4, 1)])
def test_the_oracle_on_a_clear_stream_fires_exactly_where_tasks_end(n: int, classes: int, tasks: int, seed: int) -> None:
    stream = over(Clear(tasks), n, classes, seed)
    batches = classes_of(stream)
    starts = np.cumsum([0, *(len(b) for b in batches)])[changes(Oracle(), batches, stream.spec)].tolist()
    assert starts == list(stream.task_ends[:-1])


def test_the_oracle_on_a_blurry_stream_fires_with_the_first_image_of_each_task() -> None:
    stream = over(Blurry(5, 20.0), 1000, 10)
    batches = classes_of(stream)
    firsts = [next(i for i, b in enumerate(batches) if set(b) & set(task)) for task in stream.spec.tasks]
    assert changes(Oracle(), batches, stream.spec) == sorted(set(firsts) - {0}) and len(set(firsts)) == 5


def test_the_oracle_does_not_fire_for_a_further_class_of_a_task_already_met() -> None:
    spec = Spec(6, (1, 1, 1), tasks=((0, 1, 2), (3, 4, 5)))
    assert changes(Oracle(), [[0], [1], [0, 2], [4], [3, 5], [0]], spec) == [3]


def test_the_oracle_of_a_stream_without_tasks_is_refused() -> None:
    none = torch.zeros(3, dtype=torch.bool)
    with pytest.raises(Refused, match="no tasks.*NewClass"):
        Oracle()(none, none, 1, Spec(3, (1, 1, 1)))


@pytest.mark.parametrize("lag", [1, 2, 5, 30])
def test_the_rule_of_new_classes_equals_a_naive_loop(lag: int) -> None:
    rng, fired = np.random.RandomState(lag), 0
    for _ in range(30):
        batches = [sorted(set(rng.randint(0, 1 + i // 4, size=3).tolist())) for i in range(80)]
        starts = changes(NewClass(lag), batches, Spec(20, (1, 1, 1)))
        assert starts == naive(batches, lag)
        fired += len(starts)
    assert fired


def test_a_class_that_arrives_during_the_lag_starts_nothing_later_either() -> None:
    batches = [[0], [0], [0], [1], [2], [2], [2], [2], [3]]
    assert changes(NewClass(3), batches, Spec(4, (1, 1, 1))) == [3, 8]


def test_a_known_class_starts_no_task_however_late() -> None:
    assert changes(NewClass(1), [[0, 1]] + [[0], [1]] * 50, Spec(2, (1, 1, 1))) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_blurry_cifar10_has_four_inferred_changes(seed: int) -> None:
    """One a task, within 200 batches before its nominal start."""
    stream = over(Blurry(5, 500.0), 50_000, 10, seed)
    starts = changes(NewClass(lag=100), classes_of(stream), stream.spec)
    assert len(starts) == 4
    for start, end in zip(starts, stream.task_ends, strict=False):
        assert end / 10 - 220 < start < end / 10


@pytest.mark.parametrize("lag", [0, -5])
def test_a_lag_within_a_batch_is_refused(lag: int) -> None:
    with pytest.raises(Refused, match=f"lag={lag}"):
        NewClass(lag)


def test_rules_are_values() -> None:
    assert NewClass() == NewClass(lag=100) != NewClass(50) and Oracle() == Oracle() and len({NewClass(), NewClass()}) == 1
