"""The A/A control: what no change at all does, and whether the machine drifted."""

from __future__ import annotations

import pytest
from support.fakes import make

from ampcompare import metrics
from ampcompare.report.runs.control import Control, controls
from ampcompare.report.runs.figures import figures_of
from ampcompare.report.runs.groups import group_runs
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
