"""Statistics against cases worked by hand, against SciPy, and against simulated runs with known truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from ampcompare.report.analysis.statistics import (
    difference,
    equivalence,
    mean,
    mean_of_seeds,
    ratio,
)

T_2 = 4.302653  # 97.5 % quantile of Student's t with 2 degrees of freedom, from a printed table
T_2_90 = 2.919986  # 95 % quantile


def by_seed(*values: float, first: int = 0) -> dict[int, float]:
    return dict(enumerate(values, first))


def test_mean_of_three_seeds_by_hand():
    # 1, 2, 3: mean 2, standard deviation 1, standard error 1/sqrt(3)
    found = mean(by_seed(1.0, 2.0, 3.0))
    assert found.value == 2.0
    assert found.high - found.value == pytest.approx(T_2 / math.sqrt(3), rel=1e-5)
    assert found.value - found.low == pytest.approx(T_2 / math.sqrt(3), rel=1e-5)


def test_paired_difference_by_hand():
    # differences 1, 2, 3 although the seeds themselves are 100 apart
    found = difference(by_seed(101.0, 202.0, 303.0), by_seed(100.0, 200.0, 300.0))
    assert (found.value, found.n, found.df) == (2.0, 3, 2.0)
    assert found.low == pytest.approx(2 - T_2 / math.sqrt(3), rel=1e-5)
    assert found.paired


def test_paired_ratio_by_hand():
    # ratios 2 * e^-0.1, 2, 2 * e^0.1: geometric mean 2, standard error of the logarithm 0.1/sqrt(3)
    ours = by_seed(2 * math.exp(-0.1) * 5, 2 * 7.0, 2 * math.exp(0.1) * 9)
    found = ratio(ours, by_seed(5.0, 7.0, 9.0))
    assert found.value == pytest.approx(2.0)
    half = T_2 * 0.1 / math.sqrt(3)
    assert (found.low, found.high) == pytest.approx((2 * math.exp(-half), 2 * math.exp(half)), rel=1e-5)


def test_ratio_the_other_way_round_is_its_inverse():
    ours, theirs = by_seed(3.0, 4.0, 6.0), by_seed(1.0, 2.5, 2.0)
    there, back = ratio(ours, theirs), ratio(theirs, ours)
    assert there.value == pytest.approx(1 / back.value)
    assert (there.low, there.high) == pytest.approx((1 / back.high, 1 / back.low))


@pytest.mark.parametrize("sides", [((1.9,), (1.0,)), ((1.9,), (1.0, 1.1, 0.9)), ((1.9, 2.0), (1.0,))])
def test_one_seed_has_no_interval(sides):
    found = ratio(by_seed(*sides[0]), by_seed(*sides[1]))
    assert found.value == pytest.approx(1.9)
    assert (found.low, found.high, found.n) == (None, None, 1)
    assert equivalence(found, 0.5) is None


def test_pairs_are_by_seed_and_not_by_order():
    ours, theirs = {1: 10.0, 2: 20.0, 3: 30.0}, {3: 29.0, 2: 19.0, 1: 9.0}
    found = difference(ours, theirs)
    assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)


def test_seeds_without_a_partner_are_used():
    found = difference(by_seed(1.0, 2.0, 3.0, 6.0), by_seed(0.0, 1.0, 2.0))
    assert (found.value, found.n, found.left_out, found.sizes, found.pairs) == (2.0, 3, 0, (4, 3), 3)


def test_without_common_seeds_welchs_interval_is_scipys():
    a, b = [1.0, 2.0, 4.0], [7.0, 7.5, 9.0, 6.0]
    found = difference(by_seed(*a), by_seed(*b, first=10))
    theirs = stats.ttest_ind(a, b, equal_var=False).confidence_interval()
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high))
    assert (found.paired, found.kind) == (False, "Welch t")


def test_a_seed_that_ran_twice_counts_once():
    assert mean_of_seeds([("1", 2.0), ("1", 4.0), ("2", 9.0)]) == {"1": 3.0, "2": 9.0}


def test_nothing_on_one_side_gives_nothing():
    assert difference({}, by_seed(1.0)) is None
    assert ratio(by_seed(0.0), by_seed(1.0)) is None
    assert mean({}) is None


def test_two_one_sided_tests_by_hand():
    # differences 0.1, 0.2, 0.3: mean 0.2, error 0.1/sqrt(3) = 0.0577. To the nearer margin (0.5): t =
    # 0.3/0.0577 = 5.196 with 2 degrees of freedom, whose tail has the closed form (1 - t/sqrt(t^2 + 2))/2 =
    # 0.01754.
    found = difference(by_seed(1.1, 2.2, 3.3), by_seed(1.0, 2.0, 3.0))
    test = equivalence(found, 0.5)
    t = 0.3 / (0.1 / math.sqrt(3))
    assert test.p == pytest.approx((1 - t / math.sqrt(t * t + 2)) / 2)
    assert test.holds
    assert test.high == pytest.approx(0.2 + T_2_90 * 0.1 / math.sqrt(3), rel=1e-5)
    assert not equivalence(found, 0.3).holds


def test_equivalence_is_the_90_percent_interval_within_the_margin():
    generator = np.random.default_rng(1)
    for _ in range(200):
        found = difference(by_seed(*generator.normal(0.2, 0.3, 4)), by_seed(0.0, 0.0, 0.0, 0.0))
        test = equivalence(found, 0.5)
        assert test.holds == (test.low > -0.5 and test.high < 0.5)


def test_no_significant_difference_is_not_equivalence():
    found = difference(by_seed(-2.0, 0.1, 2.2), by_seed(0.0, 0.0, 0.0))
    assert found.low < 0 < found.high
    assert not equivalence(found, 0.5).holds


def test_seeds_that_all_differ_alike_decide_by_the_margin():
    same = difference(by_seed(1.0, 2.0), by_seed(1.0, 2.0))
    assert equivalence(same, 0.5).holds
    far = difference(by_seed(2.0, 3.0), by_seed(1.0, 2.0))
    assert not equivalence(far, 0.5).holds


def runs(generator, n: int, truth: float):
    """Throughputs of `n` seeds on both sides: what a seed and its moment on the machine share is in both."""
    shared = generator.normal(0, 0.2, n)
    ours = np.exp(math.log(80 * truth) + shared + generator.normal(0, 0.03, n))
    theirs = np.exp(math.log(80) + shared + generator.normal(0, 0.03, n))
    return by_seed(*ours), by_seed(*theirs)


@pytest.mark.parametrize("n", [3, 5, 10])
def test_coverage_of_the_paired_ratios_interval(n):
    generator = np.random.default_rng(n)
    found = [ratio(*runs(generator, n, 1.9)) for _ in range(1000)]
    assert 0.93 <= np.mean([f.low <= 1.9 <= f.high for f in found]) <= 0.97


@pytest.mark.parametrize("first", [0, 100], ids=["paired", "not paired"])
def test_coverage_of_the_differences_interval(first):
    generator = np.random.default_rng(7)

    def once():
        ours = by_seed(*generator.normal(93.4, 0.3, 5), first=first)
        return difference(ours, by_seed(*generator.normal(93.0, 0.3, 5)))

    assert 0.93 <= np.mean([f.low <= 0.4 <= f.high for f in (once() for _ in range(1000))]) <= 0.97


def test_equivalence_is_found_wrongly_in_at_most_one_case_in_twenty():
    generator = np.random.default_rng(3)
    # The truth is a difference of exactly the margin.
    zeros = by_seed(*np.zeros(5))
    found = [
        equivalence(difference(by_seed(*generator.normal(0.5, 0.2, 5)), zeros), 0.5) for _ in range(1000)
    ]
    assert np.mean([test.holds for test in found]) <= 0.065
