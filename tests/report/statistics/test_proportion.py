"""The exact interval of a share against the binomial tails that define it."""

from __future__ import annotations

import pytest
from scipy import stats

from ampcompare.report.statistics.proportion import clopper_pearson


@pytest.mark.parametrize(("k", "n"), [(0, 1), (1, 1), (3, 5), (1, 10), (7, 9), (50, 1000), (0, 3), (3, 3)])
def test_the_ends_are_scipys(k, n):
    found = clopper_pearson(k, n)
    theirs = stats.binomtest(k, n).proportion_ci(method="exact")
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high))
    assert found.share == k / n


def test_each_end_leaves_two_and_a_half_percent():
    found = clopper_pearson(3, 5)
    assert stats.binom.sf(2, 5, found.low) == pytest.approx(0.025)
    assert stats.binom.cdf(3, 5, found.high) == pytest.approx(0.025)


def test_none_of_three_by_hand():
    # (1 - p)^3 = .025
    assert clopper_pearson(0, 3).high == pytest.approx(1 - 0.025 ** (1 / 3))
    assert clopper_pearson(0, 3).low == 0.0


def test_of_no_runs_nothing_is_known():
    found = clopper_pearson(0, 0)
    assert (found.share, found.low, found.high) == (None, 0.0, 1.0)


@pytest.mark.parametrize(("k", "n", "confidence"), [(2, 1, 0.95), (-1, 1, 0.95), (1, 2, 1.0)])
def test_what_is_no_share_is_refused(k, n, confidence):
    with pytest.raises(ValueError, match="expected"):
        clopper_pearson(k, n, confidence)
