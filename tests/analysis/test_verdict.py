"""Headline and badges of records with a known answer: of comparisons, of a search, and of a grid.

Accuracies and speeds are chosen so that each interval follows by hand from the differences of the pairs.
"""

import shlex
from dataclasses import replace
from typing import Any

import pytest
from support.fakes import make
from support.known_runs import BASE, FAST, FASTER, SAME, less, runs

from ampcompare import analyse_runs
from ampcompare.runs import RunRecord

NOISY = (0.90, 0.96, 0.92, 0.94, 0.93)
NOT_FASTER = (36, 44, 43, 41, 40)
# The runs, the facts that the headline has in this order, and the badges.
TABLE: dict[str, tuple[list[RunRecord], tuple[str, ...], dict[str, str]]] = {
    "kept": (
        [*runs("none", BASE), *runs("native", SAME, FAST)],
        ("Accuracy: native the same within 0.5", "Speed: native 1.90×"),
        {"native": "same accuracy · faster"},
    ),
    "kept, a faster one failed": (
        [*runs("none", BASE), *runs("native", SAME, FAST), *runs("fp16", SAME, FASTER, failed=(1, 2, 4))],
        (
            "native the same",
            "no verdict for fp16",
            "native 1.90×",
            "no verdict for fp16",
            "3 of 5 runs of fp16",
        ),
        {"native": "same accuracy · faster", "fp16": "3 of 5 failed"},
    ),
    "a loss": (
        [*runs("none", BASE), *runs("native", less(1.2), FAST)],
        ("native 1.20 points lower", "at most 1.21", "native 1.90×"),
        {"native": "accuracy 1.20 lower · faster"},
    ),
    "undecided": (
        [*runs("none", BASE), *runs("native", NOISY, FAST)],
        ("inconclusive for native", "−0.20 points", "2.93 lower", "native 1.90×"),
        {"native": "accuracy inconclusive · faster"},
    ),
    "no speed-up shown": (
        [*runs("none", BASE), *runs("native", SAME, NOT_FASTER)],
        ("native the same within 0.5", "inconclusive for native", "0.998×", "0.918 to 1.08"),
        {"native": "same accuracy · speed inconclusive"},
    ),
    "the same speed": (
        [*runs("none", BASE), *runs("native", SAME, (40.1, 40.9, 42.1, 40.1, 40.9))],
        ("native the same within 0.5", "Speed: native the same within 2%"),
        {"native": "same accuracy · as fast"},
    ),
    "at chance in two runs": (
        [*runs("none", BASE[:2]), *runs("fp16", (0.1, 0.1), FASTER)],
        ("Accuracy: fp16 at chance",),
        {"fp16": "accuracy at chance · speed inconclusive"},
    ),
    "one seed": (
        [*runs("none", BASE[:1]), *runs("native", SAME[:1], FAST)],
        ("Accuracy: no verdict for native (n = 1)", "Speed: no verdict for native"),
        {"native": "inconclusive"},
    ),
    "a failed baseline": (
        [*runs("none", BASE, failed=(3,)), *runs("native", SAME, FAST)],
        ("no verdict for native", "native 1.90×", "1 of 5 runs of fp32 (none) failed"),
        {"native": "accuracy inconclusive · faster"},
    ),
    "all of the baseline failed": (
        [*runs("none", BASE, failed=range(5)), *runs("native", SAME, FAST)],
        ("baseline fp32 (none)", "5 failed"),
        {"native": "not finished"},
    ),
    "still running": (
        [*runs("none", BASE), *runs("native", SAME, FAST, state="running")],
        ("native has not finished", "5 running"),
        {"native": "not finished"},
    ),
    "no baseline": (runs("native", SAME, FAST), ("No run of the baseline fp32 (none)",), {"native": ""}),
    "only the baseline": (runs("none", BASE), ("nothing to compare",), {"none": "baseline"}),
}


@pytest.mark.parametrize("case", TABLE)
def test_headline_and_badges_have_the_known_answer(case: str):
    records, facts, badges = TABLE[case]
    analysis = analyse_runs(records)
    rest = analysis.headline
    for fact in facts:
        assert fact in rest, (fact, analysis.headline)
        rest = rest.partition(fact)[2]
    assert {g.label: analysis.badge(g) for g in analysis.groups if g.label in badges} == badges


NEAR = [*runs("none", BASE[:3], (40, 41, 42)), *runs("native", NOISY[:3], (41, 44, 42))]


