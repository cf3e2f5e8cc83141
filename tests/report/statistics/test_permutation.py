"""Answers that differ: counts by hand, the test by its definition, and its error where nothing matters."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ampcompare.report.statistics.permutation import disagreement


def answers(generator, runs: int, odd: float, images: int = 200, common=None, first: int = 0):
    """Runs whose answers are the common ones but for a share that each run, or each backend, draws anew."""
    truth = np.arange(images) % 10 if common is None else common
    drawn = {}
    for seed in range(first, first + runs):
        changed = generator.random(images) < odd
        drawn[seed] = np.where(changed, generator.integers(0, 10, images), truth)
    return drawn


def test_counts_by_hand():
    ours = {1: np.array([0, 1, 2, 3]), 2: np.array([0, 1, 2, 0])}
    theirs = {1: np.array([0, 0, 2, 3]), 3: np.array([1, 0, 2, 3])}
    found = disagreement(ours, theirs)
    # across, other seeds: (1, 3): 2, (2, 1): 2, (2, 3): 3; same seed (1, 1): 1; within: 1 and 1
    assert found.between == pytest.approx(7 / 3)
    assert (found.same_seed, found.within, found.images, found.runs) == (1.0, 1.0, 4, (2, 2))
    assert found.p is None
    assert found.method == "not tested: it needs 4 runs of each, and there are 2 and 2"


def test_p_is_the_share_of_divisions_by_definition():
    generator = np.random.default_rng(1)
    truth = generator.integers(0, 10, 200)
    ours = answers(generator, 4, 0.2, common=truth)
    theirs = answers(generator, 5, 0.2, common=np.where(generator.random(200) < 0.06, 0, truth), first=2)
    runs = [*ours.items(), *theirs.items()]

    def excess(side) -> float:
        across, within = [], []
        for (i, (a, x)), (j, (b, y)) in itertools.combinations(enumerate(runs), 2):
            if a != b:
                (across if (i in side) != (j in side) else within).append((x != y).sum())
        return np.mean(across) - np.mean(within)

    divisions = list(itertools.combinations(range(9), 4))
    found = disagreement(ours, theirs)
    as_run = excess((0, 1, 2, 3))
    assert found.p == pytest.approx(np.mean([excess(side) >= as_run - 1e-9 for side in divisions]))
    assert (found.divisions, found.is_exact) == (126, True)
    assert found.between - found.within == pytest.approx(as_run)


@pytest.mark.parametrize("first", [0, 100], ids=["same seeds", "other seeds"])
def test_where_the_backend_does_nothing_it_is_seldom_said_to(first):
    generator = np.random.default_rng(3)
    found = [
        disagreement(answers(generator, 4, 0.2), answers(generator, 4, 0.2, first=first)).p
        for _ in range(400)
    ]
    assert np.mean(np.array(found) <= 0.05) <= 0.05
