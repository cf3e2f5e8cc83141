"""Choose the compared metric: the one that the user names, else that of the runs' sweep, task or format."""

from collections.abc import Sequence
from dataclasses import replace

from ampcompare import metrics
from ampcompare.analysis.external.declared_metrics import chosen_metric, declared_goal
from ampcompare.analysis.external.missing_input import direction_question, metric_question
from ampcompare.analysis.grouping.compared_metric import (
    DEFAULT_METRIC,
    GOALS,
    MAXIMIZE,
    ComparedMetric,
    Unit,
    choose_metric,
    declared_unit,
    own_goal,
    parse_metric,
)
from ampcompare.analysis.grouping.logged_keys import is_logged
from ampcompare.analysis.options import AnalysisOptions
from ampcompare.config import task_spec
from ampcompare.errors import UserError
from ampcompare.runs import RunRecord
from ampcompare.runs.nested import as_text, lookup
from ampcompare.runtime.formatting import plural, printable, short, some


def choose_external_metric(runs: Sequence[RunRecord], options: AnalysisOptions) -> ComparedMetric:
    """Return the metric that the user names or the format declares.

    Raises:
        MissingInput: There is no such metric, or its direction is unknown.
        UserError: No run has the named metric.
    """
    if options.metric is None:
        chosen = chosen_metric(runs)
        if chosen is None:
            raise metric_question(runs)
        key, goal, unit = chosen.key, chosen.goal, chosen.unit
    else:
        key, goal, unit = parse_metric(options.metric, runs)
        declared = declared_goal(key, runs)
        _check_direction(options.metric, key, goal, declared)
        goal = goal or declared
        if not goal and is_logged(key, runs):
            raise direction_question(key, options.metric, runs)
    unit = unit or declared_unit(key, runs) or Unit.PLAIN
    return choose_metric(key, options.margin, runs, unit=unit, goal=goal or MAXIMIZE)


def choose_own_metric(runs: Sequence[RunRecord], options: AnalysisOptions) -> ComparedMetric:
    """Return the metric that the user names, else that of the runs' sweep, else that of their task.

    Raises:
        MissingInput: The direction of a recorded metric is unknown.
        UserError: No run has the named metric, or the runs have different tasks.
    """
    key, goal, unit = _named_metric(runs, options)
    display_name, declared = _declared_in_task(key, runs)
    # Our training records the direction of each score. Key names of users' loops tell nothing.
    is_of_user = metrics.find(key) is None and any(run.is_recorded for run in runs)
    if is_of_user and not declared:
        declared = declared_goal(key, runs)
    is_asked = options.metric is not None
    if options.metric is not None:
        _check_direction(options.metric, key, goal, own_goal(key) or declared)
    goal = goal or declared or own_goal(key)
    if not goal and is_logged(key, runs):
        raise direction_question(key, options.metric or key, runs)
    if is_of_user:
        unit = unit or declared_unit(key, runs) or Unit.PLAIN
    metric = choose_metric(key, options.margin, runs, unit=unit, goal=goal, is_asked=is_asked)
    return replace(metric, display_name=display_name)


def _named_metric(runs: Sequence[RunRecord], options: AnalysisOptions) -> tuple[str, str, Unit | None]:
    """Return key, goal and unit that the user names, else those of the runs; "" and None where not named."""
    if options.metric is not None:
        return parse_metric(options.metric, runs)
    objective = _common_objective(runs)
    if objective is not None:
        return *objective, None
    # Groups without the metric are reported later.
    return _of_their_task(runs) or _only_score(runs) or DEFAULT_METRIC, "", None


def _common_objective(runs: Sequence[RunRecord]) -> tuple[str, str] | None:
    """Return key and goal of the sweep of all runs, if it is a quality that they logged; None otherwise."""
    objective = runs[0].objective
    if objective is None or any(run.objective != objective for run in runs):
        return None
    key, _ = objective
    return objective if is_quality(key) and is_logged(key, runs) else None


def _check_direction(text: str, key: str, goal: str, declared: str) -> None:
    """Refuse a direction that the runs, or our own metrics, declare otherwise.

    Args:
        text: The option as the user wrote it.
        goal: The direction in it, "" without one.
        declared: The declared direction, "" if none is declared.

    Raises:
        UserError: The two differ.
    """
    if not goal or not declared or goal == declared:
        return
    asked = "max" if goal == MAXIMIZE else "min"
    right = "max" if declared == MAXIMIZE else "min"
    better = "higher" if declared == MAXIMIZE else "lower"
    raise UserError(
        f"--metric {text!r}: {printable(key)} is declared as a metric of which {better} is better, "
        f"so :{asked} contradicts it; write --metric {key}:{right} or leave :{asked} out"
    )


def is_quality(key: str) -> bool:
    """Return whether a sweep's metric is one of quality, and not our speed, memory or energy."""
    return metrics.find(key) is None or key.startswith((metrics.EVAL_PREFIX, "train/"))


def _of_their_task(runs: Sequence[RunRecord]) -> str | None:
    """Return the key by which our runs are compared, as they recorded it; None if none is recorded.

    Raises:
        UserError: The runs record different keys, so they are not one comparison.
    """
    names_by_key: dict[str, list[str]] = {}
    for run in runs:
        key = _of_its_task(run)
        if key is not None:
            names_by_key.setdefault(key, []).append(printable(run.name))
    if len(names_by_key) > 1:
        keys = [
            f"{printable(key)} ({plural(len(names), 'run')}: {some(names, 2)})"
            for key, names in names_by_key.items()
        ]
        raise UserError(
            f"the runs have different metrics: {some(keys)}; choose one of them with --metric, or make one "
            "report for each task"
        )
    return next(iter(names_by_key), None)


def _of_its_task(run: RunRecord) -> str | None:
    """Return the key by which a run of ours is compared; None if it is not recorded."""
    recorded = lookup(run.environment, f"{metrics.TASK}.metric")
    if isinstance(recorded, str) and recorded:
        return recorded
    loss = run.option("task.loss")
    if isinstance(loss, str) and loss:  # the record ends before its environment
        return task_spec.compared_key(loss, run.option("task.metrics"), run.option("task.metric"))
    return None


def _declared_in_task(key: str, runs: Sequence[RunRecord]) -> tuple[str, str]:
    """Return the display name and the goal that runs record for a metric; "" for what they do not record."""
    if metrics.find(key):
        return "", ""
    path = f"{metrics.TASK}.metrics.{key}"
    for run in runs:
        if lookup(run.environment, path):
            display_name = as_text(lookup(run.environment, f"{path}.words", ""))
            better = as_text(lookup(run.environment, f"{path}.better", ""))
            name = task_spec.display_name_of(display_name)  # before 0.4.1 it had the name of its file
            return short(printable(name)).strip(), GOALS.get(better, "")
    return "", ""


def _only_score(runs: Sequence[RunRecord]) -> str:
    """Return the only score that loops under our recorder evaluate besides the loss.

    Returns:
        The key; "" for our own training, and if nothing is evaluated.

    Raises:
        MissingInput: There are several scores.
    """
    if not any(run.is_recorded for run in runs):
        return ""
    keys = sorted({key for run in runs for key in run.logged if key.startswith(metrics.EVAL_PREFIX)})
    with_values = [key for key in keys if is_logged(key, runs)]
    scores = [key for key in with_values if key != metrics.EVAL_LOSS] or with_values
    if len(scores) > 1:
        raise metric_question(runs, scores, "; Recorder(metric=KEY, better=...) records it")
    return scores[0] if scores else ""
