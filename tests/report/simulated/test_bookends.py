"""The A/A control first and last in a sweep: how often it cries wolf, and whether it sees a drift."""

from __future__ import annotations

import numpy as np
import pytest
from report.simulated import rules
from support.fakes import figures, make

from ampcompare.report.runs.control import controls
from ampcompare.report.runs.groups import Group
from ampcompare.report.runs.metric import ComparedMetric

SWEEPS = 20_000
RUN_TO_RUN = 0.005  # standard deviation of the logarithm of throughput
BACKENDS = 3


def bookends(n: int, drift: float, sweeps: int = SWEEPS) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of the throughputs (sweeps, seeds) of the controls that ran first, and last.

    Every seed once at either end, the backends' runs in between; the machine slows by `drift` over the whole.
    """
    runs = n * (BACKENDS + 2)
    moments = np.arange(runs) / (runs - 1)
    noise = np.random.default_rng(n).normal(0, RUN_TO_RUN, (sweeps, 2 * n))
    ends = noise - drift * np.r_[moments[:n], moments[-n:]]
    return ends[:, :n], ends[:, n:]


def alarm(first: np.ndarray, last: np.ndarray) -> np.ndarray:
    return rules.p_two_sided(*rules.welch(last, first)) < 0.05


@pytest.mark.parametrize("n", [3, 5, 10])
def test_no_drift_is_flagged_in_at_most_one_sweep_in_twenty(n):
    assert alarm(*bookends(n, 0.0)).mean() <= 0.05


@pytest.mark.parametrize(("n", "at_least"), [(3, 0.80), (5, 0.95)])
def test_a_drift_of_three_percent_is_flagged(n, at_least):
    assert alarm(*bookends(n, 0.03)).mean() >= at_least


@pytest.mark.parametrize("drift", [0.0, 0.015])
def test_the_alarm_is_the_reports(drift):
    first, last = bookends(3, drift, sweeps=30)
    for one, other, flagged in zip(first, last, alarm(first, last), strict=True):
        (control,) = controls([group("none"), group("none again (A/A)", one, other)], ComparedMetric())
        assert control.drift.value == pytest.approx(np.exp(other.mean() - one.mean()))
        assert control.alarm == flagged


def group(value: str, *ends: np.ndarray) -> Group:
    """The baseline, of which nothing is asked, or its controls with their throughputs first and last."""
    runs = [
        figures(
            run=make("none", seed, steps=50, config={"plan": {"arm": arm}}), images_per_second=np.exp(speed)
        )
        for arm, end in zip(("first", "last"), ends, strict=False)
        for seed, speed in enumerate(end)
    ]
    return Group(value, tuple(runs), tuple(runs), value, {"backend": value}, is_control=bool(ends))
