"""Means, differences, ratios: by hand, against SciPy, and what the rule of pairing says."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from ampcompare.report.statistics.samples import difference, mean

EXACT = {"rel": 1e-9, "abs": 1e-12}
OURS, THEIRS = (2.1, 1.2, 4.4, 3.0, 2.5), (1.9, 1.5, 3.1, 2.0, 2.2)
T_2 = 4.302652729696142  # 97.5 % quantile of Student's t with 2 degrees of freedom, from a printed table


def of(*values: float, first: int = 0) -> pd.Series:
    """A figure of each of the seeds `first`, `first` + 1, ..."""
    return pd.Series(values, index=range(first, first + len(values)), dtype=float)


def test_three_pairs_by_hand():
    # Differences 1, 2, 3: deviation 1, error 1/sqrt(3). The seeds themselves are 100 apart.
    found = difference(of(101, 202, 303), of(100, 200, 300))
    half = T_2 / math.sqrt(3)
    assert (found.value, found.seen, found.n, found.df) == (2.0, (1.0, 3.0), 3, 2.0)
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half), **EXACT)
    assert found.next_run() == pytest.approx(
        (2 - T_2 * math.sqrt(4 / 3), 2 + T_2 * math.sqrt(4 / 3)), **EXACT
    )
    assert found.basis == "n = 3, paired by seed"


@pytest.mark.parametrize("level", [0.9, 0.95, 0.9833, 0.9995])
@pytest.mark.parametrize("log", [False, True])
def test_paired_interval_is_scipys(level, log):
    found = difference(of(*OURS), of(*THEIRS), log=log).at(level)
    sides = np.log([OURS, THEIRS]) if log else np.array([OURS, THEIRS])
    theirs = stats.ttest_rel(*sides)
    ends = np.array(theirs.confidence_interval(level))
    assert found.ends == pytest.approx(tuple(np.exp(ends) if log else ends), **EXACT)


@pytest.mark.parametrize(("n", "m"), [(3, 3), (3, 5), (5, 4)])
@pytest.mark.parametrize("log", [False, True])
def test_interval_without_pairs_is_welchs(n, m, log):
    found = difference(of(*OURS[:n]), of(*THEIRS[:m], first=10), log=log).at(0.99)
    theirs = stats.ttest_ind(
        *([np.log(s) for s in (OURS[:n], THEIRS[:m])] if log else (OURS[:n], THEIRS[:m])), equal_var=False
    )
    ends = np.array(theirs.confidence_interval(0.99))
    assert found.ends == pytest.approx(tuple(np.exp(ends) if log else ends), **EXACT)
    assert found.df == pytest.approx(theirs.df, **EXACT)
    assert found.basis == (f"n = {n}, not paired" if n == m else f"n = {n} and {m}, not paired")


@pytest.mark.parametrize("log", [False, True])
def test_a_mean_is_scipys(log):
    found = mean(of(*OURS), log=log).at(0.98)
    values = np.log(OURS) if log else np.array(OURS)
    ends = np.array(stats.ttest_1samp(values, 0).confidence_interval(0.98))
    assert found.ends == pytest.approx(tuple(np.exp(ends) if log else ends), **EXACT)
    assert found.seen == (1.2, 4.4)


@pytest.mark.parametrize(
    ("ours", "theirs", "common", "paired"),
    [
        (3, 3, 3, True),
        (3, 3, 2, False),  # fewer than three pairs
        (6, 6, 3, True),  # half of the smaller side
        (7, 7, 3, False),
        (10, 3, 3, True),
        (10, 10, 5, True),
        (10, 10, 4, False),
        (10, 10, 0, False),
    ],
)
def test_paired_from_three_pairs_that_are_half_of_the_smaller_side(ours, theirs, common, paired):
    rng = np.random.default_rng(ours)
    a, b = of(*rng.normal(size=ours)), of(*rng.normal(size=theirs), first=ours - common)
    found = difference(a, b)
    assert found.paired == paired
    assert (found.n, found.sizes) == (common if paired else min(ours, theirs), (ours, theirs))
    expected = (a - b).dropna().mean() if paired else a.mean() - b.mean()
    assert found.value == pytest.approx(expected, **EXACT)
    alone = f", {ours + theirs - 2 * common} without a partner left out" if ours + theirs > 2 * common else ""
    assert not paired or found.basis == f"n = {common}, paired by seed{alone}"


def test_pairs_are_by_what_the_index_says_not_by_order():
    found = difference(pd.Series([10.0, 20, 30], [1, 2, 3]), pd.Series([29.0, 19, 9], [3, 2, 1]))
    assert (found.value, found.ends) == (1.0, (1.0, 1.0))
    assert not difference(of(*OURS), of(*THEIRS), by="").paired


@pytest.mark.parametrize(("ours", "theirs"), [(1, 1), (2, 2), (2, 10), (10, 2), (1, 3)])
@pytest.mark.parametrize("first", [0, 20])
def test_below_three_a_side_there_is_what_was_seen_and_no_interval(ours, theirs, first):
    a, b = of(*range(1, ours + 1)), of(*[0.5] * theirs, first=first)
    found = difference(a, b, log=True)
    assert (found.has_interval, found.ends, found.next_run()) == (
        False,
        (None, None),
        None,
    )
    pairs = 0 if first else min(ours, theirs)
    assert found.seen == pytest.approx((2.0, 2.0 * (pairs or ours)))
    assert found.basis.endswith("no interval")
    one = mean(of(*range(1, ours + 1)))
    assert one.has_interval == (ours >= 3)


def test_a_label_twice_is_an_error_as_pandas_would_multiply_it():
    with pytest.raises(AssertionError, match="multiply"):
        difference(pd.Series([1.0, 2, 3], ["1", "1", "2"]), of(1, 2, 3))


def test_what_cannot_be_told_apart_is_no_certainty():
    """Six pairs that differ by one of 1,024 images: the deviation is that, not 0."""
    step = 100 / 1024
    found = difference(of(*range(50, 56)), of(*range(50, 56)) - step, resolution=step)
    assert (found.value, found.error, found.spread) == pytest.approx(
        (step, step / math.sqrt(6), step), **EXACT
    )
    apart = difference(of(50, 50, 50), of(49, 49, 49, first=9), resolution=step)
    assert apart.error == pytest.approx(step * math.sqrt(2 / 3), **EXACT)
    assert mean(of(50, 50, 50), resolution=step).error == pytest.approx(step / math.sqrt(3), **EXACT)
    wide = difference(of(*OURS), of(*THEIRS), resolution=0.01)
    assert wide == difference(of(*OURS), of(*THEIRS))


@pytest.mark.parametrize("first", [0, 9], ids=["paired", "not paired"])
def test_rounding_is_no_spread(first):
    # 0.1 + 0.2 is not 0.3 in binary
    found = difference(of(0.1 + 0.2, 0.3, 0.3), of(0.2, 0.2, 0.3 - 0.1, first=first))
    assert (found.error, found.low, found.high) == (0.0, found.value, found.value)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1.7e308])
def test_a_figure_that_is_no_number_is_left_out(bad):
    good, spoilt = of(1, 2, 4), of(1, 2, 4, bad)
    assert mean(spoilt) == mean(good)
    assert difference(spoilt, good, log=True) == difference(good, good, log=True)
    assert (mean(of(bad)), difference(of(bad), good), difference(of(0.0, -1.0), good, log=True)) == (
        None,
    ) * 3


def test_an_interval_never_leaves_its_bounds_and_a_wide_one_is_infinite():
    found = difference(of(0.1, 60, 99), of(0.2, 0.1, 0.3))
    free, bound = found.ends, replace(found, bounds=(-100.0, 100.0)).ends
    assert (max(free[0], -100), min(free[1], 100)) == bound
    assert bound[1] == 100 < free[1]
    huge = difference(of(1e-150, 1, 1e150), of(1, 1, 1), log=True)
    assert huge.ends == (0.0, math.inf)
