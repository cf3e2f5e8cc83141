"""`--metric KEY:min` or `KEY:max` against the direction that is declared for the key is refused."""

from dataclasses import replace
from typing import Any

import pytest
from support.external import FULL, several
from support.fakes import make

from ampcompare import analyse_runs
from ampcompare.errors import UserError
from ampcompare.runs import RunRecord
from ampcompare.runs.metric_definitions import MetricDefinition

ARMS: dict[str, Any] = {"group_by": ["trainer.precision"], "baseline": FULL}


def own_runs() -> list[RunRecord]:
    return [make(backend, seed) for backend in ("none", "native") for seed in (1, 2, 3)]


@pytest.mark.parametrize(
    ("option", "right"),
    [
        ("train/accuracy:fraction:min", "train/accuracy:max"),
        ("eval/loss:max", "eval/loss:min"),
    ],
)
def test_our_own_metrics_have_one_direction(option: str, right: str):
    with pytest.raises(UserError) as caught:
        analyse_runs(own_runs(), metric=option)
    assert f"--metric {option!r}: " in str(caught.value)
    assert f"write --metric {right} or" in str(caught.value)
    for named in (right, right.partition(":")[0]):
        assert analyse_runs(own_runs(), metric=named).metric.lower_is_better == ("loss" in option)


@pytest.mark.parametrize(
    ("declared", "option", "is_refused"),
    [
        ({"definitions": {"val_*": MetricDefinition(goal="maximize")}}, "val_acc:min:fraction", True),
        ({"definitions": {"val_acc": MetricDefinition(goal="minimize")}}, "val_acc:max", True),
        ({"objective": ("val_acc", "maximize")}, "val_acc:min", True),
        ({"objective": ("train_loss", "minimize")}, "val_acc:min", False),
    ],
)
def test_other_programs_declare_directions(declared: dict[str, Any], option: str, is_refused: bool):
    runs = [replace(run, **declared) for run in several()]
    if not is_refused:
        metric = analyse_runs(runs, **ARMS, metric=option).metric
        assert metric.lower_is_better == (":min" in option)
        return
    with pytest.raises(UserError, match="is declared as a metric of which") as caught:
        analyse_runs(runs, **ARMS, metric=option)
    assert f"--metric {option!r}" in str(caught.value)


@pytest.mark.parametrize(("summary", "goal"), [([1], "minimize"), ([2], "maximize"), ([1, 2], ""), ([], "")])
def test_a_summary_of_both_ends_declares_no_direction(summary: list[int], goal: str):
    definitions = MetricDefinition.from_config({"m": [{"1": "val_acc", "7": summary}]})
    assert definitions["val_acc"].goal == goal
