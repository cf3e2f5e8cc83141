"""How many more seeds: against SciPy's non-central t, by its own definition, and where there is no number."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from ampcompare.report.statistics.estimate import Estimate
from ampcompare.report.statistics.power import more_seeds
from ampcompare.report.statistics.samples import difference, ratio
from ampcompare.report.statistics.student import chi_squared_quantile, t_power, t_quantile, t_tail

PILOT = {1: 0.1, 2: 0.9, 3: 0.5}  # mean 0.5, deviation 0.4
ZEROS = dict.fromkeys(PILOT, 0.0)
WORST = 0.4 * math.sqrt(2 / stats.chi2.ppf(0.2, 2))  # upper 80 % bound of the deviation


def power_to_differ(n: int, level: float = 0.05) -> float:
    return stats.nct.sf(stats.t.ppf(1 - level / 2, n - 1), n - 1, 0.5 * math.sqrt(n) / WORST)


def power_to_equal(n: int, margin: float) -> float:
    limit = stats.t.ppf(0.95, n - 1)
    ends = [stats.nct.cdf(limit, n - 1, end * math.sqrt(n) / WORST) for end in (margin - 0.5, margin + 0.5)]
    return 1 - sum(ends)


def test_quantiles_and_tails_are_scipys():
    assert t_quantile(0.975, 3.7) == pytest.approx(stats.t.ppf(0.975, 3.7))
    assert t_tail(1.3, 3.7) == pytest.approx(stats.t.sf(1.3, 3.7))
    assert chi_squared_quantile(0.2, 3.7) == pytest.approx(stats.chi2.ppf(0.2, 3.7))
    assert t_power(2.5, 4, 2.1) == pytest.approx(stats.nct.sf(2.1, 4, 2.5))
    assert t_power(1e6, 4, 2.1) == pytest.approx(1.0)


@pytest.mark.parametrize("level", [0.05, 0.0194])
def test_so_many_more_reach_the_power_and_one_less_does_not(level):
    more = more_seeds(difference(PILOT, ZEROS), null=0.0, level=level)
    assert power_to_differ(3 + more, level) >= 0.9 > power_to_differ(3 + more - 1, level)


@pytest.mark.parametrize("margin", [0.8, 1.0])
def test_so_many_more_show_equivalence_and_one_less_does_not(margin):
    more = more_seeds(difference(PILOT, ZEROS), margin=margin)
    assert power_to_equal(3 + more, margin) >= 0.9 > power_to_equal(3 + more - 1, margin)


def test_a_ratio_is_planned_on_its_logarithm():
    ones = dict.fromkeys(PILOT, 1.0)
    of_ratio = ratio({seed: math.exp(value) for seed, value in PILOT.items()}, ones)
    assert more_seeds(of_ratio, null=1.0) == more_seeds(difference(PILOT, ZEROS), null=0.0)
    assert more_seeds(of_ratio, null=2.0, side="above") is None
    assert more_seeds(of_ratio, null=2.0, side="below") > 0


def test_one_side_needs_fewer_than_two():
    found = difference(PILOT, ZEROS)
    assert more_seeds(found, null=0.0, side="above") < more_seeds(found, null=0.0)


def test_unpaired_sides_need_as_many_as_their_spread_asks():
    other = {seed + 10: value for seed, value in PILOT.items()}
    paired, unpaired = difference(PILOT, ZEROS), difference({k: v + 0.5 for k, v in PILOT.items()}, other)
    assert unpaired.spread == pytest.approx(0.4 * math.sqrt(2))
    assert more_seeds(unpaired, null=0.0) > more_seeds(paired, null=0.0)


def test_seeds_without_a_partner_are_reckoned_with_as_they_will_be():
    """Planned with the error of the same samples grown by pairs, two seeds of either side still alone."""
    more = more_seeds(partly_paired(6), null=0.0)
    worst = math.sqrt(5 / stats.chi2.ppf(0.2, 5))

    def power_at(size: int) -> float:
        shift = 0.5 / (partly_paired(size).error * worst)
        return stats.nct.sf(stats.t.ppf(0.975, size - 1), size - 1, shift)

    assert power_at(6 + more) >= 0.9 > power_at(6 + more - 1)


def partly_paired(size: int, alone: int = 2, s: float = 1.3, r: float = 0.8) -> Estimate:
    """An estimate as `difference` makes it, of two sides of `size` of which `alone` have no partner."""
    error = math.sqrt(2 * s * s / size - 2 * r * s * s * (size - alone) / size**2)
    spread = math.sqrt(2 * s * s * (1 - r))
    return Estimate(0.5, None, None, size, "", "", error=error, df=size - 1.0, spread=spread, spread_df=5.0)


def test_what_is_shown_needs_no_more():
    found = difference({1: 1.0, 2: 1.1, 3: 0.9}, ZEROS)
    assert more_seeds(found, null=0.0) == 0
    assert more_seeds(found, margin=2.0) == 0
    same = difference(PILOT, PILOT)
    assert more_seeds(same, margin=0.5) == 0


def test_where_no_number_would_do_there_is_none():
    found = difference(PILOT, ZEROS)
    assert more_seeds(found, margin=0.4) is None  # the estimate lies outside
    assert more_seeds(found, margin=0.5) is None  # and on its edge
    assert more_seeds(found, null=0.6, side="above") is None  # on the wrong side
    assert more_seeds(found, null=0.5) is None  # nothing to tell apart
    assert more_seeds(found, null=0.49) is None  # thousands
    assert more_seeds(difference(PILOT, PILOT), null=0.0) is None  # no spread, no difference
    assert more_seeds(difference({1: 1.0}, {1: 2.0}), null=0.0) is None  # one seed


def test_either_null_or_margin_is_asked():
    for wrong in ({}, {"null": 0.0, "margin": 0.5}):
        with pytest.raises(ValueError, match="either"):
            more_seeds(difference(PILOT, ZEROS), **wrong)
