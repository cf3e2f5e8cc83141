"""Holm's test against cases worked by hand and against the closed test that it is a short cut for."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from ampcompare.report.statistics.family import holm
from ampcompare.report.statistics.samples import difference


def test_three_claims_by_hand():
    # in their order .01 < .05/3 is rejected; .03 > .05/2 is not; so .04 is not either, at the level of .03
    found = holm({"a": 0.01, "b": 0.04, "c": 0.03})
    assert [found[key].rejected for key in "abc"] == [True, False, False]
    assert [found[key].level for key in "abc"] == pytest.approx([0.05 / 3, 0.05 / 2, 0.05 / 2])
    assert [found[key].adjusted_p for key in "abc"] == pytest.approx([0.03, 0.06, 0.06])


def test_a_p_that_is_nan_shows_nothing_and_counts():
    found = holm({"a": math.nan, "b": 0.03})
    assert (found["b"].rejected, found["b"].level, found["a"].adjusted_p) == (False, 0.025, 1.0)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_it_is_bonferronis_closed_test(k):
    """A claim is rejected if every set of claims that holds it is, by Bonferroni (Marcus 1976)."""
    generator = np.random.default_rng(k)
    for _ in range(100):
        p = dict(enumerate(generator.beta(0.3, 3, k)))
        sets = [s for size in range(1, k + 1) for s in itertools.combinations(p, size)]
        closed = {key: max(min(1.0, len(s) * min(p[i] for i in s)) for s in sets if key in s) for key in p}
        found = holm(p)
        assert {key: tested.adjusted_p for key, tested in found.items()} == pytest.approx(closed)
        assert {key: tested.rejected for key, tested in found.items()} == {
            k: v < 0.05 for k, v in closed.items()
        }


def test_the_interval_at_the_tested_level_leaves_the_null_out_exactly_if_rejected():
    generator = np.random.default_rng(4)
    rejected = 0
    for _ in range(200):
        found = [
            difference(dict(enumerate(generator.normal(0.8, 0.5, 4))), dict(enumerate(np.zeros(4))))
            for _ in range(3)
        ]
        for key, tested in holm({i: e.p_of(0.0) for i, e in enumerate(found)}).items():
            shown = found[key].at(1 - tested.level)
            assert tested.rejected == (not shown.low <= 0 <= shown.high)
            rejected += tested.rejected
    assert 100 < rejected < 500  # both sides of the equality are seen
