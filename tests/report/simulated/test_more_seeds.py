"""Advice: of sweeps that leave a claim open, how many decide it once they have as many more seeds as named;
and where the next pair of runs lies.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from report.simulated.records import experiment

from ampcompare.report import analyse_runs
from ampcompare.report.analysis.comparison import QUALITY, SPEED, Comparison
from ampcompare.report.statistics.samples import difference

MARGIN = 0.5
SPREADS = {SPEED: 0.02, QUALITY: 0.35}
MOST_RUNS = 60  # seeds a side that are simulated; what needs more is not asked


def sweep(chance: np.random.Generator, speedup: float, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Speeds and accuracies (2, n) of a baseline and a backend of that speed and the same accuracy."""
    logs = chance.normal(0, SPREADS[SPEED] / np.sqrt(2), (2, n)) + np.log([[1.0], [speedup]])
    return 100 * np.exp(logs), 93 + chance.normal(0, SPREADS[QUALITY] / np.sqrt(2), (2, n))


def compared(every: tuple[np.ndarray, np.ndarray], n: int) -> Comparison:
    speeds, quality = (side[:, :n] for side in every)
    (found,) = analyse_runs(experiment(speeds, None, quality), margin=MARGIN).comparisons
    return found


def decided(question: str, n: int, pilots: int) -> list[bool]:
    """Of pilots of `n` seeds that leave the question open, with a number, which decide with so many more."""
    chance, found = np.random.default_rng([n, pilots]), []
    while len(found) < pilots:
        every = sweep(chance, 1.02, MOST_RUNS)
        more = compared(every, n).claims[question].more_seeds
        if more and n + more <= MOST_RUNS:
            found.append(bool(compared(every, n + more).claims[question].shown))
    return found


@pytest.mark.parametrize("question", [SPEED, QUALITY])
def test_as_many_more_as_named_decide_in_85_of_100_sweeps(question):
    pilots = 12
    found = decided(question, 4, pilots)
    assert np.mean(found) >= 0.85 - 2 * np.sqrt(0.85 * 0.15 / pilots)


@pytest.mark.parametrize("first", [0, 100], ids=["paired", "not paired"])
def test_the_next_pair_lies_where_it_was_predicted_in_95_of_100_sweeps(first):
    chance, within = np.random.default_rng(first), []
    index = np.arange(5)
    for _ in range(600):
        ours, theirs = chance.normal(93.4, 0.3, 6), chance.normal(93.0, 0.3, 6)
        low, high = difference(pd.Series(ours[:5], index), pd.Series(theirs[:5], index + first)).next_run()
        within.append(low <= ours[5] - theirs[5] <= high)
    assert np.mean(within) == pytest.approx(0.95, abs=0.025)
