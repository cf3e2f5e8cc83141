"""What the intervals rest on: runs that vary by chance around one value. And what becomes of them if not.

docs/reports.md names these figures.
"""

from __future__ import annotations

import numpy as np
import pytest

from report.simulated import rules

EXPERIMENTS = 20_000
RUN_TO_RUN, STALL, SHARE = 0.005, 0.3, 0.1


def speeds(n: int, stalled: float = SHARE) -> np.ndarray:
    """Logarithms of throughputs (experiments, runs), of which a share is slowed by 30 % from end to end."""
    generator = np.random.default_rng(n)
    noise = generator.normal(0, RUN_TO_RUN, (EXPERIMENTS, n))
    return noise + np.log(1 - STALL) * (generator.random((EXPERIMENTS, n)) < stalled)


def coverage(logs: np.ndarray, truth: float) -> float:
    value, error, df = rules.paired(logs)
    return float(np.mean(np.abs(value - truth) <= rules.half_width(error, df)))


@pytest.mark.parametrize("n", [3, 5, 10])
def test_where_runs_vary_by_chance_the_interval_holds(n):
    assert coverage(speeds(n, stalled=0.0), 0.0) == pytest.approx(0.95, abs=0.005)


@pytest.mark.parametrize(("n", "found"), [(3, 0.27), (5, 0.42), (10, 0.66)])
def test_where_one_process_in_ten_stalls_it_seldom_holds_the_long_run_mean(n, found):
    """Most small samples have no stalled run and know nothing of it: 0.9 ** 3 = 0.73 of those of three."""
    assert coverage(speeds(n), SHARE * np.log(1 - STALL)) == pytest.approx(found, abs=0.015)


@pytest.mark.parametrize("n", [3, 5, 10])
def test_a_stalled_run_hides_a_difference_rather_than_making_one(n):
    """Two backends that stall alike and are equally fast are said to differ in fewer than one case in 20."""
    logs = speeds(n) - speeds(n)[::-1]
    assert 1 - coverage(logs, 0.0) <= 0.05


@pytest.mark.rest
@pytest.mark.parametrize(("n", "found"), [(3, 0.74), (5, 0.84), (10, 0.90)])
def test_the_percentile_bootstrap_holds_less_where_students_t_holds(n, found):
    """Of three values it is no wider than from the smallest to the largest: 1 - 2 / 8 at best."""
    generator = np.random.default_rng(n)
    values = generator.standard_normal((4_000, n))
    again = generator.integers(0, n, (1_000, n))
    low, high = np.percentile(values[:, again].mean(-1), [2.5, 97.5], axis=1)
    assert np.mean((low <= 0) & (high >= 0)) == pytest.approx(found, abs=0.015)
