"""A sweep made ready: file, words and options as one; its plan, which of its points are runs."""

import json
from collections import Counter
from dataclasses import replace

import pytest
from support.quick import ROOT

from ampcompare.config.schema import PlanConfig
from ampcompare.errors import UserError
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.prepare import PreparedSweep, SweepOptions, prepare, prepare_sweep
from ampcompare.sweeps.run_launcher import recorded_parameters
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


@pytest.mark.parametrize("ours", [True, False])
def test_plan_is_that_of_the_file(read, ours, tmp_path, monkeypatch):
    sweep = read(PLAN) if ours else read(PLAN, program="theirs.py", command=["${program}", "${args}"])
    if not ours:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "theirs.py").touch()
    ready = prepared(sweep, [])
    assert (ready.plan.margin, ready.plan.looks, ready.plan.control) == (0.2, [2, 4], "bookends")
    assert ready.plan_summary == "margin 0.2, looks [2, 4], control bookends"


def test_plan_can_stand_in_the_words_and_in_the_command(read):
    """Or under its dotted name."""
    assert prepared(read(), ["plan.looks=[3,5]"]).plan.looks == [3, 5]
    dotted = {"plan.control": {"value": "bookends"}, "backend": {"values": ["none", "native"]}}
    assert prepared(read(parameters=dotted), []).sweep.control
    command = ["ampcompare", "run", "plan.margin=1.5", "${args_no_hyphens}"]
    assert prepared(read(command=command), []).plan.margin == 1.5


@pytest.mark.parametrize(
    ("word", "key", "values"),
    [
        ("backend=none,tf32", "backend", ["none", "tf32"]),
        ("backend=[none,tf32]", "backend", ["none", "tf32"]),
        ("--backend=['none', 'tf32']", "backend", ["none", "tf32"]),
        ("seed=1, 2", "seed", [1, 2]),
        ("seed=1", "seed", [1]),
        ("plan.looks=3,5", "plan.looks", ["3,5"]),  # a list that all runs have
    ],
)
def test_an_override_changes_the_values_of_a_parameter(word: str, key: str, values: list[object]):
    ready = prepare("compare_backends", [word])
    assert [p.values() for p in ready.sweep.parameters if p.key == key] == [values]
    assert ready.plan.looks == ([3, 5] if key == "plan.looks" else [5])


def test_an_override_without_brackets_is_a_single_value_of_an_option_that_is_a_list(project):
    path = project.write_file(parameters={"precision.keep_fp32": {"values": ["fc", "conv1"]}}, **OURS)
    for word, values in [("fc,conv1", ["fc,conv1"]), ("[fc,conv1]", ["fc", "conv1"])]:
        (found,) = read_sweep(path, [f"precision.keep_fp32={word}"]).parameters
        assert found.values() == values


def test_what_another_program_calls_a_plan_is_left_alone(read):
    odd = {"target": {"value": "tokyo"}, "days": {"value": 3}}
    sweep = read(odd, program="theirs.py", command=["python", "theirs.py", "${args}"])
    assert prepared(sweep, []).plan == PlanConfig()


def test_a_plan_of_another_program_is_checked_as_ours(read):
    theirs = {"program": "theirs.py", "command": ["python", "theirs.py", "${args}"]}
    for plan, words, key in [
        ({"margin": {"value": "tokyo"}}, [], "plan.margin"),
        ({"looks": {"values": [[2], [3]]}}, [], "plan.looks"),
        ({}, ["plan.margin=-1"], "plan.margin"),
    ]:
        with pytest.raises(UserError, match=key):
            prepared(read(plan or None, **theirs), words)


@pytest.mark.parametrize(
    ("plan", "looks"),
    [
        ({}, (5, 10)),
        ({"looks": {"value": [5]}}, (5, 10)),
        ({"looks": {"value": [7]}}, (7,)),
        ({"max_seeds": {"value": 8}}, (5, 8)),
        ({"max_seeds": {"value": 2}}, (2,)),
        ({"looks": {"value": [2, 4]}, "max_seeds": {"value": 4}}, (2, 4)),
    ],
)
def test_looks_are_the_plans_and_end_with_its_last_seed(read, plan, looks):
    assert prepared(read(plan or None), [], decides=True).looks == looks


