"""The reader's own next run, or pair of runs, lies where it was predicted in 95 of 100 cases."""

from __future__ import annotations

import numpy as np
import pytest

from ampcompare.report.statistics.samples import difference, prediction

CASES = 2_000


def share_within(intervals, nexts) -> float:
    return float(np.mean([low <= value <= high for (low, high), value in zip(intervals, nexts, strict=True)]))


@pytest.mark.parametrize("n", [3, 5, 10])
def test_one_more_run(n):
    values = np.random.default_rng(n).normal(93.4, 0.3, (CASES, n + 1))
    intervals = [prediction(dict(enumerate(one[:n]))) for one in values]
    assert share_within(intervals, values[:, n]) == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize(("n", "m", "pairs"), [(3, 3, 3), (5, 5, 0), (10, 4, 0), (10, 10, 6)])
def test_one_more_pair(n, m, pairs):
    """Partners share what a seed does; the next pair does too, where any of those measured did."""
    generator = np.random.default_rng([n, m])
    intervals, nexts = [], []
    for _ in range(CASES):
        shared = generator.normal(0, 0.4, n + m + 1)
        own = generator.normal(0, 0.2, n + m + 2)
        ours = {i: shared[i] + own[i] for i in range(n)}
        theirs = {(i if i < pairs else n + i): own[n + i] for i in range(m)}
        theirs = {seed: value + shared[seed] for seed, value in theirs.items()}
        intervals.append(difference(ours, theirs).prediction())
        apart = 0.0 if pairs else generator.normal(0, 0.4) - generator.normal(0, 0.4)
        nexts.append(apart + own[-1] - own[-2])
    assert 0.935 <= share_within(intervals, nexts) <= 0.975
