"""Whether two means agree, by Welch's test, and how far apart paired runs are, with the interval of Student's t."""

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import numpy as np

from onepass import metrics

LEVEL = 0.05


class Sample(NamedTuple):
    """A mean and the standard deviation of n values; nan where it is not known."""

    mean: float
    std: float = np.nan
    n: int = 0


class Interval(NamedTuple):
    """A mean difference of n pairs, and between what bounds it lies; nan for fewer than two."""

    mean: float
    low: float
    high: float
    n: int


def sample(values: Mapping[int, float]) -> Sample:
    return Sample(*metrics.mean_std(list(values.values())), len(values))


def welch(a: Sample, b: Sample) -> float | None:
    """The chance of means so far apart, or farther, if both samples are of one mean; None: n or std is not there to tell."""
    if min(a.n, b.n) < 2 or np.isnan([a.std, b.std]).any():
        return None
    va, vb = a.std**2 / a.n, b.std**2 / b.n
    if va + vb == 0:
        return float(a.mean == b.mean)
    freedom = (va + vb) ** 2 / (va**2 / (a.n - 1) + vb**2 / (b.n - 1))
    return 2 * _above(abs(a.mean - b.mean) / np.sqrt(va + vb), freedom)


def paired(ours: Mapping[int, float], base: Mapping[int, float]) -> Interval | None:
    """The mean difference over the seeds that both have, and its interval of confidence; None: they share none."""
    seeds = sorted(ours.keys() & base.keys())
    if not seeds:
        return None
    mean, std = metrics.mean_std([ours[s] - base[s] for s in seeds])
    half = _quantile(1 - LEVEL / 2, len(seeds) - 1) * std / np.sqrt(len(seeds)) if len(seeds) > 1 else np.nan
    return Interval(mean, mean - half, mean + half, len(seeds))


def _above(t: float, freedom: float) -> float:
    """P(T > t) for t >= 0.  With t = sqrt(freedom) tan(a), Student's density is that of an angle: cos(a) ** (freedom - 1)."""
    angle = np.arctan2(t, np.sqrt(freedom))
    return 0.5 * _area(angle, freedom) / _area(0.0, freedom)


def _area(angle: float, freedom: float) -> float:
    """The integral of cos(a) ** (freedom - 1) from an angle to a right one, whose end may be steep: u ** 4 has nodes there."""
    nodes, weights = _gauss()
    u, width = (nodes + 1) / 2, np.pi / 2 - angle
    return float((weights / 2 * width * 4 * u**3 * np.sin(width * u**4) ** (freedom - 1)).sum())


@cache
def _gauss() -> tuple[np.ndarray, np.ndarray]:
    return np.polynomial.legendre.leggauss(120)


@cache
def _quantile(p: float, freedom: float) -> float:
    """The t below which a share p of Student's distribution lies, for p > 1/2: by halving an interval that holds it."""
    low, high = 0.0, 1.0
    while _above(high, freedom) > 1 - p:
        high *= 2
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _above(middle, freedom) > 1 - p else (low, middle)
    return high
