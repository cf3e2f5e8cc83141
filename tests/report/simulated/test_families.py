"""Several claims at once: how often one is false, and whether the headline's interval holds its truth.

All backends are compared with one baseline by seed, so that their differences share its runs. Truths are 0
for all, for some, and far from 0; one group may vary more than the others.
"""

from __future__ import annotations

import numpy as np
import pytest

from report.simulated import rules

EXPERIMENTS = 20_000
GROUPS, SEEDS = (1, 2, 3, 4), tuple(range(3, 11))
TRUTHS = {
    "none differs": lambda k: np.zeros(k),
    "one differs": lambda k: np.r_[np.zeros(k - 1), 8.0],
    "all differ a little": lambda k: np.full(k, 2.0),
    "all differ much": lambda k: np.full(k, 50.0),
}


def estimates(n: int, k: int, truths: np.ndarray, last_spread: float = 1.0):
    """Values, errors (experiments, groups) and degrees of freedom of `k` groups against a baseline."""
    generator = np.random.default_rng([n, k])
    seeds = generator.normal(0, 0.5, (EXPERIMENTS, 1, n))
    base = seeds + generator.standard_normal((EXPERIMENTS, 1, n))
    spreads = np.r_[np.ones(k - 1), last_spread]
    ours = seeds + truths[:, None] + spreads[:, None] * generator.standard_normal((EXPERIMENTS, k, n))
    return rules.paired(ours - base)


@pytest.mark.rest
@pytest.mark.parametrize("n", SEEDS)
@pytest.mark.parametrize("k", GROUPS)
@pytest.mark.parametrize("truth", ["none differs", "one differs"])
@pytest.mark.parametrize("last_spread", [1.0, 5.0])
def test_one_false_difference_or_more_in_at_most_55_of_1000(n, k, truth, last_spread):
    truths = TRUTHS[truth](k)
    value, error, df = estimates(n, k, truths, last_spread)
    _, rejected = rules.holm(rules.p_two_sided(value, error, df))
    assert (rejected & (truths == 0)).any(1).mean() <= 0.055


@pytest.mark.rest
@pytest.mark.parametrize("n", SEEDS)
@pytest.mark.parametrize("k", GROUPS)
def test_one_false_equivalence_or_more_in_at_most_55_of_1000(n, k):
    """Every backend is worse by exactly the margin, which is wide against the spread: the worst case."""
    value, error, df = estimates(n, k, np.full(k, -10.0))
    _, rejected = rules.holm(rules.p_equivalent(value, error, df, 10.0))
    assert rejected.any(1).mean() <= 0.055


@pytest.mark.rest
@pytest.mark.parametrize("n", SEEDS)
@pytest.mark.parametrize("k", GROUPS)
@pytest.mark.parametrize("truth", TRUTHS)
@pytest.mark.parametrize("last_spread", [1.0, 5.0])
def test_the_fastest_of_all_is_where_its_interval_says(n, k, truth, last_spread):
    truths = TRUTHS[truth](k)
    value, error, df = estimates(n, k, truths, last_spread)
    levels, _ = rules.holm(rules.p_two_sided(value, error, df))
    missed = np.abs(value - truths) > rules.half_width(error, df, levels)
    fastest = np.take_along_axis(missed, value.argmax(1)[:, None], 1)
    assert fastest.mean() <= 0.06


def test_without_the_family_four_claims_are_false_in_more_than_one_case_in_ten():
    """What Holm's test is there for: plain 95 % intervals of four backends that do nothing."""
    value, error, df = estimates(5, 4, np.zeros(4))
    assert (rules.p_two_sided(value, error, df) < 0.05).any(1).mean() > 0.1
    _, rejected = rules.holm(rules.p_two_sided(value, error, df))
    assert rejected.any(1).mean() <= 0.055
