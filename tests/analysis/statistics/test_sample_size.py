"""Sample sizes: against SciPy's non-central t and the table of the design; simulated in test_rule.py."""

import math

import pandas as pd
import pytest
from scipy import stats

from ampcompare.analysis.statistics.mean_difference import estimate_difference
from ampcompare.analysis.statistics.sample_size import (
    deviation_range,
    forecast_further_seeds,
    largest_deviation,
    pool_deviations,
    seeds_to_clear,
)

MARGIN = 0.5


@pytest.mark.parametrize("sides", [1, 2])
@pytest.mark.parametrize("n", [2, 5, 1000])
def test_the_largest_deviation_has_the_power_of_scipys_non_central_t(n, sides):
    deviation = largest_deviation(MARGIN, n, 0.95, sides)
    limit = stats.t.ppf(0.975, n - 1)
    miss = stats.nct.cdf(limit, n - 1, MARGIN * math.sqrt(n) / deviation)
    assert sides * miss == pytest.approx(0.1, abs=1e-6)


@pytest.mark.parametrize("level", [0.95, 1 - 0.05 / 6])
@pytest.mark.parametrize("distances", [[0.5], [0.4, 1.4]])
def test_the_planned_seeds_reach_the_power_of_scipys_non_central_t_and_one_less_does_not(level, distances):
    def power(n: int) -> float:
        limit = stats.t.ppf((1 + level) / 2, n - 1)
        return 1 - sum(stats.nct.cdf(limit, n - 1, d * math.sqrt(n) / 1.7) for d in distances)

    n = seeds_to_clear(distances, 1.7, level)
    assert power(n) >= 0.9 > power(n - 1)


@pytest.mark.parametrize(
    ("distances", "deviation", "seeds"),
    [
        ([-1.0, 2.0], 1.0, None),
        ([0.01], 1.0, None),
        ([1.0], math.nan, None),
        ([1e4] * 2, 0.5, 3),  # far within the margin, where SciPy's non-central t is NaN
    ],
)
def test_no_number_of_seeds_is_named_if_none_up_to_1000_is_enough(distances, deviation, seeds):
    assert seeds_to_clear(distances, deviation, 0.95) == seeds


def pairs(*differences: float):
    """Return the estimate of these paired differences."""
    values = pd.Series(differences, dtype=float)
    return estimate_difference(values, 0 * values)


def test_deviations_are_pooled_by_their_degrees_of_freedom():
    one, other = pairs(0.1, -0.2, 0.3), pairs(1.0, 0.0, -1.0, 0.5)
    deviation, df = pool_deviations([one, other])
    assert df == 5
    assert deviation**2 == pytest.approx((2 * one.spread**2 + 3 * other.spread**2) / 5)
    # Neither the unknown spread of two pairs nor a spread of 0 counts.
    assert pool_deviations([one, pairs(0.1, 0.2), other, pairs(1.0, 1.0, 1.0)]) == (deviation, df)
    assert pool_deviations([pairs(0.1, 0.2)]) is None


def test_a_forecast_is_a_range_or_nothing():
    estimate = pairs(0.3, -0.3, 0.2, -0.2, 0.1)  # mean 0.02
    margins = [0.5 + estimate.value, 0.5 - estimate.value]
    low, high = forecast_further_seeds(estimate, [margins], estimate.spread, 20)
    ends = [seeds_to_clear(margins, end, 0.95) - 5 for end in deviation_range(estimate.spread, 20)]
    assert [low, high] == [max(1, end) for end in ends]
    # With two degrees of freedom, the range is wider than a factor of ten.
    assert forecast_further_seeds(estimate, [margins], 3 * estimate.spread, 2) is None
    # The estimate lies beyond the limit: no number of seeds is expected to decide.
    assert forecast_further_seeds(estimate, [[-0.1]], estimate.spread, 20) is None
