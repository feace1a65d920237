"""Welch's test and paired intervals against scipy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from onepass.paper.agreement import Sample, paired, sample, welch


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (Sample(38.0, 1.08, 5), Sample(38.05, 1.0, 5)),
        (Sample(51.0, 0.4, 5), Sample(52.1, 0.5, 5)),
        (Sample(20.0, 3.0, 2), Sample(28.0, 0.1, 5)),
        (Sample(1.0, 1e-3, 3), Sample(1.0, 5.0, 40)),
        (Sample(90.0, 0.01, 5), Sample(10.0, 0.02, 5)),
        (Sample(7.0, 2.0, 2), Sample(7.0, 2.0, 2)),
    ],
)
def test_welch_is_scipys(a: Sample, b: Sample) -> None:
    theirs = stats.ttest_ind_from_stats(a.mean, a.std, a.n, b.mean, b.std, b.n, equal_var=False).pvalue
    assert welch(a, b) == pytest.approx(theirs, rel=1e-6, abs=1e-12)
    assert welch(a, b) == welch(b, a)


def test_where_there_is_nothing_to_test_nothing_is_said() -> None:
    whole = Sample(1.0, 0.5, 5)
    assert welch(whole, Sample(1.0)) is None  # as the paper's first table has it
    assert welch(whole, Sample(1.0, math.nan, 1)) is None
    assert welch(Sample(1.0, 0.0, 3), Sample(1.0, 0.0, 3)) == 1.0
    assert welch(Sample(1.0, 0.0, 3), Sample(2.0, 0.0, 3)) == 0.0


@pytest.mark.parametrize("n", [2, 3, 5, 30])
def test_paired_intervals_are_scipys(n: int) -> None:
    rng = np.random.default_rng(n)
    base = dict(enumerate(rng.normal(30.0, 3.0, n)))
    ours = {seed: value + 5 + rng.normal() for seed, value in base.items()}
    interval = paired(ours | {99: 1.0}, base | {77: 2.0})  # seeds that only one of them has
    assert interval is not None and interval.n == n
    difference = [ours[seed] - base[seed] for seed in base]
    low, high = stats.t.interval(0.95, n - 1, np.mean(difference), stats.sem(difference))
    assert interval[:3] == pytest.approx((np.mean(difference), low, high), rel=1e-6)


def test_one_pair_has_a_difference_and_no_interval() -> None:
    interval = paired({0: 3.0, 1: 9.0}, {0: 1.0, 2: 9.0})
    assert interval is not None and interval.mean == 2.0 and interval.n == 1 and math.isnan(interval.low)
    assert paired({0: 1.0}, {1: 1.0}) is None
    assert sample({0: 1.0, 4: 3.0}) == Sample(2.0, math.sqrt(2), 2)