@pytest.mark.parametrize(
    ("changes", "asked", "expected"),
    [
        ({}, "twice", "--control 'twice': expected one of none, bookends, chaos"),
        (
            {"plan": PLAN},
            "none",
            "--control none: the sweep file has plan.control=bookends; change one of them",
        ),
        (
            {"method": "random"},
            "bookends",
            "--control bookends: needs a grid that trains every run to its end",
        ),
        (
            {"metric": {"name": "eval/loss"}, "early_terminate": {"type": "hyperband", "min_iter": 1}},
            "bookends",
            "the file has early_terminate; leave one out",
        ),
        ({"run_cap": 4}, "bookends", "run_cap=4: --control bookends needs more than the 4 runs of the"),
        ({"plan": {"control": {"value": "chaos"}}}, "bookends", "has plan.control=chaos; change one of them"),
        ({"method": "random"}, "chaos", "--control chaos: needs a grid that trains every run to its end"),
        (
            {"command": ["ampcompare", "run", "training.perturb_weights=one_ulp", "${args_no_hyphens}"]},
            "chaos",
            "--control chaos: it sets training.perturb_weights itself",
        ),
        (
            {
                "parameters": {
                    "training": {"parameters": {"perturb_weights": {"values": ["none", "one_ulp"]}}}
                }
            },
            "chaos",
            "--control chaos: it sets training.perturb_weights itself",
        ),
        ({"program": __file__, "command": ["${program}"]}, "chaos", "is no training of ampcompare"),
    ],
)
def test_a_control_that_cannot_be_is_told_in_a_line(read, changes, asked, expected):
    with pytest.raises(UserError) as caught:
        prepared(read(**changes), [], asked)
    assert expected in str(caught.value)


def test_runs_are_told_what_the_file_does_not_say(read, tmp_path):
    def plan_of(plan, control, decides=False, **changes):
        return prepared(read(plan, **changes), [], control, decides=decides).shared_plan

    (tmp_path / "theirs.py").touch()
    theirs = {"program": str(tmp_path / "theirs.py"), "command": ["${program}", "${args}"]}
    looks = {"looks": [5, 10], "shares": [0.2, 0.8]}
    assert plan_of(None, None) == {}
    assert plan_of(None, "bookends", decides=True) == {"control": "bookends", **looks}
    assert plan_of(None, None, **theirs) is None  # nothing in its record that it did not put there
    assert plan_of(None, "bookends", decides=True, **theirs) == {"control": "bookends", **looks}


def values_of(ready, key):
    (parameter,) = (p for p in ready.sweep.parameters if p.key == key)
    return parameter.values()


def test_values_of_a_file_can_be_changed_by_words(read):
    """And what remains goes behind every command."""
    file = str(read(PLAN).path)
    ready = prepare(file, ["backend=[none,bf16,native_bf16]", "seed=[4]", "plan.looks=[2,5]", "epochs=2"])
    assert values_of(ready, "backend") == ["none", "bf16", "native_bf16"]
    assert values_of(ready, "seed") == [4]
    assert ready.plan.looks == [2, 5]
    assert ready.overrides == ("epochs=2",)
    assert len(ready.sweep.points) == 3 + 2
    assert values_of(prepare(file, ["--backend=bf16"]), "backend") == ["bf16"]


def lists(**parameters) -> dict:
    return {key: {"values": values} for key, values in parameters.items()}


CHAOTIC = {  # parameters of a file, and the repeated points of each seed
    "backends": (lists(backend=["native", "none", "bf16"], seed=[1, 2]), [{"backend": "none"}]),
    "no backend none": (lists(backend=["native", "bf16"], seed=[1, 2]), [{"backend": "native"}]),
    "seeds alone": (lists(backend=["native"], seed=[1, 2]), [{"backend": "native"}]),
    "each batch size": (
        lists(backend=["none", "native"], batch_size=[32, 64], seed=[1, 2]),
        [{"backend": "none", "batch_size": size} for size in (32, 64)],
    ),
    "another parameter": (lists(batch_size=[32, 64], seed=[1, 2]), [{"batch_size": 32}]),
    "shared baseline": (
        lists(backend=["none", "native"], seed=[1, 2]) | {"precision.loss_scale": {"values": [128, 1024]}},
        [{"backend": "none", "precision.loss_scale": 128}],
    ),
}


@pytest.mark.parametrize("case", CHAOTIC)
def test_the_control_chaos_repeats_the_baseline_once_per_seed_in_every_block(read, case):
    """The points of the sweep without a control stay as they are; the order within a block is random."""
    parameters, repeated = CHAOTIC[case]
    plain = prepared(read(parameters=parameters), []).sweep.points
    points = prepared(read(parameters=parameters), [], "chaos").sweep.points
    assert [point.index for point in points] == [*range(len(points))]
    assert sorted_texts(point for point in points if point.arm is None) == sorted_texts(plain)
    again = [point for point in points if point.arm == "chaos"]
    expected = [{**one, "seed": seed} for seed in (1, 2) for one in repeated]
    assert sorted_texts(again) == sorted(json.dumps(one, sort_keys=True) for one in expected)
    blocks = Counter(point.block for point in points)
    assert len({*blocks.values()}) == 1
    assert {point.block for point in again} == {*blocks}
    assert {point.arm for point in points} == {None, "chaos"}


