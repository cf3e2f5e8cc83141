"""The rules that the simulations use are those of the report: the same numbers, case by case."""

from __future__ import annotations

import numpy as np
import pytest

from ampcompare.report.analysis import family
from ampcompare.report.analysis.statistics import Estimate, difference, equivalence
from report.simulated import rules

MARGIN = 0.8


def keyed(values: np.ndarray, pairs: int, side: int) -> dict:
    return {(i if i < pairs else (side, i)): float(v) for i, v in enumerate(values)}


@pytest.mark.parametrize(("n", "m", "pairs"), [(5, 5, 5), (4, 6, 0), (10, 10, 2), (6, 5, 3), (5, 4, 4)])
def test_value_error_and_p_are_those_of_the_report(n, m, pairs):
    generator = np.random.default_rng(n)
    ours, theirs = generator.normal(0.3, 1, (20, n)), generator.normal(0, 2, (20, m))
    if n == m == pairs:
        value, error, df = rules.paired(ours - theirs)
    else:
        value, error, df = rules.partly_paired(ours, theirs, pairs)
    p, same = rules.p_two_sided(value, error, df), rules.p_equivalent(value, error, df, MARGIN)
    half = rules.half_width(error, df, 0.02)
    for i in range(20):
        real = difference(keyed(ours[i], pairs, 0), keyed(theirs[i], pairs, 1))
        test = equivalence(real, MARGIN)
        assert (value[i], error[i], p[i], same[i]) == pytest.approx(
            (real.value, real.error, real.p_of(0.0), test.p)
        )
        assert half[i] == pytest.approx(real.at(0.98).high - real.value)
    assert isinstance(real, Estimate)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_levels_and_rejections_are_those_of_the_report(k):
    p = np.random.default_rng(k).beta(0.3, 2, (300, k))
    levels, rejected = rules.holm(p, 0.04)
    for i in range(300):
        real = family.holm(dict(enumerate(p[i])), 0.04)
        assert [real[j].rejected for j in range(k)] == list(rejected[i])
        assert [real[j].level for j in range(k)] == pytest.approx(list(levels[i]))
