"""Arithmetic on recorded predictions.

Labels are numbered in order of arrival in training, `tasks` lists the classes of each task, and predictions are
integers, -1 where an image was not asked about. An accuracy matrix has a row for each task end and a column for each
task, nan where it was not asked; means leave nan out, and a mean of nothing is nan.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np


def accuracy_matrix(predictions: np.ndarray, y: np.ndarray, tasks: Sequence[Sequence[int]]) -> np.ndarray:
    """The share correct at time t on the test images of task j: (T, n), (n,) -> (T, K)."""
    member = np.array([np.isin(y, list(task)) for task in tasks], dtype=float).reshape(len(tasks), len(y))
    asked = predictions >= 0
    with np.errstate(invalid="ignore"):  # 0 / 0 is the nan of what was not asked
        return (asked & (predictions == y)) @ member.T / (asked @ member.T)


def average_accuracy(row: np.ndarray) -> float:
    """The mean over the tasks asked; of the last row, the final accuracy."""
    return _mean(row)


def anytime_accuracy(matrix: np.ndarray) -> float:
    """The mean over task ends of the accuracy on the tasks so far."""
    return _mean(np.array([average_accuracy(row) for row in matrix]))


def backward_transfer(matrix: np.ndarray) -> float:
    """The mean over j < K of a[K, j] - a[j, j]; nan for one task, or if the run is not complete."""
    rows, tasks = matrix.shape
    return float((matrix[-1] - matrix.diagonal())[:-1].mean()) if rows == tasks > 1 else np.nan


def forgetting(matrix: np.ndarray) -> float:
    """The mean over tasks j before the last one learned, T, of max over l = j..T of a[l, j], less a[T, j]."""
    older = min(matrix.shape) - 1
    if older < 1:
        return np.nan
    learned = np.where(np.tri(*matrix.shape, dtype=bool), matrix, np.nan)[:, :older]
    return _mean(np.fmax.reduce(learned) - matrix[-1, :older])


def confusion(prediction: np.ndarray, y: np.ndarray, classes: int) -> np.ndarray:
    """How many images of each class (row) were taken for each class (column), both in training order."""
    counts, asked = np.zeros((classes, classes), dtype=np.int64), prediction >= 0
    np.add.at(counts, (y[asked], prediction[asked]), 1)
    return counts


def plasticity(matrix: np.ndarray) -> float:
    """The mean accuracy on a task just learnt: of a[t, t]."""
    return _mean(matrix.diagonal())


def stability(matrix: np.ndarray) -> float:
    """The mean over task ends, but for the first, of the mean accuracy on the tasks before: of a[t, j], j < t."""
    return _mean(np.array([_mean(row[:t]) for t, row in enumerate(matrix) if t]))


def recency(prediction: np.ndarray, y: np.ndarray, tasks: Sequence[Sequence[int]]) -> float:
    """The share of the older tasks' test images that are taken for a class of the last task; nan for one task."""
    older = np.isin(y, list(chain(*tasks[:-1]))) & (prediction >= 0)
    return _mean(np.isin(prediction[older], list(chain(*tasks[-1:]))))


def mean_std(values: Sequence[float]) -> tuple[float, float]:
    """The mean and the standard deviation of the sample (over n - 1; nan for one value)."""
    if len(values) < 2:
        return float(values[0]) if len(values) else np.nan, np.nan
    return float(np.mean(values)), float(np.std(values, ddof=1))


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else np.nan
