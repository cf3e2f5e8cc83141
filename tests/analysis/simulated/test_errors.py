"""How often a report claims a difference that does not exist.

Experiments without any true difference go through `analyse_runs`. Twenty sets of each, in the slow tests
sixty, are compared with the rule; the error rates are those of the rule.
"""

from collections import Counter

import numpy as np
import pytest
from analysis.simulated.records import BACKENDS, experiment, record
from scipy import stats

from ampcompare import analyse_runs
from ampcompare.analysis.analysis import Analysis
from ampcompare.analysis.grouping.run_metrics import MEMORY, QUALITY, SPEED
from ampcompare.analysis.statistics.multiplicity import joint_level
from ampcompare.runs import RunRecord
from ampcompare.sweeps.sweep import orders

SETS = pytest.mark.parametrize("sets", [20, pytest.param(60, marks=pytest.mark.slow)])
RUN_TO_RUN = 0.005  # standard deviation of the logarithm of throughput
DRIFT = 0.03
Chance = np.random.Generator


def nothing_differs(chance: Chance, k: int, n: int) -> list[np.ndarray]:
    """Return speeds, memory and accuracies (backends, seeds): seeds and runs differ, backends do not."""
    sides = chance.normal(0, 1, (3, k + 1, n)) + chance.normal(0, 1, (3, 1, n))
    return [np.exp(4.6 + RUN_TO_RUN * sides[0]), 4000 + 3 * sides[1], 93 + 0.1 * sides[2]]


def claimed(analysis: Analysis) -> set[str]:
    """Return the questions with a claimed difference of any group."""
    claims = [claim for c in analysis.comparisons for claim in c.claims.values()]
    return {
        claim.question for claim in claims if set(claim.shown) - {"equivalent", "not worse", "same speed"}
    }


def differs(values: np.ndarray, level: float) -> np.ndarray:
    """Return of many sets of paired differences (..., seeds) whether the interval excludes no difference."""
    n = values.shape[-1]
    half_width = stats.t.ppf((1 + level) / 2, n - 1) * values.std(-1, ddof=1) / np.sqrt(n)
    return np.abs(values.mean(-1)) > half_width


def check(wrong: Counter[str], sets: int) -> None:
    """Check that no error is more frequent than in one of twenty sets, but for one case of a hundred."""
    assert max(wrong.values(), default=0) <= stats.binom.ppf(0.99, sets, 0.05), wrong


@SETS
def test_false_differences_are_claimed_in_at_most_one_set_in_twenty(sets):
    """And it is claimed where the rule says so, of which test_rule.py simulates many more sets."""
    k, n = 2, 4
    chance, wrong = np.random.default_rng([k, n]), Counter()
    for _ in range(sets):
        speeds, peaks, quality = nothing_differs(chance, k, n)
        analysis = claimed(analyse_runs(experiment(speeds, peaks, quality)))
        sides = {SPEED: np.log(speeds), MEMORY: np.log(peaks), QUALITY: quality}
        assert analysis == {q for q, s in sides.items() if differs(s[1:] - s[0], joint_level(k)).any()}
        wrong.update(analysis)
    check(wrong, sets)


def with_control(chance: Chance, k: int, n: int, drift: float) -> list[RunRecord]:
    """Return the baseline and `k` backends between bookends: each seed of the control once at either end."""
    first, last = ([("none", seed, arm) for seed in range(n)] for arm in ("first", "last"))
    blocks = zip(orders("sweep", k + 1), range(n), strict=False)
    order = [*first, *((BACKENDS[arm], seed, "") for arms, seed in blocks for arm in arms), *last]
    runs = []
    for place, (backend, seed, arm) in enumerate(order):
        speed = 100 * np.exp(chance.normal(0, RUN_TO_RUN) - drift * place / (len(order) - 1))
        one = record(backend, seed, speed=speed, place=place, plan={"control": "bookends"})
        one.id += arm
        one.config["plan"] |= {"arm": arm} if arm else {}
        runs.append(one)
    return runs


def alarms(analysis: Analysis) -> bool:
    """Return whether the control shows a drift."""
    (control,) = [c for c in analysis.comparisons if c.is_control]
    return bool(control.drift and control.drift.side_of(1.0))


@SETS
def test_the_control_shows_false_drift_in_at_most_one_sweep_in_twenty(sets):
    chance, wrong = np.random.default_rng([1, 3, 8]), Counter()
    for _ in range(sets):
        analysis = analyse_runs(with_control(chance, 1, 3, 0.0))
        wrong.update(claimed(analysis) | ({"alarm"} if alarms(analysis) else set()))
    check(wrong, sets)


def test_the_control_shows_a_true_drift():
    chance = np.random.default_rng(9)
    analyses = [analyse_runs(with_control(chance, 1, 4, DRIFT)) for _ in range(4)]
    assert sum(map(alarms, analyses)) >= 3
    for analysis in analyses:
        assert alarms(analysis) == any("the A/A control changed" in remark for remark in analysis.caveats)
