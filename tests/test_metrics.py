"""Each metric against loops that follow its definition."""

from math import isnan, nan

import numpy as np
import pytest

from onepass import metrics

TASKS = ((0, 1), (2, 3, 4), (5,), (6, 7))


def recorded(seed: int, rows: int = 4, n: int = 300, dtype: type[np.signedinteger] = np.int16) -> tuple[np.ndarray, np.ndarray]:
    """Predictions at each task end, -1 for the tasks to come."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 8, n).astype(dtype)
    predictions = rng.integers(0, 8, (rows, n)).astype(dtype)
    for t in range(rows):
        predictions[t, [not any(label in task for task in TASKS[: t + 1]) for label in y]] = -1
    return predictions, y


def same(a: float, b: float) -> bool:
    return a == pytest.approx(b, nan_ok=True)


def naive_matrix(predictions: np.ndarray, y: np.ndarray) -> list[list[float]]:
    matrix = [[nan] * len(TASKS) for _ in predictions]
    for t, prediction in enumerate(predictions):
        for j, task in enumerate(TASKS):
            right = [p == label for p, label in zip(prediction, y, strict=True) if label in task and p != -1]
            if right:
                matrix[t][j] = sum(right) / len(right)
    return matrix


def naive_mean(values: list[float]) -> float:
    known = [v for v in values if not isnan(v)]
    return sum(known) / len(known) if known else nan


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_against_loops(seed: int, rows: int) -> None:
    predictions, y = recorded(seed, rows)
    given = predictions.copy(), y.copy()
    matrix, naive = metrics.accuracy_matrix(predictions, y, TASKS), naive_matrix(predictions, y)
    assert matrix.shape == (rows, 4) and matrix.dtype == float
    np.testing.assert_allclose(matrix, naive)

    assert same(metrics.average_accuracy(matrix[-1]), naive_mean(naive[-1]))
    assert same(metrics.anytime_accuracy(matrix), naive_mean([naive_mean(row) for row in naive]))
    lost = [max(naive[k][j] for k in range(j, rows)) - naive[-1][j] for j in range(rows - 1)]
    assert same(metrics.forgetting(matrix), naive_mean(lost))
    gained = [naive[-1][j] - naive[j][j] for j in range(3)] if rows == 4 else []
    assert same(metrics.backward_transfer(matrix), naive_mean(gained))

    assert same(metrics.plasticity(matrix), naive_mean([naive[t][t] for t in range(rows)]))
    assert same(metrics.stability(matrix), naive_mean([naive_mean(naive[t][:t]) for t in range(1, rows)]))

    counts = [[0] * 8 for _ in range(8)]
    recent = []
    for p, label in zip(predictions[-1], y, strict=True):
        if p != -1:
            counts[label][p] += 1
            if label not in TASKS[rows - 1]:
                recent.append(float(p in TASKS[rows - 1]))
    assert metrics.confusion(predictions[-1], y, 8).tolist() == counts
    assert same(metrics.recency(predictions[-1], y, TASKS[:rows]), naive_mean(recent))
    np.testing.assert_array_equal(predictions, given[0])
    np.testing.assert_array_equal(y, given[1])


def test_by_hand() -> None:
    a = np.array([[0.9, nan, nan], [0.5, 0.8, nan], [0.6, 0.4, 1.0]])
    assert metrics.average_accuracy(a[-1]) == pytest.approx(2 / 3)
    assert metrics.anytime_accuracy(a) == pytest.approx((0.9 + 0.65 + 2 / 3) / 3)
    assert metrics.backward_transfer(a) == pytest.approx((-0.3 - 0.4) / 2)
    assert metrics.forgetting(a) == pytest.approx((0.3 + 0.4) / 2)
    assert metrics.forgetting(a[:2]) == pytest.approx(0.4)  # of the tasks before the second
    better = np.array([[0.5, nan], [0.7, 0.9]])
    assert metrics.forgetting(better) == 0 and metrics.backward_transfer(better) == pytest.approx(0.2)


def test_forgetting_counts_from_when_a_task_was_learned() -> None:
    """A blurry stream may be asked about a task before its end."""
    assert metrics.forgetting(np.array([[0.5, 0.9, 0.0], [0.5, 0.6, 0.0], [0.5, 0.5, 0.0]])) == pytest.approx(0.05)


def test_an_incomplete_run_has_no_backward_transfer() -> None:
    a = np.array([[0.9, nan, nan], [0.5, 0.8, nan]])
    assert isnan(metrics.backward_transfer(a))
    assert isnan(metrics.backward_transfer(np.array([[nan, nan], [0.5, 0.5]])))


def test_single_task() -> None:
    y = np.array([0, 1, 1, 0])
    prediction = np.array([0, 1, 0, 0])
    matrix = metrics.accuracy_matrix(prediction[None], y, [[0, 1]])
    assert matrix.tolist() == [[0.75]]
    assert metrics.average_accuracy(matrix[-1]) == metrics.anytime_accuracy(matrix) == 0.75
    assert isnan(metrics.backward_transfer(matrix)) and isnan(metrics.forgetting(matrix))
    assert isnan(metrics.recency(prediction, y, [[0, 1]]))


def test_nothing_asked() -> None:
    predictions, y = np.full((4, 20), -1), np.arange(20) % 8
    matrix = metrics.accuracy_matrix(predictions, y, TASKS)
    assert np.isnan(matrix).all() and matrix.shape == (4, 4)
    for metric in (metrics.anytime_accuracy, metrics.backward_transfer, metrics.forgetting):
        assert isnan(metric(matrix))
    assert isnan(metrics.average_accuracy(matrix[-1])) and isnan(metrics.recency(predictions[-1], y, TASKS))
    assert not metrics.confusion(predictions[-1], y, 8).any()


def test_no_tasks_and_no_rows() -> None:
    y = np.array([0, 1])
    assert metrics.accuracy_matrix(np.array([[0, 1]]), y, ()).shape == (1, 0)
    empty = metrics.accuracy_matrix(np.empty((0, 2), dtype=int), y, [[0], [1]])
    assert empty.shape == (0, 2)
    for metric in (metrics.anytime_accuracy, metrics.backward_transfer, metrics.forgetting):
        assert isnan(metric(empty)) and isnan(metric(np.empty((1, 0))))
    assert isnan(metrics.recency(np.array([0, 1]), y, ()))


def test_share_is_of_the_images_asked() -> None:
    assert metrics.accuracy_matrix(np.array([[0, -1, 1, -1]]), np.zeros(4, dtype=int), [[0]]).tolist() == [[0.5]]


def test_confusion_of_small_integers_and_strangers() -> None:
    y = np.array([199, 199, 0], dtype=np.uint8)
    counts = metrics.confusion(np.array([198, 199, 0], dtype=np.uint8), y, 200)
    assert counts[199, 198] == counts[199, 199] == counts[0, 0] == 1 and counts.sum() == 3
    with pytest.raises(IndexError):
        metrics.confusion(np.array([3]), np.array([0]), 3)


def test_recency_by_hand() -> None:
    y = np.array([0, 0, 1, 1, 2, 2])
    assert metrics.recency(np.array([2, 0, 2, -1, 2, 0]), y, [[0], [1], [2]]) == pytest.approx(2 / 3)


def test_mean_std() -> None:
    assert metrics.mean_std([1.0, 2.0, 6.0]) == pytest.approx((3.0, 7**0.5))
    mean, std = metrics.mean_std([0.5])
    assert mean == 0.5 and isnan(std)
    assert all(map(isnan, metrics.mean_std([])))
