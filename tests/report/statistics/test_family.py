"""Levels, further seeds, shares, somebody else's figure: by hand, against SciPy, and by simulation."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from ampcompare.report.statistics.agreement import Theirs, differs, equals, more_to_tell
from ampcompare.report.statistics.family import joint_level, more_seeds, share_of
from ampcompare.report.statistics.samples import difference, mean

EXACT = {"rel": 1e-9, "abs": 1e-12}
PILOT = pd.Series([0.1, 0.9, 0.5])  # mean 0.5, deviation 0.4
WORST = 0.4 * math.sqrt(2 / stats.chi2.ppf(0.2, 2))  # the upper 80 % bound of the deviation


def test_the_level_is_shared_by_groups_and_looks():
    levels = [joint_level(2), joint_level(2, 3), joint_level(0)]
    assert levels == pytest.approx([0.975, 1 - 0.05 / 6, 0.95], **EXACT)


def found_at(level: float, pilot: pd.Series = PILOT):
    return difference(pilot, 0 * pilot).at(level)


def power(n: int, level: float, *distances: float) -> float:
    """By SciPy's non-central t: that the interval of n pairs lies beyond what is so far from the truth."""
    limit = stats.t.ppf((1 + level) / 2, n - 1)
    return 1 - sum(stats.nct.cdf(limit, n - 1, d * math.sqrt(n) / WORST) for d in distances)


@pytest.mark.parametrize("level", [0.95, 1 - 0.05 / 6])
@pytest.mark.parametrize(
    ("claim", "distances"),
    [({"null": 0.0}, [0.5]), ({"margin": 0.9}, [0.4, 1.4]), ({"margin": 1.2}, [0.7, 1.7])],
)
def test_so_many_more_reach_the_power_and_one_less_does_not(level, claim, distances):
    more = more_seeds(found_at(level), **claim)
    assert power(3 + more, level, *distances) >= 0.9 > power(3 + more - 1, level, *distances)


@pytest.mark.parametrize("margin", [2.0, 39.0, 1e4])
def test_far_within_the_margin_one_more_is_enough(margin):
    """Also where SciPy's non-central t is NaN."""
    assert more_seeds(mean(pd.Series(np.linspace(-1, 1, 20))), margin=margin) == 1


def test_where_no_number_would_do_there_is_none():
    found = found_at(0.95)
    assert more_seeds(found, margin=0.5) is None  # the estimate lies on the edge
    assert more_seeds(found, margin=0.4) is None
    assert more_seeds(found, null=0.5) is None  # nothing to tell apart
    assert more_seeds(found, null=0.49) is None  # thousands
    assert more_seeds(difference(PILOT, PILOT), null=0.0) is None  # no spread
    assert more_seeds(difference(PILOT[:2], 0 * PILOT[:2]), null=0.0) is None  # no interval
    ratio = difference(np.exp(PILOT), 0 * PILOT + 1, log=True)
    assert more_seeds(ratio, null=1.0) == more_seeds(found, null=0.0)


@pytest.mark.parametrize(("k", "n"), [(0, 0), (0, 1), (1, 1), (3, 5), (7, 9), (50, 1000), (0, 3), (3, 3)])
def test_a_share_is_scipys_exact_binomial(k, n):
    found = share_of(k, n)
    theirs = stats.binomtest(k, n).proportion_ci(method="exact") if n else (0.0, 1.0)
    assert (found.low, found.high) == pytest.approx(tuple(theirs), **EXACT)


VALUES = pd.Series([93.1, 93.6, 92.9, 93.3])


def assert_differs_at(ours, theirs, p):
    """At every level below 1 - p, and at none above."""
    assert differs(ours, theirs, 1 - 1.001 * p)
    assert not differs(ours, theirs, 1 - 0.999 * p)


@pytest.mark.parametrize(("value", "runs"), [(92.0, 1), (93.3, 3), (94.4, 3)])
def test_a_printed_figure_differs_by_the_prediction_interval(value, runs):
    ours = mean(VALUES)
    t = (ours.value - value) / (VALUES.std() * math.sqrt(1 / 4 + 1 / runs))
    assert_differs_at(ours, Theirs(value, value, value, runs), 2 * stats.t.sf(abs(t), 3))
    # What the digits leave open counts as agreement.
    assert not differs(ours, Theirs(value, min(value, 93.2), max(value, 93.3), runs), 1e-6)


def test_a_figure_with_its_own_interval_is_compared_by_welch():
    others = np.array([94.0, 93.4, 94.4, 93.8, 94.1])
    theirs = Theirs(others.mean(), 0.0, 0.0, 5, error=others.std(ddof=1) / math.sqrt(5), df=4)
    welch = stats.ttest_ind(VALUES, others, equal_var=False)
    assert_differs_at(mean(VALUES), theirs, welch.pvalue)
    low, _ = welch.confidence_interval(0.9)
    assert equals(mean(VALUES), theirs, -low + 1e-9)
    assert not equals(mean(VALUES), theirs, -low - 1e-9)


def test_a_printed_figure_is_equal_by_two_one_sided_tests():
    theirs, ends = Theirs(93.0, 92.95, 93.05), stats.ttest_1samp(VALUES, 0).confidence_interval(0.9)
    margin = max(92.95 - ends.low, ends.high - 93.05)
    assert equals(mean(VALUES), theirs, margin + 1e-9)
    assert not equals(mean(VALUES), theirs, margin - 1e-9)
    few = mean(VALUES[:2])
    assert not equals(few, theirs, 99.0)
    assert not differs(few, theirs, 0.01)


def test_what_their_own_noise_hides_no_number_of_ours_tells():
    ours, level = mean(VALUES), 0.01
    assert more_to_tell(ours, Theirs(93.2, 93.2, 93.2), 0.8, level) > 0  # to be shown equal
    assert more_to_tell(ours, Theirs(95.5, 95.5, 95.5), 0.8, level) > 0  # to differ
    vague = Theirs(95.5, 0, 0, error=1.2, df=9)
    assert more_to_tell(ours, vague, 0.8, level) is None
    assert more_to_tell(mean(VALUES[:2]), vague, 0.8, level) is None