def test_an_inconclusive_headline_has_the_interval_and_the_advice_has_the_seeds():
    analysis = analyse_runs(NEAR)
    # Differences of -3.0, +2.9 and -1.2 points: mean -0.433, s = 3.024; 4.303 s / sqrt(3) = 7.512.
    assert "(−0.43 points; at most 7.94 lower)" in analysis.headline
    assert analysis.comparison("native").estimates["quality"].low == pytest.approx(-7.94, abs=0.01)
    # With two degrees of freedom, the range of further seeds is wider than a factor of 10.
    assert analysis.comparison("native").claims["quality"].more_seeds is None
    assert "vary too much to say how many more seeds" in analysis.advice
    assert "--until-decided` adds seeds, up to 10," in analysis.advice


def test_the_advice_names_the_means_of_the_sweep_that_made_the_runs():
    command = "`ampcompare sweep own --until-decided`"  # the folder of a sweep of this machine
    of_server = [replace(run, sweep_id="abc123") for run in NEAR]
    assert command in analyse_runs(of_server, sweep_command=command).advice
    advice = analyse_runs(of_server).advice
    assert ("`wandb sweep FILE`" in advice, "wandb:ENTITY/PROJECT" in advice) == (True, True)
    assert "--until-decided" not in advice


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ({"model": {"name": "./my nets/net.py:build"}}, "'model.name=./my nets/net.py:build' "),
        ({"batch_size": 128, "execution": "eager"}, ""),  # the defaults
        (
            {
                "model": {"name": "./net.py:build", "kwargs": {"width": 64, "act": "gelu", "name": "64"}},
                "data": {"source": "image_folder", "root": "/home/me/images", "kwargs": {"rows": 10}},
                "task": {"loss": "./net.py:loss", "metrics": ["mae"]},
                "training": {"accumulate": 2, "clip_norm": 1.0},
                "optimizer": {"name": "adamw", "lr": 0.5},
            },
            "model.name=./net.py:build model.kwargs.width=64 model.kwargs.act=gelu "
            "'model.kwargs.name=\"64\"' data.source=image_folder data.root=PATH data.kwargs.rows=10 "
            "task.loss=./net.py:loss optimizer.name=adamw training.accumulate=2 training.clip_norm=1.0 ",
        ),
    ],
)
def test_the_command_of_the_benchmark_measures_what_the_runs_trained(config: Any, options: str):
    made = [
        *runs("none", BASE, NOT_FASTER, config=config),
        *runs("native", SAME, (41, 44, 42, 45, 40), config=config),
    ]
    advice = analyse_runs(made).advice
    command = advice.partition("measure it with `ampcompare bench ")[2].partition("--json FILE` and add")[0]
    assert sorted(shlex.split(command)) == sorted(shlex.split(options))


@pytest.mark.parametrize(("recorded", "why"), [("fp32", "in fp32"), ("emulated", "no instructions")])
def test_without_native_16bit_instructions_speed_is_not_compared_and_memory_is(recorded: str, why: str):
    def on_cpu(plan: Any) -> None:
        environment = {"device_type": "cpu", "arithmetic": {"float16": recorded, "bfloat16": "amx_bf16"}}
        plan["summary"]["environment"] |= environment

    made = [make(b, seed, edit=on_cpu) for b in ("none", "native") for seed in (1, 2, 3)]
    analysis = analyse_runs(made)
    native = analysis.comparison("native")
    assert native.estimates.keys() == {"memory", "quality"}
    assert native.claims["speed"].answer == "not compared"
    assert (why in native.claims["speed"].why, why in analysis.caveats[0]) == (True, True)
    for run in made[3:]:
        run.config["backend"] = "native_bf16"
    assert "as fast" in analyse_runs(made).headline


def test_a_group_at_chance_beside_a_trained_baseline_lost_quality():
    stuck = runs("fp16", [0.1, 0.101, 0.1, 0.099, 0.1], FASTER)
    comparison = analyse_runs([*runs("none", BASE), *stuck], margin=99.0).comparison("fp16")
    assert comparison.shown >= {"faster", "worse"}
    assert not comparison.keeps_quality


def test_without_a_baseline_of_the_compared_setting_the_user_is_asked_for_one():
    made = [*runs("none", BASE, lr=[0.1] * 5), *runs("none", SAME, FAST, lr=[0.2] * 5)]
    gates = ["0.2: speedup >= 1.5"]
    analysis = analyse_runs(made, group_by=["optimizer.lr"], require=gates)
    asked = "o baseline is named: --baseline VALUE names a value of optimizer.lr"
    assert (analysis.headline, analysis.gate_results[0].why) == (f"N{asked}", f"n{asked}")
