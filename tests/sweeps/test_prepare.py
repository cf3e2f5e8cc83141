"""A sweep made ready: file, words and options as one; its plan, which of its points are runs."""

import json
import re
from collections import Counter
from dataclasses import replace

import pytest
from support.quick import ROOT

from ampcompare.config.schema import PlanConfig
from ampcompare.errors import UserError
from ampcompare.sweeps.prepare import PreparedSweep, SweepOptions, prepare, prepare_sweep
from ampcompare.sweeps.sweep_file import Sweep, read_sweep

OURS = {"program": "ampcompare", "command": ["ampcompare", "run", "${args_no_hyphens}"]}
PLAN = {"margin": {"value": 0.2}, "looks": {"value": [2, 4]}, "control": {"value": "bookends"}}


def prepared(sweep: Sweep, words: list[str], control: str | None = None, *, decides=False) -> PreparedSweep:
    return prepare_sweep(sweep, words, SweepOptions(control=control, until_decided=decides))


@pytest.fixture
def read(project, monkeypatch):
    monkeypatch.chdir(ROOT)

    def made(plan=None, **changes) -> Sweep:
        parameters = {"backend": {"values": ["none", "native"]}, "seed": {"values": [1, 2]}}
        if plan is not None:
            parameters["plan"] = {"parameters": plan}
        return read_sweep(project.write_file(**{"parameters": parameters, **OURS, **changes}))

    return made


THEIRS = {"program": "theirs.py", "command": ["python", "theirs.py", "${args}"]}


@pytest.fixture(autouse=True)
def users_program(project):
    """Write the program that is not ours into the folder of the project."""
    (project.folder / "theirs.py").touch()


def test_the_plan_stands_in_the_file_in_the_words_or_in_the_command(read, monkeypatch, project):
    for program in (OURS, THEIRS):
        sweep = read(PLAN, **program)
        monkeypatch.chdir(project.folder)
        ready = prepared(sweep, [])
        assert (ready.plan.margin, ready.plan.looks, ready.plan.control) == (0.2, [2, 4], "bookends")
    assert prepared(read(), ["plan.looks=[3,5]"]).plan.looks == [3, 5]
    command = ["ampcompare", "run", "plan.margin=1.5", "${args_no_hyphens}"]
    assert prepared(read(command=command), []).plan.margin == 1.5
    odd = {"target": {"value": "tokyo"}, "days": {"value": 3}}  # what another program calls a plan is its own
    assert prepared(read(odd, **THEIRS), []).plan == PlanConfig()
    for plan, words, key in [
        ({"margin": {"value": "tokyo"}}, [], "plan.margin"),
        ({"looks": {"values": [[2], [3]]}}, [], "plan.looks"),
        ({}, ["plan.margin=-1"], "plan.margin"),
    ]:
        with pytest.raises(UserError, match=key):
            prepared(read(plan or None, **THEIRS), words)


EARLY = {"metric": {"name": "eval/loss"}, "early_terminate": {"type": "hyperband", "min_iter": 1}}
PERTURBED = ["ampcompare", "run", "training.perturb_weights=one_ulp", "${args_no_hyphens}"]


def test_a_control_that_cannot_be_is_told_in_a_line(read, subtests: pytest.Subtests):
    for changes, asked, expected in [
        ({}, "twice", "expected one of none, bookends, chaos"),
        ({"plan": PLAN}, "none", "the sweep file has plan.control=bookends"),
        ({"method": "random"}, "chaos", "needs a grid that trains every run to its end"),
        (EARLY, "bookends", "the file has early_terminate"),
        ({"run_cap": 4}, "bookends", "run_cap=4: --control bookends needs more than the 4 runs of the"),
        ({"command": PERTURBED}, "chaos", "it sets training.perturb_weights itself"),
        (THEIRS, "chaos", "is no training of ampcompare"),
    ]:
        with subtests.test(expected=expected), pytest.raises(UserError, match=re.escape(expected)):
            prepared(read(**changes), [], asked)


def test_runs_are_told_what_the_file_does_not_say(read):
    def plan_of(control, decides=False, **changes):
        return prepared(read(**changes), [], control, decides=decides).shared_plan

    looks = {"looks": [5, 10], "shares": [0.2, 0.8]}
    assert plan_of(None) == {}
    assert plan_of("bookends", decides=True) == {"control": "bookends", **looks}
    assert plan_of(None, **THEIRS) is None  # nothing in its record that it did not put there
    assert plan_of("bookends", decides=True, **THEIRS) == {"control": "bookends", **looks}


def test_words_change_values_of_the_file_and_the_rest_goes_behind_every_command(read):
    words = ["backend=[none,bf16,native_bf16]", "seed=[4]", "plan.looks=[2,5]", "epochs=2"]
    ready = prepare(str(read(PLAN).path), words)
    values = {p.key: p.values() for p in ready.sweep.parameters}
    assert (values["backend"], values["seed"]) == (["none", "bf16", "native_bf16"], [4])
    assert (ready.plan.looks, ready.overrides) == ([2, 5], ("epochs=2",))
    assert len(ready.sweep.points) == 3 + 2


def test_the_control_chaos_repeats_the_baseline_once_per_seed_in_every_block(read, subtests: pytest.Subtests):
    """The points of the sweep without a control stay as they are; the order within a block is random."""
    scales = {"precision.loss_scale": {"values": [128, 1024]}}  # which share a baseline
    for parameters, repeated in [
        (
            lists(backend=["none", "native"], batch_size=[32, 64], seed=[1, 2]),
            [{"backend": "none", "batch_size": size} for size in (32, 64)],
        ),
        (
            lists(backend=["none", "native"], seed=[1, 2]) | scales,
            [{"backend": "none", "precision.loss_scale": 128}],
        ),
    ]:
        with subtests.test(repeated=repeated):
            plain = prepared(read(parameters=parameters), []).sweep.points
            points = prepared(read(parameters=parameters), [], "chaos").sweep.points
            assert [point.index for point in points] == [*range(len(points))]
            assert sorted_texts(point for point in points if point.arm is None) == sorted_texts(plain)
            again = [point for point in points if point.arm == "chaos"]
            expected = [{**one, "seed": seed} for seed in (1, 2) for one in repeated]
            assert sorted_texts(again) == sorted(json.dumps(one, sort_keys=True) for one in expected)
            blocks = Counter(point.block for point in points)
            assert (len({*blocks.values()}), {point.block for point in again}) == (1, {*blocks})


def test_added_seeds_have_the_control_chaos_too(read):
    ready = prepared(read({"control": {"value": "chaos"}}), [])
    more = replace(ready.sweep, added=((7, 8),))
    assert [point.parameters["seed"] for point in more.points if point.arm == "chaos"] == [1, 2, 7, 8]
    assert more.points[: len(ready.sweep.points)] == ready.sweep.points
    assert ready.definition["control"] == "chaos"


def lists(**parameters) -> dict:
    return {key: {"values": values} for key, values in parameters.items()}


def sorted_texts(points) -> list[str]:
    return sorted(json.dumps(point.parameters, sort_keys=True) for point in points)
