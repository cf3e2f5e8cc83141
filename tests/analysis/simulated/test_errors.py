"""How often a report claims a difference that does not exist.

Experiments without any true difference go through `analyse_runs`. Twenty sets are compared with the rule; the
error rates are those of the rule.
"""

from collections import Counter

import numpy as np
from analysis.simulated.records import experiment
from scipy import stats

from ampcompare import analyse_runs
from ampcompare.analysis.analysis import Analysis
from ampcompare.analysis.grouping.run_metrics import MEMORY, QUALITY, SPEED
from ampcompare.analysis.statistics.multiplicity import joint_level

SETS = 20
RUN_TO_RUN = 0.005  # standard deviation of the logarithm of throughput
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


def test_false_differences_are_claimed_in_at_most_one_set_in_twenty():
    """And it is claimed where the rule says so, of which test_rule.py simulates many more sets."""
    k, n = 2, 4
    chance, wrong = np.random.default_rng([k, n]), Counter()
    for _ in range(SETS):
        speeds, peaks, quality = nothing_differs(chance, k, n)
        analysis = claimed(analyse_runs(experiment(speeds, peaks, quality)))
        sides = {SPEED: np.log(speeds), MEMORY: np.log(peaks), QUALITY: quality}
        assert analysis == {q for q, s in sides.items() if differs(s[1:] - s[0], joint_level(k)).any()}
        wrong.update(analysis)
    # In one of twenty sets, but for one case of a hundred.
    assert max(wrong.values(), default=0) <= stats.binom.ppf(0.99, SETS, 0.05), wrong
