"""The plan of a sweep: where it is found, and what follows from it."""

from __future__ import annotations

import pytest
import yaml
from support.quick import ROOT

from ampcompare.errors import UserError
from ampcompare.sweeps.file.sweep import Sweep, read_sweep
from ampcompare.sweeps.plan import looks_of, plan_of, shown, told_to_runs, with_control
from ampcompare.sweeps.worker import planned

OURS = {"program": "ampcompare", "command": ["ampcompare", "run", "${args_no_hyphens}"]}
PLAN = {"margin": {"value": 0.2}, "looks": {"value": [2, 4]}, "control": {"value": "bookends"}}


@pytest.fixture
def read(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)

    def made(plan=None, **changes) -> Sweep:
        parameters = {"backend": {"values": ["none", "native"]}, "seed": {"values": [1, 2]}}
        if plan is not None:
            parameters["plan"] = {"parameters": plan}
        file = tmp_path / "s.yaml"
        file.write_text(yaml.safe_dump({"method": "grid", "parameters": parameters, **OURS, **changes}))
        return read_sweep(file)

    return made


@pytest.mark.parametrize("ours", [True, False])
def test_plan_is_that_of_the_file(read, ours):
    sweep = read(PLAN) if ours else read(PLAN, program="theirs.py", command=["${program}", "${args}"])
    plan = plan_of(sweep, [])
    assert (plan.margin, plan.looks, plan.control) == (0.2, [2, 4], "bookends")
    assert shown(plan) == "margin 0.2, looks at 2, 4 seeds, control bookends"


def test_dotted_names_are_a_plan_too(read):
    sweep = read()
    content = yaml.safe_load(sweep.path.read_text())
    content["parameters"]["plan.control"] = {"value": "bookends"}
    sweep.path.write_text(yaml.safe_dump(content))
    assert read_sweep(sweep.path).control


def test_plan_can_stand_in_the_words_and_in_the_command(read):
    assert plan_of(read(), ["plan.looks=[3,5]"]).looks == [3, 5]
    command = ["ampcompare", "run", "plan.margin=1.5", "${args_no_hyphens}"]
    assert plan_of(read(command=command), []).margin == 1.5


def test_what_another_program_calls_a_plan_is_left_alone(read):
    odd = {"target": {"value": "tokyo"}, "days": {"value": 3}}
    sweep = read(odd, program="theirs.py", command=["${program}", "${args}"])
    assert shown(plan_of(sweep, [])) == ""


@pytest.mark.parametrize(
    ("plan", "looks"),
    [
        ({}, (3, 6, 10)),
        ({"looks": {"value": [2, 4]}}, (2, 4)),
        ({"max_seeds": {"value": 8}}, (3, 6, 8)),
        ({"max_seeds": {"value": 2}}, (2,)),
        ({"looks": {"value": [2, 4]}, "max_seeds": {"value": 4}}, (2, 4)),
    ],
)
def test_looks_are_the_plans_and_end_with_its_last_seed(read, plan, looks):
    assert looks_of(plan_of(read(plan or None), [])) == looks


def test_seeds_beyond_the_last_look_are_refused(read):
    plan = {"looks": {"value": [2, 4]}, "max_seeds": {"value": 9}}
    with pytest.raises(UserError, match=r"plan\.looks=\[2, 4\]: the last is not plan\.max_seeds=9; look at"):
        looks_of(plan_of(read(plan), []))


def test_a_control_can_be_asked_for_beside_the_file(read):
    sweep = read()
    assert with_control(plan_of(sweep, []), sweep, "bookends")
    assert with_control(plan_of(sweep, ["plan.control=bookends"]), sweep, None)
    assert not with_control(plan_of(sweep, []), sweep, None)


@pytest.mark.parametrize(
    ("changes", "asked", "said"),
    [
        ({}, "twice", "--control 'twice': expected one of none, bookends"),
        ({"plan": PLAN}, "none", "--control none: the file has plan.control=bookends; change one of them"),
        ({"method": "random"}, "bookends", "--control bookends: needs a grid whose runs all end"),
        (
            {"metric": {"name": "eval/loss"}, "early_terminate": {"type": "hyperband", "min_iter": 1}},
            "bookends",
            "the file has early_terminate; leave one out",
        ),
    ],
)
def test_a_control_that_cannot_be_is_told_in_a_line(read, changes, asked, said):
    sweep = read(**changes)
    with pytest.raises(UserError) as caught:
        with_control(plan_of(sweep, []), sweep, asked)
    assert said in str(caught.value)


def test_runs_are_told_what_the_file_does_not_say(read):
    def told(plan, looks, control, **changes):
        sweep = read(plan, **changes)
        from dataclasses import replace

        return told_to_runs(replace(sweep, control=control), plan_of(sweep, []), looks, not changes)

    theirs = {"program": "theirs.py", "command": ["${program}", "${args}"]}
    assert told(None, (), False) == {}
    assert told(None, (3, 6), True) == {"control": "bookends", "looks": [3, 6]}
    assert told(PLAN, (2, 4), True) == {}
    assert told(None, (), False, **theirs) is None  # nothing in its record that it did not put there
    assert told(None, (3, 6), True, **theirs) == {"control": "bookends", "looks": [3, 6]}


def test_what_is_a_runs_own_joins_the_plan_of_the_file():
    given = {"seed": 1, "plan": {"margin": 0.5}}
    assert planned(given, {"arm": "last"}) == {"seed": 1, "plan": {"margin": 0.5, "arm": "last"}}
    assert planned({"seed": 1}, {}) == {"seed": 1}
    assert planned({"plan": "B"}, {"place": 0}) == {"plan": "B", "plan.place": 0}  # somebody's own option
