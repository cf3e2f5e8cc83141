"""The compared metric: which one it is, how it is read, and the target up to which training is timed."""

from typing import Any

import numpy as np
import pytest
from support.fakes import make

from ampcompare import analyse_runs, metrics
from ampcompare.analysis.grouping.compared_metric import (
    ComparedMetric,
    Unit,
    final_placeholder,
    placeholder_of,
    unit_of,
)
from ampcompare.analysis.grouping.run_metrics import TIME
from ampcompare.errors import UserError
from ampcompare.runs import RunRecord


def test_name_and_values_decide_the_unit(subtests: pytest.Subtests):
    for key, values, unit in [
        ("eval/accuracy", (), Unit.FRACTION),
        ("eval/accuracy", (0.1, 0.93), Unit.FRACTION),
        ("val/acc", (0.1, 93.6), Unit.PERCENT),
        ("val_acc", (0.5, 1.0), Unit.FRACTION),
        ("top1", (71.2,), Unit.PERCENT),
        ("valAcc", (20.0, 90.0), Unit.PERCENT),
        ("acc/loss", (0.2, 0.9), Unit.PLAIN),
        ("val/f1", (0.2, 0.9), Unit.PLAIN),
        ("accuracy_percent", (0.4, 0.9), Unit.PERCENT),
        ("accuracy", (-3.0, 0.5), Unit.PLAIN),
        ("accuracy", (120.0,), Unit.PLAIN),
        ("accumulated", (0.1, 0.5), Unit.PLAIN),
    ]:
        with subtests.test(key=key, values=values, unit=unit):
            assert unit_of(key, values) is unit


def test_only_the_default_metric_is_called_accuracy():
    """Another percentage may be an F1 score."""
    assert ComparedMetric().noun == "accuracy"
    assert ComparedMetric(is_best=True).noun == "best accuracy"
    assert ComparedMetric("val/f1", scale=Unit.PERCENT).noun == "val/f1"
    assert ComparedMetric("val/f1", is_best=True, display_name="F1").noun == "best F1"


def test_the_placeholder_of_a_percentage_is_its_one_negative_value(subtests: pytest.Subtests):
    for unit, values, placeholder in [
        (Unit.FRACTION, (0.2, -1.0, 0.9, -1.0), -1.0),
        (Unit.PERCENT, (-1.0, 0.0), -1.0),
        (Unit.PERCENT, (-100.0, 93.0), -100.0),
        (Unit.PLAIN, (0.2, -1.0), None),
        (None, (0.2, -1.0), None),
        (Unit.FRACTION, (0.2, -1.0, -2.0), None),
        (Unit.FRACTION, (-1.0, -1.0), None),  # nothing else
        (Unit.FRACTION, (0.2, 0.0), None),
    ]:
        with subtests.test(unit=unit, values=values):
            assert placeholder_of(unit, values) == placeholder


@pytest.mark.parametrize(
    ("values", "placeholder"),
    [
        ((0.5, 0.9, 0.0), 0.0),
        ((0.0, 0.9, 0.0), 0.0),
        ((0.9, 0.01, 0.0), None),  # it fell to near 0 before
        ((0.5, 0.9, -1.0), -1.0),
        ((0.0, 0.9, -1.0), -1.0),
        ((-0.2, 0.9, -1.0), None),  # negative values are results
        ((0.5, 0.0, 0.9), None),
        ((0.0, 0.0), None),
        ((-1.0, -1.0), None),
        ((), None),
    ],
)
def test_a_last_value_of_0_or_minus_1_may_mean_that_nothing_was_evaluated(values, placeholder):
    assert final_placeholder(np.array(values)) == placeholder


def logged(backend: str, seed: int, key: str, accuracy: float):
    """Return a run that logs its accuracy times a factor under another key."""

    def edit(plan: Any) -> None:
        plan["summary"][key] = accuracy
        for row in plan["rows"]:
            if "eval/accuracy" in row:
                row[key] = accuracy * row["eval/accuracy"]
        plan["rows"][-1][key] = accuracy

    return make(backend, seed, edit=edit)


@pytest.mark.parametrize("key", ["accuracy_percent", "val/acc"])
def test_values_in_percent_are_not_scaled_again(key: str):
    def records(times: float, name: str):
        return [
            logged(b, s, name, times * (0.93 + s / 1000 + (b == "native") * s / 500))
            for b in ("none", "native")
            for s in (1, 2, 3)
        ]

    percent = analyse_runs(records(100, key), metric=f"{key}:max")
    fraction = analyse_runs(records(1, "valAcc"), metric="valAcc:max")
    of_percent, of_fraction = (a.comparison("native").estimates["quality"] for a in (percent, fraction))
    assert of_percent.ends == pytest.approx(of_fraction.ends, rel=1e-6)
    assert (percent.metric.unit, percent.metric.margin) == ("points", 0.5)
    assert percent.metric.show_value(percent.groups[0].estimates["quality"].value) == "93.20%"


