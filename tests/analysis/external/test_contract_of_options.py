"""Options for runs of other programs: what the user names, what formats declare, and what is asked for."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.external import FULL, MEMORY, MIXED, RATE, external, several
from support.fakes import make

from ampcompare import analyse_runs
from ampcompare.analysis.options import AnalysisOptions
from ampcompare.errors import UserError
from ampcompare.report.charts.training_curves import throughput as throughput_chart
from ampcompare.report.options import ReportOptions
from ampcompare.report.text_renderer import to_markdown
from ampcompare.runs import RunRecord
from ampcompare.runs.metric_definitions import MetricDefinition
from ampcompare.runs.missing_input import MissingInput
from ampcompare.runs.system_metrics import MachineFacts

ARMS: dict[str, Any] = {"group_by": ["trainer.precision"], "baseline": FULL}
METRIC = {"metric": "val_acc:max:fraction"}
NAMED = ARMS | METRIC


def ratio(question: str, runs: list[RunRecord], **options: Any) -> float:
    """Return the estimate of one question for the mixed-precision runs."""
    return analyse_runs(runs, **options).comparison(MIXED).estimates[question].value


def test_speed_and_memory_are_compared_only_if_named():
    analysis = analyse_runs(several(), **NAMED)
    assert {*analysis.comparison(MIXED).estimates} == {"quality"}
    assert (analysis.quantities.speed, analysis.quantities.memory) == ("", "")
    named = NAMED | {"throughput": "samples_per_sec:per_second", "memory": "gpu_mem:MiB"}
    analysis = analyse_runs(several(), **named)
    comparison = analysis.comparison(MIXED).estimates
    assert comparison["speed"].value == pytest.approx(RATE[MIXED] / RATE[FULL], rel=0.02)
    assert comparison["memory"].value == pytest.approx(MEMORY[MIXED] / MEMORY[FULL])
    assert "samples_per_sec as the throughput (per second)" in to_markdown(analysis).replace("\\", "")


@pytest.mark.parametrize(
    ("option", "text", "value", "column", "shown"),
    [
        ("throughput", "odd:per_second", 77.0, "images_per_second", 77.0),
        ("time", "odd:seconds:each", 0.02, "images_per_second", 50.0),
        ("time", "odd:ms:each", 20.0, "images_per_second", 50.0),
        ("memory", "odd:MiB", 512.0, "peak_mib", 512.0),
        ("memory", "odd:GiB", 2.0, "peak_mib", 2048.0),
        ("memory", "odd:bytes", 2.0**30, "peak_mib", 1024.0),
    ],
)
def test_values_are_converted_from_the_named_unit(option, text, value, column, shown):
    analysis = analyse_runs(several(logs={"odd": value}), **NAMED, **{option: text})
    assert analysis.groups[0].estimates[column].value == pytest.approx(shown)


def test_a_cumulative_time_gives_steps_per_second_and_training_seconds():
    runs = [run.with_columns({"clock": 1000 * run.numbers("_runtime")}) for run in several()]
    for run in runs:  # an evaluation of 3 s after every second row is no part of this clock
        clock = run.numbers("clock")
        clock[np.isfinite(run.numbers("val_acc"))] = np.nan
        evaluations = np.cumsum(np.isfinite(run.numbers("val_acc")))
        run.logged |= run.with_columns({"clock": clock - 3000 * evaluations}).logged
    analysis = analyse_runs(runs, **NAMED, time="clock:ms:cumulative")
    assert analysis.quantities.speed == "steps/s"
    assert [group.estimates["images_per_second"].value for group in analysis.groups] == pytest.approx(
        [20.0, 36.0]
    )
    assert analysis.groups[0].estimates["train_seconds"].value == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"throughput": "samples_per_sec"}, "expected KEY:per_second"),
        ({"throughput": "samples_per_sec:seconds"}, "expected KEY:per_second"),
        (
            {"throughput": "samples_per_se:per_second"},
            "no run logged this key as a number; did you mean",
        ),
        ({"time": "_runtime:hours"}, "expected KEY:seconds:each or KEY:ms:each"),
        ({"time": "_runtime:seconds:total"}, "expected KEY:seconds:each or KEY:ms:each"),
        ({"memory": "gpu_mem:MB"}, "expected KEY:MiB, KEY:GiB or KEY:bytes"),
        ({"throughput": "samples_per_sec:per_second", "time": "_runtime:ms"}, "cannot be combined"),
        ({"metric": "val_ac:max"}, "--metric 'val_ac"),
        ({"metric": "val_acc:max:share"}, "expected one of min, max, fraction, percent, plain after the key"),
        ({"metric": "gpu_mem:max:percent"}, "--metric gpu_mem:percent: it is logged as"),
        ({"metric": "train_loss:min:percent"}, "a loss is no percentage"),
        ({"seed": "sed"}, "--seed 'sed': no run has this setting; did you mean seed"),
        ({"split_by": ["width"]}, "--split-by 'width': no run has this setting"),
        ({"seed": "sed"}, "a log without a seed gets one from a file hparams.yaml with the line `seed: 3`"),
        (
            {"group_by": ["precision"]},
            "--group-by 'precision': no run has this setting; did you",
        ),
        ({"ignore": ["nothing"]}, "--ignore 'nothing': no run has this setting"),
        ({"baseline": "fp32"}, "--baseline 'fp32': no run has this value of trainer.precision"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line_with_what_is_allowed(options, message):
    with pytest.raises(UserError) as caught:
        analyse_runs(several(1), **(NAMED | options))
    assert message in caught.value.lines[0]
    assert len(caught.value.lines) == 1


@pytest.mark.parametrize(
    ("mixed", "full"), [("bf16", "fp32"), ("True", "False"), ("bf16-mixed", "32-true"), ("fp16", "fp32")]
)
def test_the_example_of_a_missing_baseline_is_the_value_in_full_precision(mixed: str, full: str):
    runs = [external(precision, seed) for precision in (mixed, full) for seed in (1, 2, 3)]
    with pytest.raises(MissingInput) as caught:
        analyse_runs(runs, group_by=["trainer.precision"], **METRIC)
    assert [*caught.value.arguments] == ["--baseline", full]


def test_missing_input_is_listed_with_candidates_last_values_and_arguments():
    with pytest.raises(MissingInput) as caught:
        analyse_runs(several())
    first, arms, metric, example = caught.value.lines
    assert first == "these logs lack information that the report needs"
    assert "trainer.precision (32-true and bf16-mixed)" in arms or "(bf16-mixed and 32-true)" in arms
    assert "seed" not in arms
    assert metric.index("val_acc (last ") < metric.index("train_loss (last 0.00500)")
    assert example == f"for example: {shlex.join(caught.value.arguments)}"
    assert caught.value.arguments[:2] == ("--group-by", "trainer.precision")
    options = dict(zip(caught.value.arguments[::2], caught.value.arguments[1::2], strict=True))
    analysis = analyse_runs(
        several(),
        group_by=[options["--group-by"]],
        baseline=options["--baseline"],
        metric=options["--metric"],
    )
    assert analysis.metric.key == "val_acc"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (METRIC, "groups: name each source as NAME=SOURCE"),
        (
            METRIC | {"group_by": ["trainer.precision"]},
            "--baseline VALUE, one of the values of trainer.precision",
        ),
        (ARMS, "metric: add --metric KEY:max or KEY:min"),
        (ARMS | {"metric": "val_acc"}, "direction of val_acc: add --metric val_acc:max"),
    ],
)
def test_only_missing_input_is_asked_for(options, message):
    with pytest.raises(MissingInput) as caught:
        analyse_runs(several(), **options)
    (question,) = caught.value.questions
    assert message in question


def test_no_key_name_decides_what_is_compared():
    telling = {"samples_per_sec": 5.0, "accuracy": 0.5, "peak_memory_mib": 3.0, "loss": 1.0}
    for logs in ({}, telling):
        with pytest.raises(MissingInput):
            analyse_runs(several(logs=logs), **ARMS)
    plain = analyse_runs(several(logs={"accuracy": 0.5}), **ARMS, metric="accuracy:max").metric
    assert (plain.is_percentage, plain.margin) == (False, None)


def log_of(folder: Path, seed: int) -> None:
    """Write Lightning's `metrics.csv` of a run with this seed."""
    folder.mkdir(parents=True)
    rows = [f"{step},{1 / step},{0.5 + step / 100 + seed / 1000}" for step in (1, 2, 3)]
    (folder / "metrics.csv").write_text("\n".join(["step,loss,acc", *rows]))


