"""The A/A control: what no change at all does, and whether the machine drifted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.fakes import make

from ampcompare import metrics
from ampcompare.report.runs.control import Control, controls, drift_of
from ampcompare.report.runs.figures import figures_of
from ampcompare.report.runs.groups import Group, group_runs
from ampcompare.report.runs.metric import ComparedMetric


def run(arm: str | None, seed: int, speed: float, backend: str = "none"):
    made = make(backend, seed, steps=10, epochs=5, id=f"{backend}{arm}{seed}")
    made.config = made.config | {"plan": {"arm": arm}}
    made.summary[metrics.THROUGHPUT_MEDIAN] = speed
    return made


def control_of(runs) -> Control:
    (found,) = controls(group_runs([figures_of(r) for r in runs]), ComparedMetric())
    return found


def with_bookends(first, base, last):
    speeds = (("first", first), (None, base), ("last", last))
    return [run(arm, seed, speed) for arm, every in speeds for seed, speed in enumerate(every)]


def test_drift_is_the_last_bookends_against_the_first_and_not_paired():
    found = control_of(with_bookends((100, 101, 99), (98, 98, 98), (97, 96.5, 97.5)))
    assert found.drift.value == pytest.approx(0.97, abs=0.001)
    assert not found.drift.paired
    assert found.alarm
    assert "the machine drifted" in found.sentence


def test_the_control_is_compared_with_the_baseline_that_it_repeats():
    runs = with_bookends((100, 101), (100, 101), (100, 101))
    other = [run(None, s, 200.0, "native") for s in (0, 1)]
    found = control_of(runs + other)
    assert (found.group.label, found.baseline.label) == ("none again (A/A)", "none")
    assert found.speed.value == pytest.approx(1.0)
    assert found.quality.value == pytest.approx(0.0)
    assert not found.alarm
    assert not found.differs


def test_a_control_that_differs_from_its_baseline_says_so():
    found = control_of(with_bookends((110, 110.2, 109.8), (100, 100.1, 99.9), (110, 110.1, 109.9)))
    assert found.differs
    assert not found.alarm


def test_without_a_second_bookend_there_is_no_drift_to_tell():
    found = control_of(with_bookends((100, 101), (100, 101), ()))
    assert found.drift is None
    assert not found.alarm
    assert "From first to last" not in found.sentence


def test_a_control_without_its_baseline_is_none():
    runs = [run("first", 1, 100.0), run(None, 1, 190.0, "native")]
    assert controls(group_runs([figures_of(r) for r in runs]), ComparedMetric()) == []


@pytest.mark.parametrize(("n", "power"), [(3, 0.80), (5, 0.95)])
def test_bookends_rarely_alarm_in_vain_and_find_a_drift_of_3_percent(n, power):
    """A run-to-run deviation of 0.5 %; n runs at either end, and n of each of two backends between them."""
    chance, sets = np.random.default_rng(n), 1000
    made = [figures_of(run(arm, seed, 1.0)) for arm in ("first", "last") for seed in range(n)]
    places = np.r_[:n, 3 * n : 4 * n] / (4 * n - 1)

    def alarms(drift):
        found = 0
        for _ in range(sets):
            speeds = 100 * (1 + drift * places) * (1 + chance.normal(0, 0.005, 2 * n))
            runs = tuple(replace(f, images_per_second=s) for f, s in zip(made, speeds, strict=True))
            group = Group("again", runs, runs, is_control=True)
            found += Control(group, group, drift=drift_of(group)).alarm
        return found / sets

    assert alarms(0.0) <= 0.05
    assert alarms(-0.03) >= power