def test_a_metric_in_percent_at_chance_gives_no_claim():
    records = [logged(b, s, "val/accuracy", 10.0) for b in ("none", "native") for s in (1, 2, 3)]
    comparison = analyse_runs(records, metric="val/accuracy:max").comparison("native")
    assert "at chance level in 3 of 3 runs (10% by guessing)" in comparison.no_claim_reason
    assert not comparison.keeps_quality


OLD: dict[str, Any] = {}
NULL = {"loss": "cross_entropy", "metrics": None, "metric": None}
GIVEN = {"loss": "cross_entropy", "metrics": ["accuracy", "top5_accuracy"], "metric": "accuracy"}
REGRESSION = {"loss": "mse", "metrics": None, "metric": None}


def run_of(
    task: object, backend: str = "none", seed: int = 1, recorded_task: object = None, **rows: float
) -> RunRecord:
    """Return a run with these options of `task`, and with this task in its environment."""
    run = make(backend, seed, edit=lambda plan: plan["config"].update({"task": task} if task else {}))
    if recorded_task is not None:
        run.summary["environment"] = {**run.summary["environment"], metrics.TASK: recorded_task}
    for key, value in rows.items():
        run.summary[f"eval/{key}"] = value
    return run


def test_a_run_without_a_task_is_pooled_with_the_default_task():
    runs = [run_of(OLD), run_of(NULL, seed=2), run_of(GIVEN, seed=3)]
    (group,) = analyse_runs(runs).groups
    assert group.seeds == 3
    with pytest.raises(UserError, match=r"different metrics: eval/accuracy \(3 runs: .*eval/mse \(1 run: "):
        analyse_runs([*runs, run_of(REGRESSION, seed=4)])


def test_the_metric_of_the_task_is_compared_with_its_name_and_direction():
    runs = [
        run_of(REGRESSION | {"metric": "mae"}, b, seed, mae=0.5)
        for b in ("none", "native")
        for seed in (1, 2)
    ]
    compared = analyse_runs(runs).metric
    assert (compared.key, compared.lower_is_better, compared.unit, compared.margin) == (
        "eval/mae",
        True,
        "",
        None,
    )
    recorded_task = {
        "metric": "eval/depth",
        "metrics": {"eval/depth": {"words": "depth of field", "better": "lower"}},
    }
    analysis = analyse_runs([run_of(REGRESSION, recorded_task=recorded_task, depth=2.0)])
    assert (analysis.metric.key, analysis.metric.lower_is_better) == ("eval/depth", True)
    assert "Depth of field: lower is better." in analysis.notes


def recorded(seed: int = 1, **scores: float) -> RunRecord:
    """Return a run of a user's loop under the recorder with these scores."""

    def edit(plan: dict[str, Any]) -> None:
        plan["config"] |= {"recorder": {"version": 1}}
        plan["rows"] = [row for row in plan["rows"] if not any(key.startswith("eval/") for key in row)]
        last = plan["rows"][-1]["global_step"]
        plan["rows"].append({"global_step": last} | {f"eval/{key}": value for key, value in scores.items()})
        plan["summary"] = {k: v for k, v in plan["summary"].items() if not k.startswith(("eval/", "best/"))}

    return make("none", seed, edit=edit)


def test_a_recorded_loop_with_one_score_is_compared_by_that_score():
    analysis = analyse_runs([recorded(seed, mae=0.8, loss=2.0) for seed in (1, 2)])
    assert analysis.metric.key == "eval/mae"
    assert analysis.groups[0].estimates["quality"].value == pytest.approx(0.8)


def run_with_accuracies(backend: str, seed: int, *accuracies: float, state: str = "finished"):
    """Return a run with these accuracies, at 100, 200, ... training seconds."""

    def edit(made):
        made["rows"] = [
            {"global_step": n, metrics.LOSS: 1.0, metrics.TRAIN_SECONDS: 100.0 * n, metrics.EVAL_ACCURACY: a}
            for n, a in enumerate(accuracies, 1)
        ]

    return make(backend, seed, edit=edit, state=state)


NONE = [run_with_accuracies("none", 1, 0.5, 0.8, 0.935), run_with_accuracies("none", 2, 0.5, 0.9, 0.942)]


def group(analysis, label):
    """Return the group with this label."""
    return next(g for g in analysis.groups if g.label == label)


