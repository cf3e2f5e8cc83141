"""How a metric is read: as a fraction, in percent, or as it is."""

from __future__ import annotations

from typing import Any

import pytest
from support.fakes import make

from ampcompare.report import analyse_runs
from ampcompare.report.runs.metric import Unit, unit_of


def test_name_and_values_together_tell_the_unit(subtests: pytest.Subtests):
    for key, values, unit in [
        ("eval/accuracy", (), Unit.FRACTION),
        ("eval/accuracy", (0.1, 0.93), Unit.FRACTION),
        ("eval/accuracy", (10.0, 93.6), Unit.PERCENT),
        ("val/acc", (0.1, 93.6), Unit.PERCENT),
        ("val_acc", (0.5, 1.0), Unit.FRACTION),
        ("top1", (71.2,), Unit.PERCENT),
        ("valAcc", (20.0, 90.0), Unit.PERCENT),
        ("acc/loss", (0.2, 0.9), Unit.PLAIN),
        ("val/f1", (0.2, 0.9), Unit.PLAIN),
        ("accuracy_percent", (0.4, 0.9), Unit.PERCENT),
        ("accuracy", (-3.0, 0.5), Unit.PLAIN),
        ("accuracy", (120.0,), Unit.PLAIN),
        ("eval/loss", (0.1, 0.5), Unit.PLAIN),
        ("accumulated", (0.1, 0.5), Unit.PLAIN),
        ("place", (0.5,), Unit.PLAIN),
    ]:
        with subtests.test(key=key, values=values, unit=unit):
            assert unit_of(key, values) is unit


def logged(backend: str, seed: int, key: str, accuracy: float):
    def edit(plan: Any) -> None:
        plan["summary"][key] = accuracy
        for row in plan["rows"]:
            if "eval/accuracy" in row:
                row[key] = accuracy * row["eval/accuracy"]
        plan["rows"][-1][key] = accuracy

    return make(backend, seed, edit=edit)


@pytest.mark.parametrize("key", ["val/accuracy", "accuracy_percent", "val/acc"])
def test_what_is_logged_in_percent_is_not_multiplied_again(key: str):
    def records(times: float, name: str):
        return [
            logged(b, s, name, times * (0.93 + s / 1000 + (b == "native") / 500))
            for b in ("none", "native")
            for s in (1, 2, 3)
        ]

    percent = analyse_runs(records(100, key), metric=key)
    fraction = analyse_runs(records(1, "val/accuracy"), metric="val/accuracy")
    ours, theirs = (a.comparison("native") for a in (percent, fraction))
    ours, theirs = (found.estimates["quality"] for found in (ours, theirs))
    assert ours.value == pytest.approx(theirs.value)
    assert ours.ends == pytest.approx(theirs.ends, rel=1e-6)
    assert (percent.metric.unit, percent.metric.margin) == ("points", 0.5)
    assert percent.metric.show_value(percent.groups[0].figures["quality"].value) == "93.20 %"


def test_a_metric_in_percent_at_chance_says_nothing_either():
    records = [logged(b, s, "val/accuracy", 10.0) for b in ("none", "native") for s in (1, 2, 3)]
    comparison = analyse_runs(records, metric="val/accuracy").comparison("native")
    assert "at chance in 3 of 3 runs (10 % by guessing)" in comparison.silence
    assert not comparison.keeps_quality
