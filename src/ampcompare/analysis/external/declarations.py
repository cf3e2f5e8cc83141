"""What the formats of other programs' logs declare of the metric, so that nobody is asked for it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ampcompare.analysis.grouping.compared_metric import MAXIMIZE, MINIMIZE, Unit, is_logged
from ampcompare.runs import RunRecord
from ampcompare.runs.metric_definitions import definition_of

BEST_MODEL, GREATER = "metric_for_best_model", "greater_is_better"  # of Hugging Face's TrainingArguments
TIMM = "eval_top1"  # of timm's summary, in percent


@dataclass(frozen=True)
class DeclaredMetric:
    """A metric by its key, with its goal (`maximize`, `minimize`, "" where only the key is declared)."""

    key: str
    goal: str = ""
    unit: Unit | None = None


def declared_metrics(runs: Sequence[RunRecord]) -> list[DeclaredMetric]:
    """Return the metrics that all runs declare, those first by which somebody chose: a sweep's, that of
    Hugging Face's best model, timm's accuracy; then those that W&B's `define_metric` gives a goal.
    """
    every = [[*_declared_by(run)] for run in runs]
    first = every[0] if every else []
    common = [one for one in first if all(one in other for other in every)]
    return [one for one in dict.fromkeys(common) if is_logged(one.key, runs)]


def declared_goal(key: str, runs: Sequence[RunRecord]) -> str:
    """Return the goal that the runs declare of a key, "" where they do not, or declare different ones."""
    goals = {one.goal for run in runs for one in _declared_by(run) if one.key == key and one.goal}
    goals |= {goal for run in runs if (goal := definition_of(key, run.definitions).goal)}
    return goals.pop() if len(goals) == 1 else ""


def chosen_metric(runs: Sequence[RunRecord]) -> DeclaredMetric | None:
    """Return the one declared metric with a goal, None where there is none or several of one kind."""
    found = [one for one in declared_metrics(runs) if one.goal]
    defined = {name for run in runs for name in run.definitions}
    chosen = [one for one in found if one.key not in defined] or found
    return chosen[0] if chosen and (len(chosen) == 1 or chosen[0].key not in defined) else None


def _declared_by(run: RunRecord) -> Iterator[DeclaredMetric]:
    if run.objective is not None:
        yield DeclaredMetric(*run.objective)
    named, greater = run.option(BEST_MODEL), run.option(GREATER)
    if isinstance(named, str) and named:
        bare = named.removeprefix("eval_")
        goal = (MAXIMIZE if greater else MINIMIZE) if isinstance(greater, bool) else ""
        keys = [key for key in (f"eval/{bare}", f"eval_{bare}", named) if key in run.logged]
        yield from (DeclaredMetric(key, goal) for key in keys[:1])
    if TIMM in run.logged and any(path.suffix.lower() == ".csv" for path in run.paths):
        yield DeclaredMetric(TIMM, MAXIMIZE, Unit.PERCENT)
    for key, definition in run.definitions.items():
        if definition.goal and "*" not in key:
            yield DeclaredMetric(key, definition.goal)