def test_runs_that_miss_the_target_have_no_time_and_are_named():
    runs = [run_with_accuracies("native", s, 0.5, top, top) for s, top in ((1, 0.94), (2, 0.7), (3, 0.95))]
    analysis = analyse_runs([*NONE, *runs], target=0.93)
    native = group(analysis, "native")
    assert native.estimates["seconds_to_target"].n == 2
    assert native.estimates["seconds_to_target"].value == pytest.approx(200.0)
    caveat = "Only 2 of 3 runs of native reached the target of 93.00%, so the time to target is not compared."
    assert caveat in analysis.caveats


def timed_run(backend: str, seed: int, startup: float | None, execution: str = "eager"):
    """Return a run that reaches 94% after 200 s of training, of which `startup` seconds were start-up."""

    def edit(made):
        made["config"]["execution"] = execution
        for number, row in enumerate(made["rows"], 1):
            row[metrics.TRAIN_SECONDS] = 100.0 * number
            row[metrics.EVAL_ACCURACY] = 0.94 if number > 1 else 0.5
            if startup is not None:
                row[metrics.STARTUP_SECONDS] = startup

    return make(backend, seed, edit=edit)


def test_the_time_to_target_counts_no_start_up():
    startups = {1: 70.0, 2: 0.5, 3: 0.0}
    runs = [timed_run("none", seed, startup, "compile") for seed, startup in startups.items()]
    analysis = analyse_runs(
        [*runs, *(timed_run("native", seed, 0.5, "compile") for seed in startups)], target=0.94
    )
    assert list(analysis.table["seconds_to_target"]) == pytest.approx([130, 199.5, 200] + [199.5] * 3)
    assert "includes start-up" not in " ".join(analysis.caveats)


def test_a_target_that_is_reached_within_the_start_up_gives_no_ratio():
    """A ratio would leave out the fastest runs."""
    startups = {1: 200.0, 2: 200.0, 3: 2.0}
    runs = [timed_run("none", seed, startup, "compile") for seed, startup in startups.items()]
    analysis = analyse_runs(
        [*runs, *(timed_run("native", seed, 2.0, "compile") for seed in (1, 2, 3))], target=0.94
    )
    seconds = list(analysis.table["seconds_to_target"])
    assert seconds == pytest.approx([np.nan, np.nan, 198, 198, 198, 198], nan_ok=True)
    (native,) = [c for c in analysis.comparisons if c.group.label == "native"]
    assert TIME not in native.estimates


@pytest.mark.parametrize(
    ("startup", "execution", "who"),
    [
        (None, "eager", None),  # the start-up of eager runs is that of their first step
        (None, "compile", "fp32 (none) and native"),
        (None, "cuda_graph", "fp32 (none) and native"),
        (None, "compile_graph", "fp32 (none) and native"),
        (2.0, "compile", "fp32 (none)"),  # only one of two groups records it
        (2.0, "eager", "fp32 (none)"),
    ],
)
def test_records_that_do_not_separate_start_up_are_named(startup, execution, who):
    runs = [timed_run("none", seed, None, execution) for seed in (1, 2, 3)]
    analysis = analyse_runs(
        [*runs, *(timed_run("native", seed, startup, execution) for seed in (1, 2, 3))], target=0.94
    )
    assert list(analysis.table["seconds_to_target"]) == pytest.approx(
        [200.0] * 3 + [200.0 - (startup or 0)] * 3
    )
    caveats = [line for line in analysis.caveats if "start-up" in line and "target" in line]
    assert len(caveats) == (who is not None)
    assert who is None or f"The time to target of {who} includes start-up" in caveats[0], caveats


def test_a_target_of_a_loss_is_reached_from_above():
    def losses(*values):
        def edit(made):
            made["rows"] = [
                {"global_step": n, metrics.TRAIN_SECONDS: 10.0 * n, metrics.EVAL_LOSS: v}
                for n, v in enumerate(values, 1)
            ]

        return edit

    runs = [make("none", 1, edit=losses(2.0, 0.42)), make("none", 2, edit=losses(2.0, 0.3, 0.2))]
    analysis = analyse_runs(runs, metric=metrics.EVAL_LOSS, target=0.42)
    assert list(analysis.table["seconds_to_target"]) == [20.0, 20.0]


def test_a_target_reached_without_a_clock_is_not_reported_as_missed():
    def untimed(made):
        made["rows"] = [{k: v for k, v in row.items() if k != metrics.TRAIN_SECONDS} for row in made["rows"]]

    runs = [*NONE, make("native", 1, edit=untimed)]
    runs[-1].logged[metrics.EVAL_ACCURACY] = NONE[0].logged[metrics.EVAL_ACCURACY]
    assert " reached " not in " ".join(analyse_runs(runs, target=0.93).caveats)
