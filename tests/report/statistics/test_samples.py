"""Statistics against cases worked by hand, against SciPy, and against simulated runs with known truth."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from ampcompare.report.statistics.samples import (
    difference,
    equivalence,
    mean,
    mean_of_seeds,
    prediction,
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


OURS, THEIRS = (2.1, 1.2, 4.4, 3.0, 2.5), (1.9, 1.5, 3.1, 2.0)


def test_partly_paired_is_derricks_formula_step_by_step():
    """Derrick, Toher and White 2017, T_new2: seeds 0 to 2 in common, two alone on our side, one on theirs."""
    ours, theirs = by_seed(*OURS), by_seed(*THEIRS[:3]) | {9: THEIRS[3]}
    n1, n2, n_a, n_b, n_c = 5, 4, 2, 1, 3
    v1, v2 = np.var(OURS, ddof=1), np.var(THEIRS, ddof=1)
    r = np.corrcoef(OURS[:3], THEIRS[:3])[0, 1]
    error = math.sqrt(v1 / n1 + v2 / n2 - 2 * r * math.sqrt(v1 * v2) * n_c / (n1 * n2))
    gamma = (v1 / n1 + v2 / n2) ** 2 / ((v1 / n1) ** 2 / (n1 - 1) + (v2 / n2) ** 2 / (n2 - 1))
    df = (n_c - 1) + (gamma - n_c + 1) / (n_a + n_b + 2 * n_c) * (n_a + n_b)
    found = difference(ours, theirs)
    assert (found.value, found.error) == (
        pytest.approx(np.mean(OURS) - np.mean(THEIRS)),
        pytest.approx(error),
    )
    assert (found.df, found.correlation) == (pytest.approx(df), pytest.approx(r))
    assert found.high == pytest.approx(found.value + stats.t.ppf(0.975, df) * error)
    assert (found.n, found.sizes, found.pairs, found.left_out) == (4, (5, 4), 3, 0)
    assert "Derrick" in found.method
    assert found.basis == "n = 5 and 4, partly paired t, 3 pairs, r = 1.00"


def test_partly_paired_ends_in_the_paired_and_in_welchs_test():
    from ampcompare.report.statistics.samples import _two_sides

    ours, theirs = list(OURS[:4]), list(THEIRS)
    r = np.corrcoef(ours, theirs)[0, 1]
    paired, welch = _two_sides(ours, theirs, r, 4), _two_sides(ours, theirs, None, 0)
    t = stats.ttest_rel(ours, theirs)
    assert np.mean(np.subtract(ours, theirs)) / paired["error"] == pytest.approx(t.statistic)
    assert paired["df"] == pytest.approx(t.df)
    assert paired["spread"] == pytest.approx(np.std(np.subtract(ours, theirs), ddof=1))
    t = stats.ttest_ind(ours, theirs, equal_var=False)
    assert np.mean(np.subtract(ours, theirs)) / welch["error"] == pytest.approx(t.statistic)
    assert welch["df"] == pytest.approx(t.df)


def test_two_common_seeds_of_ten_throw_no_run_away():
    generator = np.random.default_rng(5)
    ours, theirs = generator.normal(1, 1, 10), generator.normal(0, 1, 10)
    found = difference(by_seed(*ours), by_seed(*theirs, first=8))
    test = stats.ttest_ind(ours, theirs, equal_var=False)
    assert (found.low, found.high) == pytest.approx(tuple(test.confidence_interval()))
    assert (found.n, found.left_out, found.correlation) == (10, 0, None)
    assert "only 2 of the seeds in common" in found.method


@pytest.mark.parametrize("level", [0.9, 0.95, 0.9806, 0.999])
def test_an_interval_at_any_level_is_scipys(level):
    ours, theirs = OURS[:4], THEIRS
    found = difference(by_seed(*ours), by_seed(*theirs)).at(level)
    interval = stats.ttest_rel(ours, theirs).confidence_interval(level)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    logs = ratio(by_seed(*ours), by_seed(*theirs)).at(level)
    interval = stats.ttest_rel(np.log(ours), np.log(theirs)).confidence_interval(level)
    assert (logs.low, logs.high) == pytest.approx((math.exp(interval.low), math.exp(interval.high)))
    plain = ratio(by_seed(*ours), by_seed(*theirs))
    assert (logs.at(0.95).low, logs.at(0.95).high) == pytest.approx((plain.low, plain.high), rel=1e-14)


def test_p_values_are_scipys():
    ours, theirs = OURS[:4], THEIRS
    paired, unpaired = (difference(by_seed(*ours), by_seed(*theirs, first=k)) for k in (0, 10))
    of_ratio = ratio(by_seed(*ours), by_seed(*theirs))
    assert paired.p_of(0.1) == pytest.approx(stats.ttest_rel(np.subtract(ours, 0.1), theirs).pvalue)
    one_side = stats.ttest_rel(np.subtract(ours, 0.1), theirs, alternative="greater").pvalue
    assert paired.p_of(0.1, "above") == pytest.approx(one_side)
    assert paired.p_of(0.1, "below") == pytest.approx(1 - one_side)
    assert unpaired.p_of(0.0) == pytest.approx(stats.ttest_ind(ours, theirs, equal_var=False).pvalue)
    assert of_ratio.p_of(1.2) == pytest.approx(
        stats.ttest_1samp(np.log(np.divide(ours, theirs)), math.log(1.2)).pvalue
    )


@pytest.mark.parametrize("null", [-0.4, 0.0, 0.3, 1.0])
def test_the_interval_at_one_minus_p_just_touches_the_null(null):
    found = difference(by_seed(*OURS), by_seed(*THEIRS))
    touching = found.at(1 - found.p_of(null))
    assert null == pytest.approx(touching.low if null < found.value else touching.high)


def test_equivalence_at_another_level_is_that_interval_within_the_margin():
    found = difference(by_seed(1.1, 2.2, 3.3), by_seed(1.0, 2.0, 3.0))
    for level in (0.05, 0.0204, 0.01):
        test = equivalence(found, 0.5, level)
        assert (test.low, test.high) == pytest.approx(
            stats.t.interval(1 - 2 * level, 2, 0.2, 0.1 / math.sqrt(3))
        )
        assert test.holds == (test.high < 0.5)
    assert [equivalence(found, 0.5, level).holds for level in (0.05, 0.0204, 0.01)] == [True, True, False]


def test_the_next_run_is_predicted_by_hand():
    # 1, 2, 3: mean 2, deviation 1: one more lies within t * sqrt(1 + 1/3)
    low, high = prediction(by_seed(1.0, 2.0, 3.0))
    assert (low, high) == pytest.approx((2 - T_2 * math.sqrt(4 / 3), 2 + T_2 * math.sqrt(4 / 3)), rel=1e-6)
    assert prediction(by_seed(1.0, 2.0, 3.0), low=0.0)[0] == 0.0
    assert prediction(by_seed(1.0)) is None
    assert prediction({}) is None


def test_the_next_pair_is_predicted_by_hand():
    low, high = difference(by_seed(101.0, 202.0, 303.0), by_seed(100.0, 200.0, 300.0)).prediction()
    assert (low, high) == pytest.approx((2 - T_2 * math.sqrt(4 / 3), 2 + T_2 * math.sqrt(4 / 3)), rel=1e-6)
    low, high = ratio(by_seed(math.e, math.e**2, math.e**3), by_seed(1.0, 1.0, 1.0)).prediction()
    assert math.log(high) == pytest.approx(2 + T_2 * math.sqrt(4 / 3), rel=1e-6)


def test_a_mean_is_cut_at_what_the_figure_can_be_and_says_so():
    found = mean(by_seed(0.7, 0.99, 0.98), low=0.0, high=1.0)
    free = mean(by_seed(0.7, 0.99, 0.98))
    assert free.high > 1.0 == found.high
    assert (found.low, found.value) == (free.low, free.value)
    assert found.method == "t interval over seeds, cut at its bound"
    assert free.method == "t interval over seeds"
    assert found.at(0.999).high == 1.0
    saturated = mean(by_seed(1.0, 1.0, 1.0), low=0.0, high=1.0)
    assert (saturated.low, saturated.high, saturated.method) == (1.0, 1.0, "t interval over seeds")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1.7e308])
def test_a_figure_that_is_no_number_is_left_out(bad):
    good, spoilt = by_seed(1.0, 2.0, 4.0), {**by_seed(1.0, 2.0, 4.0), "bad": bad}
    assert mean(spoilt) == mean(good)
    assert difference(spoilt, good) == difference(good, good)
    assert ratio(good, spoilt) == ratio(good, good)
    assert mean({1: bad}) is None
    assert difference({1: bad}, good) is None


def test_a_logarithm_too_wide_for_a_float_has_an_infinite_end():
    found = ratio(by_seed(1e-150, 1e150), by_seed(1.0, 1.0))
    assert (found.low, found.high) == (0.0, math.inf)
    assert found.p_of(1.0) == pytest.approx(1.0)
    assert found.at(0.5).has_interval


def test_rounding_is_no_spread():
    # 0.1 + 0.2 - 0.1 is not 0.2 in binary
    found = difference({1: 0.3, 2: 0.7, 3: 1.1}, {1: 0.2, 2: 0.6, 3: 1.0})
    assert (found.error, found.low, found.high) == (0.0, found.value, found.value)
    assert found.p_of(0.0) == 0.0
    same = difference({1: 0.1 + 0.2, 2: 0.5}, {1: 0.3, 2: 0.5})
    assert (same.value, same.p_of(0.0)) == (0.0, 1.0)


def test_sides_that_do_not_vary_have_no_correlation_also_where_partly_paired():
    found = difference(by_seed(1.0, 1.0, 1.0, 1.0), by_seed(1.0, 1.0, 1.0))
    assert (found.correlation, found.error, found.value, found.p_of(0.0)) == (None, 0.0, 0.0, 1.0)


def test_without_spread_p_is_that_of_a_certainty():
    found = difference(by_seed(2.0, 3.0), by_seed(1.0, 2.0))
    assert (found.p_of(1.0), found.p_of(0.0), found.p_of(2.0, "above")) == (1.0, 0.0, 1.0)
    assert found.prediction() == (1.0, 1.0)
    assert found.correlation is None


def test_what_pairing_bought_is_the_correlation_of_the_pairs():
    ours, theirs = by_seed(1.0, 2.0, 4.0, 3.0), by_seed(1.1, 2.3, 3.5, 3.1)
    by_hand = np.corrcoef(list(ours.values()), list(theirs.values()))[0, 1]
    assert difference(ours, theirs).correlation == pytest.approx(by_hand)
    by_hand = np.corrcoef(np.log(list(ours.values())), np.log(list(theirs.values())))[0, 1]
    assert ratio(ours, theirs).correlation == pytest.approx(by_hand)
    assert difference(by_seed(1.0, 2.0), by_seed(1.0, 3.0)).correlation is None


def test_another_kind_of_interval_has_no_other_level_and_no_p():
    found = replace(mean(by_seed(1.0, 2.0)), error=None, df=None)
    assert (found.at(0.9).low, found.p_of(0.0), found.prediction()) == (None, None, None)
    assert found.at(0.95).has_interval


@pytest.mark.parametrize("confidence", [0.0, 1.0, -1.0, math.nan])
def test_a_level_outside_0_to_1_is_refused(confidence):
    with pytest.raises(ValueError, match="between 0 and 1"):
        mean(by_seed(1.0, 2.0)).at(confidence)


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


@pytest.mark.parametrize("paired", [True, False])
def test_two_figures_off_by_the_same_step_prove_nothing_and_many_do(paired: bool):
    def found(n: int, steps: int):
        ours = {k: (50 + steps + k) / 100 for k in range(n)}
        theirs = {k if paired else f"other {k}": (50 + k) / 100 for k in range(n)}
        return difference(ours, theirs, step=0.01)

    assert difference({1: 0.51, 2: 0.52}, {1: 0.5, 2: 0.51}).p_of(0.0) == 0  # without steps it is exact
    assert found(2, 1).p_of(0.0) > 0.1
    assert found(2, 0).low < 0 < found(2, 0).high
    assert found(6, 40).p_of(0.0) < 1e-4
    if paired:
        # By hand: each figure is off by a deviation of step / sqrt(12), a pair by sqrt(2) of it.
        assert found(3, 2).error == pytest.approx(0.01 / math.sqrt(12) * math.sqrt(2) / math.sqrt(3))
        assert found(3, 2).method == "paired by seed, t interval of figures in steps"


def test_figures_that_vary_more_than_their_steps_are_estimated_as_ever():
    ours, theirs = {1: 0.93, 2: 0.95, 3: 0.91}, {1: 0.90, 2: 0.94, 3: 0.92}
    assert difference(ours, theirs, step=0.01) == difference(ours, theirs)