def sorted_texts(points) -> list[str]:
    return sorted(json.dumps(point.parameters, sort_keys=True) for point in points)


def test_the_control_chaos_is_recorded_and_set_by_the_command(read, project, tmp_path):
    """In the file, in the words, or as an option; added seeds have it, too, and bookends are as they were."""
    file = read({"control": {"value": "chaos"}})
    assert (
        prepared(file, []).sweep.control == prepared(read(), ["plan.control=chaos"]).sweep.control == "chaos"
    )
    ready = prepared(read(), [], "chaos")
    assert ready.shared_plan == {"control": "chaos"}
    assert ready.plan_summary == "control chaos"
    assert "--control=chaos" in ready.command.text()
    more = replace(ready.sweep, added=((7, 8),))
    assert [point.parameters["seed"] for point in more.points if point.arm == "chaos"] == [1, 2, 7, 8]
    assert more.points[: len(ready.sweep.points)] == ready.sweep.points
    assert ready.definition["control"] == "chaos"
    assert prepared(read(), [], "bookends").definition["control"] is True
    assert prepared(read(), []).definition["control"] is False


def test_a_parameter_called_chaos_is_no_control(read, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs.py").touch()
    theirs = {"program": "theirs.py", "command": ["${program}", "${args}"]}
    sweep = prepared(read(parameters=lists(chaos=[0, 1], seed=[1]), **theirs), [], "bookends").sweep
    assert [point.arm for point in sweep.points] == ["first", None, None, "last"]


@pytest.mark.parametrize("cap", [5, 100])
def test_a_cap_leaves_the_control_at_either_end(read, cap):
    sweep = prepared(read(run_cap=cap), [], "bookends").sweep
    arms = [point.arm for point in sweep.points]
    middle = min(4, cap - 4)
    assert arms == ["first"] * 2 + [None] * middle + ["last"] * 2
    assert sweep.total() == middle + 4 <= cap
    whole = prepared(read(), [], "bookends").sweep.points
    assert sweep.points[: 2 + middle] == whole[: 2 + middle]


def test_what_is_a_runs_own_joins_the_plan_of_the_file():
    given = {"seed": 1, "plan": {"margin": 0.5}}
    both = {"seed": 1, "plan": {"margin": 0.5, "arm": "last"}}
    assert recorded_parameters(SweepRun(0, "r", given, {"arm": "last"})) == both
    assert recorded_parameters(SweepRun(0, "r", {"seed": 1})) == {"seed": 1}
    somebodys = SweepRun(0, "r", {"plan": "B"}, {"place": 0})
    assert recorded_parameters(somebodys) == {"plan": "B", "plan.place": 0}


KEY = "precision.loss_scale"


@pytest.fixture
def ready(read):
    """Prepare a sweep of our training with these values and two loss scales."""

    def made(**values):
        parameters = {key: {"values": found} for key, found in values.items()}
        return prepared(read(parameters=parameters | {KEY: {"values": ["dynamic", 128]}}), [])

    return made


def runs_of(found):
    """(backend, scale, seed) of every run, in order."""
    points = [point.parameters for point in found.sweep.points]
    return [(p["backend"], p[KEY], p["seed"]) for p in points]


def test_what_cannot_run_is_left_out_and_said_in_one_line(ready):
    found = ready(backend=["apex_o2", "none", "native_bf16"], seed=[1, 2])
    kinds = {("none", "dynamic"), ("apex_o2", "dynamic"), ("apex_o2", 128), ("native_bf16", "dynamic")}
    assert set(runs_of(found)) == {(*kind, seed) for kind in kinds for seed in (1, 2)}
    counted, left_out = found.messages
    assert counted.startswith("12 points, 8 different runs; ")
    why = "precision.loss_scale=128: backend=native_bf16 does not scale the loss"
    assert left_out == f"left out, because they cannot run: {why}"


def test_a_block_is_a_seed_with_every_run_in_it(ready):
    """So that the baseline which all scales share does not always run before the later ones."""
    points = ready(backend=["none", "native", "apex_o2"], seed=[*range(40)]).sweep.points
    assert [p.block for p in points] == [seed for seed in range(40) for _ in range(5)]
    assert [p.parameters["seed"] for p in points] == [p.block for p in points]
    places = Counter(i % 5 for i, p in enumerate(points) if p.parameters["backend"] == "none")
    assert len(places) == 5
    assert max(places.values()) < 20
