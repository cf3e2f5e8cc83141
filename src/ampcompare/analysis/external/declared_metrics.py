"""The metrics that formats of other programs declare, so that the user need not name them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ampcompare.analysis.grouping.compared_metric import MAXIMIZE, MINIMIZE, Unit, is_logged
from ampcompare.runs import RunRecord
from ampcompare.runs.metric_definitions import definition_of

BEST_MODEL, GREATER = "metric_for_best_model", "greater_is_better"  # Hugging Face's TrainingArguments
TIMM = "eval_top1"  # timm's summary, in percent


@dataclass(frozen=True)
class DeclaredMetric:
    """A declared metric.

    Attributes:
        goal: `maximize` or `minimize`, "" if only the key is declared.
        unit: The unit of its values, None if it is not declared.
    """

    key: str
    goal: str = ""
    unit: Unit | None = None


def declared_metrics(runs: Sequence[RunRecord]) -> list[DeclaredMetric]:
    """Return the metrics that all runs declare.

    Selected metrics come first: a sweep's metric, that of Hugging Face's best model, and timm's
    accuracy. Metrics with a goal from W&B's `define_metric` follow.
    """
    per_run = [[*_declared_by(run)] for run in runs]
    of_first_run = per_run[0] if per_run else []
    shared = [
        metric for metric in of_first_run if all(metric in metrics_of_run for metrics_of_run in per_run)
    ]
    return [metric for metric in dict.fromkeys(shared) if is_logged(metric.key, runs)]


def declared_goal(key: str, runs: Sequence[RunRecord]) -> str:
    """Return the goal that the runs declare of a key, "" where they do not, or declare different ones."""
    goals = {metric.goal for run in runs for metric in _declared_by(run) if metric.key == key}
    goals |= {definition_of(key, run.definitions).goal for run in runs}
    goals.discard("")
    return goals.pop() if len(goals) == 1 else ""


def chosen_metric(runs: Sequence[RunRecord]) -> DeclaredMetric | None:
    """Return the one declared metric with a goal; None if there is none, or if several are equally likely."""
    with_goal = [metric for metric in declared_metrics(runs) if metric.goal]
    defined_keys = {name for run in runs for name in run.definitions}
    selected = [metric for metric in with_goal if metric.key not in defined_keys]
    if selected:
        return selected[0]
    return with_goal[0] if len(with_goal) == 1 else None


def _declared_by(run: RunRecord) -> Iterator[DeclaredMetric]:
    if run.objective is not None:
        yield DeclaredMetric(*run.objective)
    yield from _best_model_metric(run)
    if TIMM in run.logged and any(path.suffix.lower() == ".csv" for path in run.paths):
        yield DeclaredMetric(TIMM, MAXIMIZE, Unit.PERCENT)
    for key, definition in run.definitions.items():
        if definition.goal and "*" not in key:
            yield DeclaredMetric(key, definition.goal)


def _best_model_metric(run: RunRecord) -> Iterator[DeclaredMetric]:
    """Yield the metric by which Hugging Face's Trainer chooses the best model, if the run logged it."""
    name = run.option(BEST_MODEL)
    if not isinstance(name, str) or not name:
        return
    goal = ""
    greater = run.option(GREATER)
    if isinstance(greater, bool):
        goal = MAXIMIZE if greater else MINIMIZE
    bare = name.removeprefix("eval_")
    for key in (f"eval/{bare}", f"eval_{bare}", name):
        if key in run.logged:
            yield DeclaredMetric(key, goal)
            return
