"""Which metric is compared where nobody says: the one that the runs' own task names."""

from __future__ import annotations

from typing import Any

import pytest
from support.fakes import make

from ampcompare import metrics
from ampcompare.errors import UserError
from ampcompare.records import RunRecord
from ampcompare.report import analyse_runs

OLD: dict[str, Any] = {}
NULL = {"loss": "cross_entropy", "metrics": None, "metric": None}
GIVEN = {"loss": "cross_entropy", "metrics": ["accuracy", "top5_accuracy"], "metric": "accuracy"}
REGRESSION = {"loss": "mse", "metrics": None, "metric": None}


def run_of(
    task: object, backend: str = "none", seed: int = 1, told: object = None, **rows: float
) -> RunRecord:
    """A run with these options of `task`, and what its environment says of it, if anything."""
    run = make(backend, seed, edit=lambda plan: plan["config"].update({"task": task} if task else {}))
    if told is not None:
        run.summary["environment"] = {**run.summary["environment"], metrics.TASK: told}
    for key, value in rows.items():
        run.summary[f"eval/{key}"] = value
    return run


def test_a_run_from_before_there_were_tasks_is_pooled_with_those_of_the_default():
    runs = [run_of(OLD), run_of(NULL, seed=2), run_of(GIVEN, seed=3)]
    (group,) = analyse_runs(runs).groups
    assert group.seeds == 3
    assert len(analyse_runs([*runs, run_of(REGRESSION, seed=4)], metric="eval/accuracy").groups) == 2


@pytest.mark.parametrize("metric", ["mse", "mae", "loss"])
def test_the_metric_that_the_runs_name_is_compared_if_only_their_options_say_so(metric: str):
    task = REGRESSION | {"metric": metric}
    runs = [run_of(task, backend, seed, **{metric: 0.5}) for backend in ("none", "native") for seed in (1, 2)]
    compared = analyse_runs(runs).metric
    assert (compared.key, compared.falls) == (f"eval/{metric}", True)
    assert (compared.unit, compared.margin) == ("", None)


def test_words_and_direction_are_those_that_the_runs_recorded():
    told = {"metric": "eval/depth", "metrics": {"eval/depth": {"words": "depth of field", "better": "lower"}}}
    analysis = analyse_runs([run_of(REGRESSION, told=told, depth=2.0)])
    metric = analysis.metric
    assert (metric.key, metric.name, metric.falls) == ("eval/depth", "depth of field", True)
    assert "Of depth of field lower is better." in analysis.notes


def test_a_record_may_say_anything_of_its_task(subtests: pytest.Subtests):
    for told in [0, "x", [], {"metric": 3}, {"metric": ""}, {"metric": {}, "metrics": [1]}]:
        for task in ["x", 7, {"loss": ["mse"]}, {"loss": {}, "metrics": 3, "metric": []}]:
            with subtests.test(told=told, task=task):
                assert analyse_runs([run_of(task, told=told)]).metric.key == "eval/accuracy"


def test_an_old_run_and_one_of_another_metric_are_no_comparison():
    with pytest.raises(UserError, match=r"no one comparison: eval/accuracy \(1 run: .*eval/mse \(1 run: "):
        analyse_runs([run_of(OLD), run_of(REGRESSION, seed=2)])


def recorded(seed: int = 1, **scores: float) -> RunRecord:
    """A run of somebody's loop under the recorder, whose evaluation gave these."""

    def edit(plan: dict[str, Any]) -> None:
        plan["config"] |= {"recorder": {"version": 1}}
        plan["rows"] = [row for row in plan["rows"] if not any(key.startswith("eval/") for key in row)]
        last = plan["rows"][-1]["global_step"]
        plan["rows"].append({"global_step": last} | {f"eval/{key}": value for key, value in scores.items()})
        plan["summary"] = {k: v for k, v in plan["summary"].items() if not k.startswith(("eval/", "best/"))}

    return make("none", seed, edit=edit)


@pytest.mark.parametrize("taken", ["f1", "val_acc", "loss", "wombats"])
def test_a_loop_that_logs_no_accuracy_is_compared_by_what_its_evaluations_gave(taken: str):
    others = {"f1": {"loss": 2.0}, "val_acc": {"f1": 0.7}}
    scores = {taken: 0.8} | others.get(taken, {})
    analysis = analyse_runs([recorded(seed, **scores) for seed in (1, 2)])
    assert analysis.metric.key == f"eval/{taken}"
    assert analysis.groups[0].figures["quality"].value == pytest.approx(
        scores[taken] * analysis.metric.factor
    )
    assert any(f"took eval/{taken} as the metric" in line for line in analysis.said)
    is_known = taken != "wombats"
    assert any("more is taken as better" in line for line in analysis.remarks) is not is_known


def test_evaluations_whose_names_tell_nothing_are_named():
    analysis = analyse_runs([recorded(wombats=3.0, koalas=2.0)])
    assert analysis.metric.key == "eval/accuracy"
    assert any("Which of eval/koalas and eval/wombats" in line for line in analysis.remarks)