def test_the_suggested_command_answers_every_question(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arm in ("a", "b"):
        for seed in (1, 2, 3):
            log_of(tmp_path / "my logs" / arm / str(seed), seed)
    with pytest.raises(UserError) as caught:
        ReportOptions(["my logs"], analysis=AnalysisOptions(margin=0.25), formats="json").analyse()
    arguments = shlex.split(caught.value.lines[-1].removeprefix("for example: "))
    arguments = arguments[arguments.index("report") + 1 :]
    assert arguments[:2] == ["a=my logs/a", "b=my logs/b"]
    assert arguments[2:] == ["--margin", "0.25", "--format", "json", "--metric", "acc:max"]
    analysis = ReportOptions(arguments[:2], analysis=AnalysisOptions(metric="acc:max")).analyse()
    assert [(group.label, group.n) for group in analysis.groups] == [("a", 3), ("b", 3)]


F1_FALLS = ("eval/f1", True, False)


@pytest.mark.parametrize(
    ("changes", "metric"),
    [
        ({"config": {"metric_for_best_model": "f1", "greater_is_better": True}}, ("eval/f1", False, False)),
        (
            {"config": {"metric_for_best_model": "eval_f1", "greater_is_better": False}},
            ("eval/f1", True, False),
        ),
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


def test_a_named_key_takes_its_declared_direction():
    definitions = {"val_*": MetricDefinition(goal="minimize")}
    runs = [replace(run, definitions=definitions) for run in several()]
    assert analyse_runs(runs, **ARMS, metric="val_acc").metric.lower_is_better


def test_a_sweep_declares_its_compared_setting_baseline_and_seed():
    swept = {"trainer.precision": [FULL, MIXED], "seed": [1, 2, 3]}
    runs = [replace(run, swept=swept) for run in several()]
    analysis = analyse_runs(runs, **METRIC)
    assert (analysis.keys, analysis.baseline_value) == (("trainer.precision",), FULL)


def test_only_a_key_named_seed_pairs_without_an_option():
    runs = several()
    assert analyse_runs(runs, **NAMED).comparison(MIXED).estimates["quality"].is_paired
    other = [
        replace(r, config={k: v for k, v in r.config.items() if k != "seed"} | {"my_seed": 3}) for r in runs
    ]
    other = [replace(r, config=r.config | {"my_seed": int(r.name[-1])}) for r in other]
    assert not analyse_runs(other, **NAMED).comparison(MIXED).estimates["quality"].is_paired
    assert analyse_runs(other, **NAMED, seed="my_seed").comparison(MIXED).estimates["quality"].is_paired


def test_runs_of_an_arm_are_repeats_unless_split_by_a_listed_difference():
    runs = [
        replace(run, config=run.config | {"dropout": 0.1 * (1 + run.config["seed"] % 2)})
        for run in several(4)
    ]
    analysis = analyse_runs(runs, **NAMED)
    assert [group.n for group in analysis.groups] == [4, 4]
    (listed,) = [
        remark for remark in analysis.caveats if remark.startswith("Runs that are pooled or compared")
    ]
    assert "dropout (0.1 and 0.2)" in listed
    assert "run_name (8 values)" in listed
    assert "--split-by KEY" in listed
    split = analyse_runs(runs, **NAMED, split_by=["dropout"])
    assert {group.label for group in split.groups} == {
        f"{p} · dropout {rate}" for p in (FULL, MIXED) for rate in (0.1, 0.2)
    }
    assert all(not comparison.not_compared_reason for comparison in split.comparisons)


def test_speeds_without_a_recorded_device_are_compared_only_with_ignore_device():
    named = NAMED | {"throughput": "samples_per_sec:per_second"}
    runs = [replace(run, machine=MachineFacts()) for run in several()]
    reason = "the device is not recorded: if all runs had the same one, add --ignore device"
    assert analyse_runs(runs, **named).comparison(MIXED).claims["speed"].why == reason
    page = to_markdown(analyse_runs(runs, **named)).replace("\\", "")
    assert "--ignore device" in page
    analysis = analyse_runs(runs, **named, ignore=["device"]).comparison(MIXED)
    assert "faster" in analysis.claims["speed"].shown
    mixed = [
        external(p, s, machine=MachineFacts({"device_name": p, "device_type": "cuda"}))
        for p in (FULL, MIXED)
        for s in (1, 2, 3)
    ]
    assert "different devices" in analyse_runs(mixed, **named).comparison(MIXED).claims["speed"].why


def test_a_device_that_some_runs_record_is_that_of_all_runs_with_ignore_device():
    named = NAMED | {"throughput": "samples_per_sec:per_second", "memory": "gpu_mem:MiB"}
    unknown = MachineFacts()
    runs = [external(p, s, machine=None if s == 1 else unknown) for p in (FULL, MIXED) for s in (1, 2, 3)]
    comparison = analyse_runs(runs, **named).comparison(MIXED)
    for question in ("speed", "memory"):
        assert comparison.claims[question].why == (
            "the device of some runs is not recorded: if all runs had the same one, add --ignore device"
        )
    declared = analyse_runs(runs, **named, ignore=["device"])
    assert "faster" in declared.comparison(MIXED).claims["speed"].shown
    assert declared.setting.devices == ("Test Device 9000 (CUDA)",)


def test_a_speed_that_nobody_named_is_no_question_of_the_device():
    runs = [replace(run, machine=MachineFacts()) for run in several()]
    for named in (NAMED, NAMED | {"memory": "gpu_mem:MiB"}, NAMED | {"ignore": ["device"]}):
        analysis = analyse_runs(runs, **named)
        reason = "no speed is read: name its key with --throughput KEY:per_second or --time KEY:seconds"
        assert reason in analysis.recommendation.text


def test_own_runs_without_a_speed_or_a_device_are_not_sent_to_the_options_of_other_logs():
    def refused(plan: Any) -> None:
        plan["rows"] = []
        plan["summary"] = {}
        plan["exit_code"] = 2

    def without_device(plan: Any) -> None:
        plan["summary"].pop("environment", None)

    for edit in (refused, without_device):
        runs = [make(backend, seed, edit=edit) for backend in ("none", "native") for seed in (1, 2, 3)]
        text = to_markdown(analyse_runs(runs)).replace("\\", "")
        assert "native" in text
        assert "--throughput" not in text
        assert "--ignore device" not in text


@pytest.mark.parametrize(
    ("logged", "option", "unit", "shown"),
    [
        (40.5, "odd:seconds:each", "s (odd)", "40.5"),
        (40500.0, "odd:ms:each", "ms (odd)", "40,500"),
        (0.021, "odd:seconds:each", "s (odd)", "0.0210"),
        (21.3, "odd:ms:each", "ms (odd)", "21.3"),
    ],
)
def test_a_logged_time_is_shown_as_a_time(logged: float, option: str, unit: str, shown: str):
    analysis = analyse_runs(several(logs={"odd": logged}), **NAMED, time=option, ignore=["device"])
    text = to_markdown(analysis).replace("\\", "")
    assert f"{shown} {unit}" in text
    assert "1/s" not in text
    spec = throughput_chart(analysis)
    assert unit in str(spec)
    assert "1/s" not in str(spec)


def recorded(backend: str, seed: int, scores: tuple[str, ...], better: str = "") -> RunRecord:
    """Return a run of a user's loop under our recorder that evaluates these scores."""
    run = make(backend, seed, config={"recorder": {"version": 1}, "data": None})
    values = run.logged["eval/accuracy"]
    logged = {key: column for key, column in run.logged.items() if key != "eval/accuracy"}
    run = replace(run, logged=logged | {f"eval/{score}": values for score in scores})
    task = {"metric": "eval/odd", "metrics": {"eval/odd": {"words": "oddness", "better": better}}}
    return replace(
        run, summary=run.summary | {"environment": run.environment | {"task": task if better else {}}}
    )


def test_a_single_recorded_score_is_compared_and_several_are_asked_about():
    arms = [(backend, seed) for backend in ("none", "native") for seed in (1, 2, 3)]
    assert analyse_runs([recorded(*arm, ("mse",)) for arm in arms]).metric.key == "eval/mse"
    assert analyse_runs([recorded(*arm, ("accuracy", "loss")) for arm in arms]).metric.key == "eval/accuracy"
    with pytest.raises(MissingInput, match=r"eval/accuracy .*eval/f1"):
        analyse_runs([recorded(*arm, ("accuracy", "f1")) for arm in arms])
    with pytest.raises(MissingInput, match=r"eval/f1 .*eval/top5"):
        analyse_runs([recorded(*arm, ("f1", "top5")) for arm in arms])
    for score in ("odd", "f1", "dice_loss"):  # whatever a name seems to say
        with pytest.raises(MissingInput, match=f"direction of eval/{score}: "):
            analyse_runs([recorded(*arm, (score,)) for arm in arms])
    analysis = analyse_runs([recorded(*arm, ("odd", "f1"), better="lower") for arm in arms]).metric
    assert (analysis.key, analysis.lower_is_better, analysis.name) == ("eval/odd", True, "oddness")
