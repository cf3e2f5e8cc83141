"""A sweep that is looked at after 3, 6 and 10 seeds, and ends with the first claim that is shown."""

from __future__ import annotations

import numpy as np
import pytest
from report.simulated import rules

from ampcompare.report.statistics.looks import level_of

LOOKS = (3, 6, 10)


def shown_at_a_look(values: np.ndarray, test, alpha: float) -> np.ndarray:
    """Which experiments (first axis) have a claim of any group shown at any look, by Holm's at `alpha`."""
    found = np.zeros(len(values), dtype=bool)
    for n in LOOKS:
        found |= rules.holm(test(*rules.paired(values[..., :n])), alpha)[1].any(1)
    return found


def differences(truth: float, spread: float, k: int, experiments: int) -> np.ndarray:
    """Paired differences (experiments, groups, seeds) of `k` groups that share a baseline."""
    generator = np.random.default_rng([k, experiments])
    base = generator.normal(0, spread / np.sqrt(2), (experiments, 1, LOOKS[-1]))
    return truth + base + generator.normal(0, spread / np.sqrt(2), (experiments, k, LOOKS[-1]))


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.05, 0.2, 0.5])
def test_false_equivalence_over_all_looks_in_at_most_one_case_in_twenty(spread):
    """The truth is a loss of exactly the margin, in half of the experiments a gain."""
    margin, values = 0.5, differences(0, spread, 1, 1_000_000)
    values[::2] += margin
    values[1::2] -= margin
    shown = shown_at_a_look(
        values, lambda *e: rules.p_equivalent(*e, margin), level_of(LOOKS, two_sided=False)
    )
    assert shown.mean() <= 0.05


@pytest.mark.slow
def test_false_difference_over_all_looks_in_at_most_one_case_in_twenty():
    shown = shown_at_a_look(differences(0, 0.3, 1, 200_000), rules.p_two_sided, level_of(LOOKS))
    assert shown.mean() == pytest.approx(0.05, abs=0.001)


@pytest.mark.slow
@pytest.mark.parametrize("k", [2, 3, 4])
def test_families_and_looks_together_keep_their_error(k):
    values = differences(0, 0.3, k, 50_000)
    assert shown_at_a_look(values, rules.p_two_sided, level_of(LOOKS)).mean() <= 0.055
    values = differences(10.0, 0.3, k, 50_000)
    shown = shown_at_a_look(values, lambda *e: rules.p_equivalent(*e, 10.0), level_of(LOOKS, two_sided=False))
    assert shown.mean() <= 0.055


def test_at_the_plain_level_three_looks_are_false_in_more_than_one_case_in_ten():
    """What the stricter level is there for."""
    assert shown_at_a_look(differences(0, 0.3, 1, 20_000), rules.p_two_sided, 0.05).mean() > 0.1
