"""Samples that overlap in part: the interval holds the truth, from two common seeds of ten to all but one."""

from __future__ import annotations

import numpy as np
import pytest

from report.simulated import rules

EXPERIMENTS = 10_000


def coverage(n: int, m: int, pairs: int, r: float, ratio_of_deviations: float = 1.0) -> float:
    """How often the 95 % interval of a difference holds it; partners are correlated by `r`."""
    generator = np.random.default_rng([n, m, pairs])
    ours, theirs = (generator.standard_normal((EXPERIMENTS, size)) for size in (n, m))
    theirs[:, :pairs] = r * ours[:, :pairs] + np.sqrt(1 - r * r) * theirs[:, :pairs]
    value, error, df = rules.partly_paired(ours, ratio_of_deviations * theirs, pairs)
    return float(np.mean(np.abs(value) <= rules.half_width(error, df)))


@pytest.mark.parametrize("r", [0.0, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("pairs", [2, 3, 5, 8, 9])
def test_ten_and_ten_with_some_in_common(pairs, r):
    assert coverage(10, 10, pairs, r) >= 0.94


@pytest.mark.parametrize("r", [0.0, 0.5, 0.99])
@pytest.mark.parametrize(
    ("n", "m", "pairs"), [(3, 3, 2), (4, 4, 2), (4, 3, 3), (5, 4, 4), (5, 5, 3), (10, 5, 5)]
)
def test_small_samples_with_some_in_common(n, m, pairs, r):
    assert coverage(n, m, pairs, r) >= 0.94


@pytest.mark.parametrize("r", [0.0, 0.9])
def test_sides_that_vary_by_a_factor_of_three(r):
    assert coverage(10, 10, 4, r, 3.0) >= 0.94


def test_two_runs_beside_ten_hold_less_and_the_documentation_says_so():
    """Welch's own weakness, not that of the pairs: docs/reports.md names the figure."""
    assert coverage(10, 2, 0, 0.0) == pytest.approx(0.89, abs=0.01)
