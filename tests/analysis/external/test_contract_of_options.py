"""Options for runs of other programs: what the user names, what formats declare, and what is asked for."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.external import FULL, MEMORY, MIXED, RATE, external, several
from support.fakes import make

from ampcompare import analyse_runs
from ampcompare.errors import UserError
from ampcompare.report.charts.training_curves import throughput as throughput_chart
from ampcompare.report.text_renderer import to_markdown
from ampcompare.runs import RunRecord
from ampcompare.runs.metric_definitions import MetricDefinition
from ampcompare.runs.missing_input import MissingInput
from ampcompare.runs.system_metrics import MachineFacts

ARMS: dict[str, Any] = {"group_by": ["trainer.precision"], "baseline": FULL}
METRIC = {"metric": "val_acc:max:fraction"}
NAMED = ARMS | METRIC


def test_speed_and_memory_are_compared_only_if_named():
    assert {*analyse_runs(several(), **NAMED).comparison(MIXED).estimates} == {"quality"}
    named = NAMED | {"throughput": "samples_per_sec:per_second", "memory": "gpu_mem:MiB"}
    analysis = analyse_runs(several(), **named)
    comparison = analysis.comparison(MIXED).estimates
    assert comparison["speed"].value == pytest.approx(RATE[MIXED] / RATE[FULL], rel=0.02)
    assert comparison["memory"].value == pytest.approx(MEMORY[MIXED] / MEMORY[FULL])
    assert "samples_per_sec as the throughput (per second)" in to_markdown(analysis).replace("\\", "")


@pytest.mark.parametrize(
    ("option", "text", "value", "column", "shown"),
    [
        ("time", "odd:ms:each", 20.0, "images_per_second", 50.0),
        ("memory", "odd:GiB", 2.0, "peak_mib", 2048.0),
        ("memory", "odd:bytes", 2.0**30, "peak_mib", 1024.0),
    ],
)
def test_values_are_converted_from_the_named_unit(option, text, value, column, shown):
    analysis = analyse_runs(several(logs={"odd": value}), **NAMED, **{option: text})
    assert analysis.groups[0].estimates[column].value == pytest.approx(shown)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"throughput": "samples_per_sec:seconds"}, "expected KEY:per_second"),
        ({"throughput": "samples_per_se:per_second"}, "logged this key as a number; did you mean"),
        ({"time": "_runtime:seconds:total"}, "expected KEY:seconds:each or KEY:ms:each"),
        ({"memory": "gpu_mem:MB"}, "expected KEY:MiB, KEY:GiB or KEY:bytes"),
        ({"throughput": "samples_per_sec:per_second", "time": "_runtime:ms"}, "cannot be combined"),
        ({"metric": "val_acc:max:share"}, "expected one of min, max, fraction, percent, plain after the key"),
        ({"metric": "gpu_mem:max:percent"}, "--metric gpu_mem:percent: it is logged as"),
        ({"metric": "train_loss:min:percent"}, "a loss is no percentage"),
        ({"seed": "sed"}, "--seed 'sed': no run has this setting; did you mean seed"),
        ({"ignore": ["nothing"]}, "--ignore 'nothing': no run has this setting"),
        ({"baseline": "fp32"}, "--baseline 'fp32': no run has this value of trainer.precision"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line_with_what_is_allowed(options, message):
    with pytest.raises(UserError) as caught:
        analyse_runs(several(1), **(NAMED | options))
    assert message in caught.value.lines[0]
    assert len(caught.value.lines) == 1


@pytest.mark.parametrize(("mixed", "full"), [("True", "False"), ("bf16-mixed", "32-true")])
def test_the_example_of_a_missing_baseline_is_the_value_in_full_precision(mixed: str, full: str):
    runs = [external(precision, seed) for precision in (mixed, full) for seed in (1, 2, 3)]
    with pytest.raises(MissingInput) as caught:
        analyse_runs(runs, group_by=["trainer.precision"], **METRIC)
    assert [*caught.value.arguments] == ["--baseline", full]


def test_missing_input_is_listed_with_candidates_last_values_and_arguments():
    with pytest.raises(MissingInput) as caught:
        analyse_runs(several())
    _, arms, metric, example = caught.value.lines
    assert "trainer.precision (32-true and bf16-mixed)" in arms
    assert "seed" not in arms
    assert metric.index("val_acc (last ") < metric.index("train_loss (last 0.00500)")
    arguments = ("--group-by", "trainer.precision", "--baseline", FULL, "--metric", "val_acc:max")
    assert caught.value.arguments == arguments
    assert example == f"for example: {shlex.join(arguments)}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (METRIC, "groups: name each source as NAME=SOURCE"),
        (METRIC | {"group_by": ["trainer.precision"]}, "--baseline VALUE, one of"),
        (ARMS, "metric: add --metric KEY:max or KEY:min"),
        (ARMS | {"metric": "val_acc"}, "direction of val_acc: add --metric val_acc:max"),
    ],
)
def test_only_missing_input_is_asked_for_whatever_the_names_of_keys(options, message):
    telling = {"throughput": 5.0, "accuracy": 0.5, "peak_memory_mib": 3.0, "loss": 1.0}
    with pytest.raises(MissingInput) as caught:
        analyse_runs(several(logs=telling), **options)
    (question,) = caught.value.questions
    assert message in question


@pytest.mark.parametrize(
    ("changes", "metric"),
    [
        ({"config": {"metric_for_best_model": "f1", "greater_is_better": False}}, ("eval/f1", True, False)),
        ({"objective": ("train_loss", "minimize")}, ("train_loss", True, False)),
        ({"definitions": {"val_acc": MetricDefinition(goal="maximize")}}, ("val_acc", False, False)),
        ({"paths": (Path("run/summary.csv"),)}, ("eval_top1", False, True)),
    ],
)
def test_a_declared_metric_is_not_asked_for(changes, metric):
    logs = {"eval/f1": 0.5, "eval_top1": 77.0}
    config = changes.pop("config", {})
    runs = [replace(run, **changes) for run in several(logs=logs, config=config)]
    analysis = analyse_runs(runs, **ARMS).metric
    assert (analysis.key, analysis.lower_is_better, analysis.is_percentage) == metric


def test_declarations_without_direction_or_of_several_keys_are_asked_about():
    several_keys = {key: MetricDefinition(goal="maximize") for key in ("val_acc", "eval/f1")}
    for changes in ({"definitions": several_keys}, {"objective": ("val_acc", "")}):
        with pytest.raises(MissingInput):
            analyse_runs([replace(run, **changes) for run in several(logs={"eval/f1": 0.5})], **ARMS)


def test_a_sweep_declares_its_compared_setting_baseline_and_seed():
    swept = {"trainer.precision": [FULL, MIXED], "seed": [1, 2, 3]}
    runs = [replace(run, swept=swept) for run in several()]
    analysis = analyse_runs(runs, **METRIC)
    assert (analysis.keys, analysis.baseline_value) == (("trainer.precision",), FULL)


def test_a_logged_time_is_shown_as_a_time():
    analysis = analyse_runs(several(logs={"odd": 21.3}), **NAMED, time="odd:ms:each", ignore=["device"])
    assert "21.3 ms (odd)" in to_markdown(analysis).replace("\\", "")
    spec = str(throughput_chart(analysis))
    assert ("ms (odd)" in spec, "1/s" in spec) == (True, False)


SPEED = {"throughput": "samples_per_sec:per_second"}
UNNAMED = "no speed is read: name its key with --throughput KEY:per_second or --time KEY:seconds"
NOT_RECORDED = "the device is not recorded: if all runs had the same one, add --ignore device"
OF_SOME = "the device of some runs is not recorded: if all runs had the same one, add --ignore device"


@pytest.mark.parametrize(
    ("devices", "options", "why"),
    [
        ("none", SPEED, NOT_RECORDED),
        ("none", SPEED | {"ignore": ["device"]}, ""),
        ("some", SPEED, OF_SOME),
        ("some", SPEED | {"ignore": ["device"]}, ""),
        ("different", SPEED, "different devices"),
        ("none", {}, UNNAMED),  # a speed that nobody named is no question of the device
    ],
)
def test_speeds_are_compared_on_one_known_device(devices, options, why):
    def machine(run: RunRecord) -> MachineFacts:
        if devices == "different":
            return MachineFacts({"device_name": run.option("trainer.precision"), "device_type": "cuda"})
        return run.machine if devices == "some" and run.option("seed") == 1 else MachineFacts()

    analysis = analyse_runs([replace(run, machine=machine(run)) for run in several()], **NAMED, **options)
    claim = analysis.comparison(MIXED).claims.get("speed")
    assert why in claim.why
    assert ("faster" in claim.shown) == (not why)


def recorded(scores: str, better: str = "") -> list[RunRecord]:
    """Return runs of a user's loop under our recorder that evaluate these scores."""
    task = {"metric": "eval/odd", "metrics": {"eval/odd": {"words": "oddness", "better": better}}}
    runs = []
    for backend, seed in (("none", 1), ("none", 2), ("native", 1), ("native", 2)):
        run = make(backend, seed, config={"recorder": {"version": 1}, "data": None})
        run.logged |= {f"eval/{score}": run.logged["eval/accuracy"] for score in scores.split()}
        if "accuracy" not in scores:
            del run.logged["eval/accuracy"]
        environment = run.environment | {"task": task if better else {}}
        runs.append(replace(run, summary=run.summary | {"environment": environment}))
    return runs


@pytest.mark.parametrize(
    ("scores", "asked"),
    [
        ("accuracy f1", r"eval/accuracy .*eval/f1"),
        ("dice_loss", "direction of eval/dice_loss: "),  # whatever it says
    ],
)
def test_recorded_scores_that_declare_nothing_are_asked_about(scores, asked):
    with pytest.raises(MissingInput, match=asked):
        analyse_runs(recorded(scores))


@pytest.mark.parametrize(
    ("scores", "better", "key"),
    [("mse", "", "eval/mse"), ("accuracy loss", "", "eval/accuracy"), ("odd f1", "lower", "eval/odd")],
)
def test_a_recorded_score_that_is_known_or_declared_is_compared(scores, better, key):
    metric = analyse_runs(recorded(scores, better)).metric
    assert (metric.key, metric.lower_is_better) == (key, key != "eval/accuracy")
    assert not better or metric.name == "oddness"
