"""How often the rule errs, and how often it decides: simulated comparisons through the code that decides.

Hundreds of sets go through the functions of a report (`estimate_difference`, `joint_level`, `read_quality`),
some through `analyse_runs`. Rates may exceed their limit by three standard errors of the simulation.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from analysis.simulated.records import experiment
from scipy import stats

from ampcompare import analyse_runs
from ampcompare.analysis.claims import read_quality
from ampcompare.analysis.grouping.compared_metric import ComparedMetric
from ampcompare.analysis.statistics.mean_difference import estimate_difference
from ampcompare.analysis.statistics.multiplicity import joint_level

MARGIN = 0.5
METRIC = ComparedMetric(margin=MARGIN)
SETS = 150
PLANS = {  # numbers of seeds, and their fractions of the error
    "one look": ((5,), (1.0,)),
    "two looks": ((5, 10), (0.2, 0.8)),
}
DECIDED = {"worse", "better", "equivalent", "not worse"}


def limit(rate: float) -> float:
    """Return the rate with three standard errors."""
    return rate + 3 * math.sqrt(rate * (1 - rate) / SETS)


def shown(differences: np.ndarray, level: float) -> set[str]:
    """Return what the report reads from paired differences at a level."""
    pairs = pd.Series(differences)
    estimate = estimate_difference(pairs, 0 * pairs)
    return set(read_quality(estimate.at_level(level), METRIC).value)


def claims_of_one_set(values: np.ndarray, looks, shares, truth: float) -> list[set[str]]:
    """Return what is claimed of each arm at the look that ends the comparison.

    Args:
        values: The quality of the baseline and of k arms, shape (k + 1, seeds).
        looks: Numbers of seeds.
        shares: Fractions of the error.
        truth: The true difference of every arm.
    """
    differences = values[1:] - values[0] + truth
    for n, share in zip(looks, shares, strict=True):
        level = joint_level(len(differences), share=share)
        claims = [shown(arm[:n], level) for arm in differences]
        if all(words & DECIDED for words in claims):
            break
    return claims


@pytest.mark.parametrize(("k", "plan"), [(3, "one look"), (2, "two looks")])
def test_all_arms_and_looks_together_err_in_at_most_one_set_in_twenty(k, plan):
    looks, shares = PLANS[plan]
    values = np.random.default_rng([k, 5]).normal(0, 0.2, (SETS, k + 1, looks[-1]))
    for truth, wrong in ((0.0, {"worse", "better"}), (-MARGIN, {"equivalent", "not worse", "better"})):
        claims = [set().union(*claims_of_one_set(one, looks, shares, truth)) for one in values]
        assert np.mean([bool(words & wrong) for words in claims]) <= limit(0.05)


def runs_of(accuracies: Sequence[np.ndarray], plan: dict | None = None):
    """Return the records of these accuracies in percent, an array for each group."""
    quality = np.array(accuracies)
    return experiment(np.full(quality.shape, 100.0), quality=quality, plan=plan)


@pytest.mark.parametrize(
    ("seeds", "plan", "share"),
    [
        (10, {"looks": [5, 10], "shares": [0.2, 0.8]}, 0.8),
        (7, {"looks": [5, 10], "shares": [0.2, 0.8]}, 0.2),  # no planned look
        (5, None, 1.0),
    ],
)
@pytest.mark.parametrize("k", [1, 3])
def test_a_report_decides_at_the_level_of_its_look(k, seeds, plan, share):
    values = np.random.default_rng([k, seeds]).normal(93, 0.3, (k + 1, seeds))
    analysis = analyse_runs(runs_of(values, plan))
    level = 1 - 0.05 * share / k
    assert analysis.level == pytest.approx(level)
    for arm, comparison in enumerate(analysis.comparisons, start=1):
        interval = stats.ttest_rel(values[arm], values[0]).confidence_interval(level)
        estimate = comparison.estimates["quality"]
        assert estimate.ends == pytest.approx(tuple(interval), abs=1e-9)
        assert comparison.claims["quality"].shown == read_quality(estimate, METRIC).value


def test_a_report_counts_identical_arms_once_and_names_them_and_the_level_of_each_question():
    baseline, arm, other = np.random.default_rng(3).normal(93, 0.3, (3, 5))
    analysis = analyse_runs(runs_of([baseline, arm, arm, other]))
    levels = [analysis.levels[question] for question in ("quality", "speed")]
    assert levels == pytest.approx([1 - 0.05 / 2, 1 - 0.05 / 3])
    assert "97.5% (accuracy) or 98.33% (" in analysis.caption
    assert any("native and apex_o1 have exactly the same accuracy" in note for note in analysis.notes)


def test_records_of_version_0_3_keep_the_level_of_their_rule():
    """They have every option of the plan but `plan.rule`, and count identical arms twice."""
    baseline, arm = np.random.default_rng(3).normal(93, 0.3, (2, 5))
    for plan, error in (({"looks": [3, 6, 10], "margin": 0.5}, 0.05 / 6), ({}, 0.05 / 2)):
        analysis = analyse_runs(runs_of([baseline, arm, arm], plan | {"control": "none"}))
        assert analysis.level == pytest.approx(1 - error)
