""" "N more seeds": of pilots that decide nothing, how many decide once they have so many more."""

from __future__ import annotations

import numpy as np
import pytest
from report.simulated import rules

from ampcompare.report.statistics.power import more_seeds
from ampcompare.report.statistics.samples import difference

PILOTS = 2_500
MARGIN = 0.5


def share_decided(n: int, truth: float, spread: float, margin: float | None) -> float:
    """Of the pilots that decide nothing and are given a number, the share decided with so many more seeds."""
    generator = np.random.default_rng([n, int(100 * truth), int(100 * spread)])
    zeros = dict.fromkeys(range(n), 0.0)
    claim = {"null": 0.0} if margin is None else {"margin": margin}
    decided = []
    for pilot in generator.normal(truth, spread, (PILOTS, n)):
        if more := more_seeds(difference(dict(enumerate(pilot)), zeros), **claim):
            grown = np.concatenate([pilot, generator.normal(truth, spread, more)])
            found = rules.paired(grown[None])
            p = rules.p_two_sided(*found) if margin is None else rules.p_equivalent(*found, margin)
            decided.append(p[0] < 0.05)
    assert len(decided) > 100
    return float(np.mean(decided))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "truth", "spread"),
    [(3, 0.0, 0.4), (3, 0.3, 0.8), (5, 0.1, 0.8), (5, 0.3, 0.4), (10, 0.2, 0.8), (10, 0.3, 0.4)],
)
def test_so_many_more_are_enough_to_show_equivalence_in_85_of_100_pilots(n, truth, spread):
    """Where the truth lies within 60 % of the margin; nearer to it no pilot can tell how near."""
    assert share_decided(n, truth, spread, MARGIN) >= 0.85


@pytest.mark.slow
@pytest.mark.parametrize(("n", "truth"), [(3, 0.5), (3, 1.0), (5, 0.75), (10, 0.5)])
def test_so_many_more_are_enough_to_show_a_difference_in_85_of_100_pilots(n, truth):
    """Truths from half a standard deviation on; smaller ones ask for more than any pilot would name."""
    assert share_decided(n, truth, 1.0, None) >= 0.85
