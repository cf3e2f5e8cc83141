"""Headline and badges of records with a known answer: of comparisons, of a search, and of a grid.

Accuracies and speeds are chosen so that each interval follows by hand from the differences of the pairs.
"""

import shlex
from dataclasses import replace
from typing import Any

import pytest
from support.fakes import make
from support.known_runs import BASE, FAST, FASTER, SAME, SLOW, less, runs

from ampcompare import analyse_runs
from ampcompare.report.comparison_table import comparison_table
from ampcompare.runs import RunRecord

NOISY = (0.90, 0.96, 0.92, 0.94, 0.93)
NOT_FASTER = (36, 44, 43, 41, 40)
ARMS = ("first", "first", "last", "last", "last")

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
    "a loss within the margin": (
        [*runs("none", BASE), *runs("native", less(0.37), FAST)],
        ("native 0.37 points lower", "at most 0.38", "within the margin of 0.5", "native 1.90×"),
        {"native": "same within 0.5, 0.37 lower · faster"},
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
    "a control that came to nothing": (
        [
            *runs("none", BASE),
            *runs("none", SAME, arms=ARMS, failed=(1, 2, 3, 4, 5)),
            *runs("native", SAME, FAST),
        ],
        ("native the same within 0.5", "inconclusive for native"),
        {"native": "same accuracy · speed inconclusive", "none again (A/A)": "control"},
    ),
    "no more than the control": (
        [
            *runs("none", BASE),
            *runs("none", SAME, (38, 43.5, 40, 43, 41), arms=ARMS),
            *runs("native", SAME, (40.4, 41.42, 42.41, 40.41, 41.4)),
        ],
        ("native the same within 0.5", "native the same within 2%"),
        {"native": "same accuracy · as fast", "none again (A/A)": "control"},
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
    "all that is faster failed": (
        [*runs("none", BASE), *runs("fp16", SAME, FASTER, failed=range(5))],
        ("5 of 5 runs of fp16 failed",),
        {"fp16": "5 of 5 failed"},
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
    "no accuracy": (
        [*runs("none", [None] * 3), *runs("native", [None] * 3, FAST)],
        ("Speed: native 1.90×",),
        {"native": "faster"},
    ),
    "other devices": (
        [*runs("none", BASE, device="A"), *runs("native", SAME, FAST, device="B")],
        ("native the same within 0.5", "not compared for native"),
        {"native": "same accuracy"},
    ),
    "no baseline": (runs("native", SAME, FAST), ("No run of the baseline fp32 (none)",), {"native": ""}),
    "only the baseline": (runs("none", BASE), ("nothing to compare",), {"none": "baseline"}),
    "only the baseline and its control": (
        [*runs("none", BASE), *runs("none", SAME, arms=["first"] * 5)],
        ("nothing to compare",),
        {"none": "baseline", "none again (A/A)": "control"},
    ),
    "a gain that its control does not leave": (
        [
            *runs("none", BASE),
            *runs("none", SAME, (45, 46, 47, 45, 46), arms=ARMS),
            *runs("native", SAME, (46, 47, 48, 45, 46)),
        ],
        ("inconclusive for native (1.14×, CI", "; the gain is not shown to exceed the A/A control)"),
        {"native": "same accuracy · speed inconclusive"},
    ),
    "another setting": (
        [*runs("none", BASE), *runs("native", SAME, FAST, config={"batch_size": 64})],
        ("Nothing is compared",),
        {"native": "not compared"},
    ),
    "of a search": (  # no two runs have a learning rate in common
        runs("none", BASE[:2], lr=[0.01, 0.02]) + runs("native", SAME[:2], FAST, lr=[0.015, 0.025]),
        ("Nothing is compared",),
        {},
    ),
    "equal answers": (  # 1.900 and 1.902 both read 1.90x
        [*runs("none", BASE), *runs("apex_o1", SAME, [1.001 * v for v in FAST]), *runs("native", SAME, FAST)],
        ("native and apex_o1 the same within 0.5", "native and apex_o1 1.90×"),
        {"native": "same accuracy · faster", "apex_o1": "same accuracy · faster"},
    ),
    "the open ones come last": (  # the 0.83x of one is shown, the 0.91x of the other is not
        [
            *runs("none", BASE),
            *runs("apex_o1", NOISY, [speed * 0.83 for speed in SLOW]),
            *runs("native", SAME, (30, 42, 44, 31, 39)),
        ],
        ("native the same", "inconclusive for apex_o1", "apex_o1 0.830×", "inconclusive for native (0.9"),
        {"native": "same accuracy · speed inconclusive", "apex_o1": "accuracy inconclusive · slower"},
    ),
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


def test_the_headline_follows_the_options():
    lost = [*runs("none", BASE), *runs("native", less(0.37), FAST)]
    assert "within the margin" not in analyse_runs(lost, margin=0.1).headline
    sizes = [*runs("native", BASE), *runs("native", SAME, FAST, config={"batch_size": 256})]
    for number, run in enumerate(sizes):
        run.id = f"r{number}"
    assert "batch_size 256 1.90×" in analyse_runs(sizes, "128", group_by=["batch_size"]).headline
    assert "fp32 (none) 0.526×" in analyse_runs(TABLE["kept"][0], "native").headline


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


def test_an_undecided_throughput_sends_to_the_benchmark_and_an_undecided_accuracy_to_more_seeds():
    advice = analyse_runs(
        [*runs("none", BASE, NOT_FASTER), *runs("native", SAME, (41, 44, 42, 45, 40))]
    ).advice
    assert ("`--bench FILE`" in advice, "native" in advice, "seed" in advice) == (True, True, False)
    differences = (0.001, -0.012, 0.006, -0.009, 0.002)
    other = [value + one for value, one in zip(BASE, differences, strict=True)]
    advice = analyse_runs([*runs("none", BASE), *runs("native", other, FAST)]).advice
    assert ("accuracy of native" in advice, "ampcompare bench" in advice) == (True, False)


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (
            {"model": {"name": "./net.py:build"}, "data": {"source": "./data.py:build"}},
            "model.name=./net.py:build data.source=./data.py:build ",
        ),
        ({"model": {"name": "./my nets/net.py:build"}}, "'model.name=./my nets/net.py:build' "),
        ({"model": {"name": "timm:convnext_tiny"}}, "model.name=timm:convnext_tiny "),
        ({"batch_size": 512, "execution": "cuda_graph"}, "execution=cuda_graph batch_size=512 "),
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


@pytest.mark.parametrize(
    ("recorded", "why"),
    [
        ("fp32", "computes float16 in fp32"),
        ("emulated", "no instructions for float16"),  # of version 0.2 and of other trainers
    ],
)
def test_without_native_16bit_instructions_speed_is_not_compared_and_memory_is(recorded: str, why: str):
    def on_cpu(plan: Any) -> None:
        environment = {"device_type": "cpu", "arithmetic": {"float16": recorded, "bfloat16": "amx_bf16"}}
        plan["summary"]["environment"] |= environment

    def beside(backend: str):
        made = [make(b, seed, edit=on_cpu) for b in ("none", "native") for seed in (1, 2, 3)]
        for run in made[3:]:
            run.config["backend"] = backend
        return analyse_runs(made)

    in_fp32, in_bf16 = beside("native"), beside("native_bf16")
    native = in_fp32.comparison("native")
    assert native.estimates.keys() == {"memory", "quality"}
    assert native.claims["speed"].answer == "not compared"
    assert (why in native.claims["speed"].why, why in in_fp32.caveats[0]) == (True, True)
    assert ("as fast" in in_fp32.headline, "as fast" in in_bf16.headline) == (False, True)
    assert "not compared" not in " ".join(in_bf16.caveats)


@pytest.mark.parametrize(
    ("values", "speeds", "tones"),
    [
        (SAME, SLOW, {"same accuracy": "good", "as fast": "good"}),
        (SAME, [v * 0.83 for v in SLOW], {"same accuracy": "good", "slower": "bad"}),
        (NOISY, NOT_FASTER, {"accuracy inconclusive": "open", "speed inconclusive": "open"}),
        (less(1.2), FAST, {"accuracy 1.20 lower": "bad", "faster": "good"}),
    ],
)
def test_only_what_is_decided_and_good_is_green(values: Any, speeds: Any, tones: dict[str, str]):
    """Speeds that are all equal to the baseline's have no interval, so a spread is added to both sides."""
    base = [speed * (1 + seed / 1e4) for seed, speed in enumerate(SLOW)]
    analysis = analyse_runs([*runs("none", BASE, base), *runs("native", values, speeds)])
    parts = analysis.badge_parts(analysis.comparison("native").group)
    assert {part.text: part.tone for part in parts} == tones


def test_a_group_at_chance_beside_a_trained_baseline_lost_quality():
    stuck = runs("fp16", [0.1, 0.101, 0.1, 0.099, 0.1], FASTER)
    for margin in (0.5, 99.0):
        analysis = analyse_runs([*runs("none", BASE), *stuck], margin=margin)
        comparison = analysis.comparison("fp16")
        assert comparison.shown >= {"faster", "worse"}
        assert not comparison.keeps_quality
        assert {part.tone for part in analysis.badge_parts(comparison.group) if part.text != "faster"} == {
            "bad"
        }


def test_a_lower_loss_is_a_gain():
    records = [*runs("none", BASE), *runs("native", SAME, FAST)]
    for run in records:
        is_native, seed = run.option("backend") == "native", run.option("seed")
        run.summary["eval/loss"] = 0.5 + seed**2 / 1e3 if is_native else 1.0 + seed / 1e3
    loss = analyse_runs(records, metric="eval/loss")
    assert "better" in loss.comparison("native").shown
    assert {part.tone for part in loss.badge_parts(loss.comparison("native").group)} == {"good"}
    assert loss.headline.startswith("Eval loss: native ")


def test_in_a_grid_equal_settings_are_compared():
    records = []
    for rate, accuracy in ((0.1, 0.90), (0.2, 0.93)):
        for backend, speeds, more in (("none", SLOW, 0.0), ("native", FAST, 0.001)):
            values = [accuracy + more + seed / 1000 + (seed == 1) * more / 9 for seed in range(3)]
            records += runs(backend, values, speeds, lr=[rate] * 3)
    for number, record in enumerate(records):
        record.id = f"r{number}"
    analysis = analyse_runs(records)
    assert [c.baseline.label for c in analysis.comparisons] == ["none · lr 0.1", "none · lr 0.2"]
    assert "native · lr 0.1 and native · lr 0.2 0.10 points higher" in analysis.headline


def test_the_intervals_of_a_control_alone_are_called_intervals():
    control = analyse_runs([*runs("none", BASE), *runs("none", SAME, arms=["first"] * 5)])
    assert control.caption == "CI: 95% confidence interval, not paired."
    few = analyse_runs([*runs("none", BASE[:2]), *runs("none", SAME[:2], arms=["first"] * 2)])
    assert "the ranges go from the lowest to the highest run" in few.caption


def test_a_compared_value_that_says_nothing_alone_has_its_key_in_every_name():
    made = [
        *runs("none", BASE, lr=[0.1] * 5),
        *runs("none", SAME, SLOW, lr=[0.1] * 5, arms=ARMS),
        *runs("none", SAME, FAST, lr=[0.2] * 5),
    ]
    gates = ["lr 0.2: speedup >= 1.5", "0.2: speedup >= 1.5", "lr 0.1: failures <= 0"]
    analysis = analyse_runs(made, group_by=["optimizer.lr"], baseline="0.1", require=gates)
    assert [g.display_name for g in analysis.groups] == ["lr 0.1", "lr 0.1 again (A/A)", "lr 0.2"]
    assert [result.is_shown for result in analysis.gate_results] == [True] * 3
    for run in made:
        run.config |= {0.1: {"amp": True}, 0.2: {"amp": ""}}[run.option("optimizer.lr")]
    del made[0].config["amp"]
    names = {group.display_name for group in analyse_runs(made, group_by=["amp"], baseline="True").groups}
    assert {name.partition(" · ")[0] for name in names} >= {"amp True", "amp not set", "amp ''"}


def test_without_a_baseline_of_the_compared_setting_the_user_is_asked_for_one():
    made = [*runs("none", BASE, lr=[0.1] * 5), *runs("none", SAME, FAST, lr=[0.2] * 5)]
    gates = ["0.2: speedup >= 1.5"]
    analysis = analyse_runs(made, group_by=["optimizer.lr"], require=gates)
    asked = "o baseline is named: --baseline VALUE names a value of optimizer.lr"
    assert (analysis.headline, analysis.gate_results[0].why) == (f"N{asked}", f"n{asked}")
    assert comparison_table(analysis).columns[0].head == "Throughput"
