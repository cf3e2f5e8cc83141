"""Statistics against SciPy and hand calculations, and the rule of pairing."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from ampcompare.analysis.statistics.equivalence import (
    PublishedEstimate,
    is_different,
    is_equivalent,
)
from ampcompare.analysis.statistics.mean_difference import (
    estimate_difference,
    estimate_mean,
    seed_correlation,
)
from ampcompare.analysis.statistics.multiplicity import (
    estimate_proportion,
)

EXACT = {"rel": 1e-9, "abs": 1e-12}
SAMPLE_A, SAMPLE_B = (2.1, 1.2, 4.4, 3.0, 2.5), (1.9, 1.5, 3.1, 2.0, 2.2)
T_2 = 4.302652729696142  # 97.5% quantile of Student's t with 2 degrees of freedom, from a printed table


def sample(*values: float, first: int = 0) -> pd.Series:
    """Return a sample with the seeds `first`, `first` + 1, ..."""
    return pd.Series(values, index=range(first, first + len(values)), dtype=float)


def test_the_interval_of_three_pairs_equals_the_hand_calculation():
    # Differences 1, 2, 3: deviation 1, error 1/sqrt(3). The seeds themselves are 100 apart.
    estimate = estimate_difference(sample(101, 202, 303), sample(100, 200, 300))
    half_width = T_2 / math.sqrt(3)
    assert (estimate.value, estimate.observed_range) == (2.0, (1.0, 3.0))
    assert (estimate.low, estimate.high) == pytest.approx((2 - half_width, 2 + half_width), **EXACT)
    assert estimate.prediction_interval() == pytest.approx((2 - 2 * half_width, 2 + 2 * half_width), **EXACT)
    assert estimate.basis == "n = 3, paired by seed"


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("level", [0.9, 0.9995])
def test_intervals_equal_scipys(log: bool, level: float, subtests: pytest.Subtests):
    def assert_is(estimate, b):
        ends = np.array(b.confidence_interval(level))
        assert estimate.at_level(level).ends == pytest.approx(tuple(np.exp(ends) if log else ends), **EXACT)

    a, b = np.log([SAMPLE_A, SAMPLE_B]) if log else np.array([SAMPLE_A, SAMPLE_B])
    with subtests.test("mean"):
        assert_is(estimate_mean(sample(*SAMPLE_A), log=log), stats.ttest_1samp(a, 0))
    with subtests.test("paired"):
        assert_is(estimate_difference(sample(*SAMPLE_A), sample(*SAMPLE_B), log=log), stats.ttest_rel(a, b))
    for n, m, basis in [
        (3, 3, "n = 3, not paired"),
        (3, 5, "n = 3 and 5, not paired"),
        (5, 4, "n = 5 and 4, "),
    ]:
        with subtests.test("Welch", n=n, m=m):
            estimate = estimate_difference(sample(*SAMPLE_A[:n]), sample(*SAMPLE_B[:m], first=10), log=log)
            welch = stats.ttest_ind(a[:n], b[:m], equal_var=False)
            assert_is(estimate, welch)
            assert estimate.df == pytest.approx(welch.df, **EXACT)
            assert estimate.basis.startswith(basis)


@pytest.mark.parametrize(
    ("n_a", "n_b", "common", "paired"),
    [
        (3, 3, 3, True),
        (3, 3, 2, False),  # fewer than three pairs
        (10, 10, 4, True),
    ],
)
def test_runs_are_paired_by_seed_from_three_complete_pairs_on(n_a, n_b, common, paired):
    rng = np.random.default_rng(n_a)
    a, b = sample(*rng.normal(size=n_a)), sample(*rng.normal(size=n_b), first=n_a - common)
    estimate = estimate_difference(a, b)
    assert estimate.is_paired == paired
    assert (estimate.n, estimate.sizes) == (common if paired else min(n_a, n_b), (n_a, n_b))
    expected = (a - b).dropna().mean() if paired else a.mean() - b.mean()
    assert estimate.value == pytest.approx(expected, **EXACT)


@pytest.mark.parametrize(("n_a", "n_b"), [(1, 1), (10, 2)])
def test_below_three_runs_per_side_there_is_an_observed_range_and_no_interval(n_a, n_b):
    estimate = estimate_difference(sample(*range(1, n_a + 1)), sample(*[0.5] * n_b), log=True)
    assert (estimate.ends, estimate.prediction_interval()) == ((None, None), None)
    assert estimate.observed_range == pytest.approx((2.0, 2.0 * n_a))
    assert estimate.basis.endswith("no interval")


def test_the_resolution_is_a_lower_bound_of_the_standard_deviation():
    """Six pairs that differ by one of 1,024 images: the deviation is that, not 0."""
    step = 100 / 1024
    estimate = estimate_difference(sample(*range(50, 56)), sample(*range(50, 56)) - step, resolution=step)
    assert (estimate.value, estimate.error, estimate.spread) == pytest.approx(
        (step, step / 6**0.5, step), **EXACT
    )
    apart = estimate_difference(sample(50, 50, 50), sample(49, 49, 49, first=9), resolution=step)
    assert apart.error == pytest.approx(step * math.sqrt(2 / 3), **EXACT)
    wide = estimate_difference(sample(*SAMPLE_A), sample(*SAMPLE_B))
    assert estimate_difference(sample(*SAMPLE_A), sample(*SAMPLE_B), resolution=0.01) == wide


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1.7e308])
def test_nonfinite_values_are_left_out(bad):
    good, spoilt = sample(1, 2, 4), sample(1, 2, 4, bad)
    assert estimate_mean(spoilt) == estimate_mean(good)
    assert estimate_difference(spoilt, good, log=True) == estimate_difference(good, good, log=True)
    assert estimate_difference(sample(0.0, bad), good, log=True) is None


def test_an_interval_never_leaves_its_bounds_and_a_wide_one_is_infinite():
    estimate = estimate_difference(sample(0.1, 60, 99), sample(0.2, 0.1, 0.3))
    free, bound = estimate.ends, replace(estimate, bounds=(-100.0, 100.0)).ends
    assert (max(free[0], -100), min(free[1], 100)) == bound
    assert bound[1] == 100 < free[1]
    assert estimate_difference(sample(1e-150, 1, 1e150), sample(1, 1, 1), log=True).ends == (0.0, math.inf)


@pytest.mark.parametrize(("k", "n"), [(1, 1), (3, 5), (0, 3)])
def test_the_interval_of_a_proportion_equals_scipys_exact_binomial(k, n):
    proportion = estimate_proportion(k, n)
    expected = stats.binomtest(k, n).proportion_ci(method="exact")
    assert (proportion.low, proportion.high) == pytest.approx(tuple(expected), **EXACT)


VALUES = pd.Series([93.1, 93.6, 92.9, 93.3])


@pytest.mark.parametrize(("value", "runs"), [(92.0, 1), (94.4, 3)])
def test_a_printed_value_differs_if_outside_the_prediction_interval(value, runs):
    estimate = estimate_mean(VALUES)
    t = (estimate.value - value) / (VALUES.std() * math.sqrt(1 / 4 + 1 / runs))
    published, p = PublishedEstimate(value, value, value, runs), 2 * stats.t.sf(abs(t), 3)
    assert is_different(estimate, published, 1 - 1.001 * p)
    assert not is_different(estimate, published, 1 - 0.999 * p)
    # What the digits leave open counts as agreement.
    wide = PublishedEstimate(value, min(value, 93.2), max(value, 93.3), runs)
    assert not is_different(estimate, wide, 1e-6)


@pytest.mark.parametrize("level", [0.9, 0.99])
def test_a_printed_value_is_equivalent_if_the_whole_interval_lies_within_the_margin(level):
    published, ends = (
        PublishedEstimate(93.0, 92.95, 93.05),
        stats.ttest_1samp(VALUES, 0).confidence_interval(level),
    )
    margin = max(92.95 - ends.low, ends.high - 93.05)
    assert is_equivalent(estimate_mean(VALUES), published, margin + 1e-9, level)
    assert not is_equivalent(estimate_mean(VALUES), published, margin - 1e-9, level)
    few = estimate_mean(VALUES[:2])
    assert not is_equivalent(few, published, 99.0, level)
    assert not is_different(few, published, 0.01)


def test_the_correlation_over_seeds_needs_three_shared_seeds_and_a_spread_on_both_sides():
    a, b = sample(*SAMPLE_A), sample(*SAMPLE_B)
    expected = stats.pearsonr(SAMPLE_A, SAMPLE_B).statistic
    assert seed_correlation(a, b[::-1]) == pytest.approx(expected, **EXACT)
    assert seed_correlation(a, b[:2]) is seed_correlation(a, sample(*[1.0] * 5)) is None
