"""The compared metric: which one it is, how it is read, and the target up to which training is timed."""

from typing import Any

import pytest
from support.fakes import make

from ampcompare import analyse_runs, metrics
from ampcompare.runs import RunRecord


def logged(backend: str, seed: int, key: str, *values: float) -> RunRecord:
    """Return a run with these last evaluations under a key."""

    def edit(plan: Any) -> None:
        for row in plan["rows"]:
            row.pop("eval/accuracy", None)
        for row, value in zip(plan["rows"][-len(values) :], values, strict=True):
            row[key] = value
        plan["summary"][key] = values[-1]

    return make(backend, seed, edit=edit)


@pytest.mark.parametrize(
    ("key", "values", "scale"),
    [
        ("eval/accuracy", (0.1, 0.93), "fraction"),
        ("val/acc", (0.1, 93.6), "percent"),
        ("valAcc", (20.0, 90.0), "percent"),
        ("acc/loss", (0.2, 0.9), "plain"),
        ("accuracy_percent", (0.4, 0.9), "percent"),
        ("test/accuracy", (-3.0, 0.5), "plain"),
        ("accumulated", (0.1, 0.5), "plain"),
    ],
)
def test_name_and_values_decide_the_unit(key: str, values: tuple[float, ...], scale: str):
    assert analyse_runs([logged("none", 1, key, *values)], metric=f"{key}:max").metric.scale.value == scale


REGRESSION = {"loss": "mse", "metrics": None, "metric": None}


def run_of(task: object, recorded_task: object = None, **rows: float) -> RunRecord:
    """Return a run with these options of `task`, and with this task in its environment."""
    run = make("none", config={"task": task})
    if recorded_task is not None:
        run.summary["environment"] = {**run.summary["environment"], metrics.TASK: recorded_task}
    for key, value in rows.items():
        run.summary[f"eval/{key}"] = value
    return run


def test_the_metric_of_the_task_is_compared_with_its_name_and_direction():
    compared = analyse_runs([run_of(REGRESSION | {"metric": "mae"}, mae=0.5)]).metric
    assert (compared.key, compared.lower_is_better, compared.margin) == ("eval/mae", True, None)
    recorded_task = {
        "metric": "eval/depth",
        "metrics": {"eval/depth": {"words": "depth of field", "better": "lower"}},
    }
    metric = analyse_runs([run_of(REGRESSION, recorded_task=recorded_task, depth=2.0)]).metric
    assert (metric.key, metric.lower_is_better, metric.noun) == ("eval/depth", True, "depth of field")


def timed_run(backend: str, seed: int, startup: float | None, execution: str = "compile"):
    """Return a run that reaches 94% after 200 s of training, of which `startup` seconds were start-up."""

    def edit(made):
        made["config"]["execution"] = execution
        for number, row in enumerate(made["rows"], 1):
            row[metrics.TRAIN_SECONDS] = 100.0 * number
            row[metrics.EVAL_ACCURACY] = 0.94 if number > 1 else 0.5
            if startup is not None:
                row[metrics.STARTUP_SECONDS] = startup

    return make(backend, seed, edit=edit)


def timed(none: list[float | None], native: float | None, execution: str = "compile") -> Any:
    """Return the analysis of runs with this start-up: of the baseline by seed, of native always the same."""
    runs = [timed_run("none", seed, startup, execution) for seed, startup in enumerate(none)]
    runs += [timed_run("native", seed, native, execution) for seed in range(len(none))]
    return analyse_runs(runs, target=0.94)


def test_the_time_to_target_counts_no_start_up():
    analysis = timed([70.0, 0.5, 0.0], 0.5)
    assert list(analysis.table["seconds_to_target"]) == pytest.approx([130, 199.5, 200] + [199.5] * 3)
    assert "includes start-up" not in " ".join(analysis.caveats)


@pytest.mark.parametrize(
    ("startup", "execution", "who"),
    [
        (None, "eager", None),  # the start-up of eager runs is that of their first step
        (None, "compile_graph", "fp32 (none) and native"),
        (2.0, "eager", "fp32 (none)"),  # only one of two groups records it
    ],
)
def test_records_that_do_not_separate_start_up_are_named(startup, execution, who):
    analysis = timed([None] * 3, startup, execution)
    assert list(analysis.table["seconds_to_target"]) == pytest.approx(
        [200.0] * 3 + [200.0 - (startup or 0)] * 3
    )
    caveats = [line for line in analysis.caveats if "includes start-up" in line]
    assert [f"of {who} " in line for line in caveats] == [True] * (who is not None)


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
