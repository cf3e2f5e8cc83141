"""The plan that lies in the config of runs: used where it is one, named where something differs from it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from support.known_runs import BASE, FAST, SAME, runs

from ampcompare.report import analyse_runs

PLAN = {"margin": 1.0, "target": 0.5, "looks": [3, 5], "max_seeds": 5}


def planned(n: int = 5, **plan: Any):
    config = {"plan": PLAN | plan}
    return [*runs("none", BASE[:n], config=config), *runs("native", SAME[:n], FAST, config=config)]


def note(records, **options) -> str:
    return analyse_runs(records, **options).remarks[0]


def test_margin_target_and_levels_are_those_of_the_plan():
    analysis = analyse_runs(planned())
    assert (analysis.metric.margin, analysis.target) == (1.0, 50.0)
    assert "the same within 1 point" in analysis.headline
    assert analysis.level == 1 - 0.05 / 2  # two looks share the 5 %
    assert (
        "planned: margin 1 point, target 50.00 %, looks at 3 and 5 seeds, 5 seeds at most" in analysis.basis
    )
    assert "Not as planned" not in " ".join(analysis.remarks)


def test_what_is_asked_for_comes_before_the_plan_and_is_said():
    analysis = analyse_runs(planned(), margin=0.5, target=0.6)
    assert (analysis.metric.margin, analysis.target) == (0.5, 60.0)
    assert analysis.remarks[0] == "Not as planned: the margin is 0.5 points and the target is 60.00 %."


def test_what_is_not_as_planned_is_said():
    assert "4 seeds so far is no planned look" in note(planned(4))
    assert "no planned look" not in note(planned(3))
    assert "there is no control" in note(planned(control="bookends"))
    unplanned = analyse_runs([*runs("none", BASE), *runs("native", SAME, FAST)])
    assert "planned" not in " ".join([unplanned.basis, unplanned.caption, *unplanned.remarks])


def test_runs_that_disagree_have_no_plan_in_it():
    records = [*runs("none", BASE, config={"plan": {"margin": 1.0}})]
    records += runs("native", SAME, FAST, config={"plan": {"margin": 2.0}})
    analysis = analyse_runs(records)
    assert analysis.metric.margin == 0.5
    assert "The runs' plan.margin is 1.0 and 2.0: none of these is used." in " ".join(analysis.remarks)


def test_of_a_plan_that_was_extended_every_look_counts():
    """With one look for none of them the intervals would be too narrow."""
    longer = {"plan": PLAN | {"looks": [3, 5, 10]}}
    analysis = analyse_runs([*planned(), *runs("fp16", SAME, FAST, config=longer)])
    assert analysis.level == 1 - 0.05 / 6  # three looks, two groups
    assert "plan.looks is [3, 5] and [3, 5, 10]: every look of these counts" in " ".join(analysis.remarks)


ODD = ({}, [], "</script>", True, float("nan"), float("inf"), 10**400, [1], [3] * 10_001)
BELOW = (-1, 0)


def test_a_value_that_is_no_plan_is_not_used_and_named(subtests: pytest.Subtests):
    for key, odd in itertools.product(PLAN | {"control": ""}, (*ODD, *BELOW)):
        with subtests.test(key=key, odd=odd):
            analysis = analyse_runs(planned(2, **(dict.fromkeys(PLAN) | {key: odd})))
            assert getattr(analysis.plan, key) in (None, (), "")
            assert f"The runs' plan.{key} is " in " ".join(analysis.remarks)
            assert analysis.metric.margin == 0.5
