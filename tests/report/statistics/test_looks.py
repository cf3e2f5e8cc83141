"""Levels over several looks: known ones, those of a simulation of whole samples, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ampcompare.report.statistics import looks
from ampcompare.report.statistics.looks import error_of, level_of, statistics_at


@pytest.mark.parametrize("two_sided", [True, False])
def test_the_levels_that_are_known_are_those_simulated(two_sided):
    found = looks._simulated((3, 6, 10), two_sided, 0.05)
    assert found == pytest.approx(level_of([3, 6, 10], two_sided), rel=0.02)


def test_increments_give_the_t_of_the_whole_sample():
    """Sums and squares drawn as such against t tests of samples drawn value by value."""
    generator = np.random.default_rng(2)
    values = generator.standard_normal((10, 100_000))
    whole = np.stack([stats.ttest_1samp(values[:n], 0).statistic for n in (3, 6, 10)])
    drawn = statistics_at((3, 6, 10), 100_000, generator)
    for level in (0.0194, 0.05):
        assert error_of(drawn, (3, 6, 10), level, True) == pytest.approx(
            error_of(whole, (3, 6, 10), level, True), abs=0.004
        )
    assert np.corrcoef(np.clip(whole, -9, 9)) == pytest.approx(np.corrcoef(np.clip(drawn, -9, 9)), abs=0.015)


def test_many_looks_are_levelled_and_more_than_a_hundred_refused():
    assert 0.05 / 100 < level_of(range(2, 102)) < level_of(range(2, 22)) < level_of([2, 3])
    with pytest.raises(ValueError, match="101 looks: expected 100 at most"):
        level_of(range(2, 103))


@pytest.mark.parametrize("plan", [[], [1, 3], [3, 2.5], ["3"], [True, 3], [0], [-3, 3]])
def test_looks_that_are_no_numbers_of_seeds_are_refused(plan):
    with pytest.raises(ValueError, match="at least 2"):
        level_of(plan)


def test_a_level_lies_between_bonferronis_and_that_of_one_look():
    assert (level_of([7]), level_of([7], alpha=0.0125)) == (0.05, 0.0125)
    for plan in ([3, 5], [4, 8, 12, 16], [2, 3]):
        assert 0.05 / len(plan) <= level_of(plan) < 0.05
    assert level_of([3, 6, 10], alpha=0.025) < level_of([3, 6, 10]) / 1.9
