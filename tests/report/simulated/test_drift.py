"""A machine that slows by 3 % over a sweep, and backends that are equally fast: who says that they differ?"""

from __future__ import annotations

import numpy as np
import pytest
from report.simulated import rules

from ampcompare.sweeps.order import in_blocks

SWEEPS = 4_000
DRIFT, RUN_TO_RUN = 0.03, 0.005
CASES = [(2, 3), (2, 10), (3, 5), (4, 3), (4, 7)]


def places(order: str, k: int, n: int, name: str = "") -> np.ndarray:
    """When each run of each backend ran, (backends, seeds), in a sweep of that order."""
    if order == "blocks of backends":  # as a grid on W&B's server: one backend behind the other
        runs = [(backend, seed) for backend in range(k) for seed in range(n)]
    elif order == "first key fastest":  # each seed with the backends always in the same order
        runs = [(backend, seed) for seed in range(n) for backend in range(k)]
    else:
        runs = list(in_blocks(name, range(k), range(n)))
    found = np.empty((k, n))
    for moment, run in enumerate(runs):
        found[run] = moment
    return found


def share_that_differs(order: str, k: int, n: int, sweeps: int = SWEEPS) -> tuple[float, float]:
    """In how many sweeps some backend is said to differ (Holm), and the worst of single plain comparisons."""
    names = [f"sweep {number}" for number in range(sweeps)] if order == "drawn" else [""]
    when = np.stack([places(order, k, n, name) for name in names])
    noise = np.random.default_rng([k, n]).normal(0, RUN_TO_RUN, (sweeps, k, n))
    logs = noise - DRIFT * when / (k * n - 1)
    p = rules.p_two_sided(*rules.paired(logs[:, 1:] - logs[:, :1]))
    return float(rules.holm(p)[1].any(1).mean()), float((p < 0.05).mean(0).max())


@pytest.mark.slow
@pytest.mark.parametrize(("k", "n"), CASES)
def test_drawn_within_each_seed_at_most_seven_of_a_hundred_differ(k, n):
    family, single = share_that_differs("drawn", k, n)
    assert family <= 0.07
    assert single <= 0.07


def test_the_drawn_order_of_the_fewest_seeds():
    assert max(share_that_differs("drawn", 2, 3, sweeps=800)) <= 0.07


@pytest.mark.parametrize("k", [2, 3, 4])
def test_one_backend_behind_the_other_most_differ(k):
    family, single = share_that_differs("blocks of backends", k, 3)
    assert family >= 0.55
    assert single <= 0.9
    assert share_that_differs("blocks of backends", k, 10)[0] > 0.99


@pytest.mark.parametrize("k", [2, 3, 4])
def test_always_in_the_same_order_too_many_differ(k):
    family, single = share_that_differs("first key fastest", k, 3)
    assert family > 0.12
    assert single < 0.35
