"""Which metric the runs themselves name: what their task is scored by, as each record says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ampcompare import metrics
from ampcompare.config import task
from ampcompare.errors import UserError
from ampcompare.records import RunRecord
from ampcompare.report.runs.metric import DEFAULT_METRIC, GOALS, is_logged
from ampcompare.report.runs.table import environment_of
from ampcompare.report.words import plural, printable, short, some


def named_metric(runs: Sequence[RunRecord]) -> str | None:
    """The one key that all runs name; None where none names any.

    Raises UserError where they name different ones: they are not one comparison.
    """
    found: dict[str, list[str]] = {}
    for run in runs:
        if (key := _named_by(run)) is not None:
            found.setdefault(key, []).append(printable(run.name))
    if len(found) > 1:
        each = some([f"{printable(key)} ({plural(len(n), 'run')}: {some(n, 2)})" for key, n in found.items()])
        todo = "name one of them with --metric, or give the report the runs of one task"
        raise UserError(f"the runs are scored by different metrics and are no one comparison: {each}; {todo}")
    return next(iter(found), None)


def _named_by(run: RunRecord) -> str | None:
    """The key that a run is compared by, as it recorded it; of an older run the accuracy, if it has one."""
    said, loss = _task_of(run).get("metric"), run.option("task.loss")
    if isinstance(said, str) and said:
        return said
    if isinstance(loss, str) and loss:  # a record that breaks off before it says more
        return task.compared_key(loss, run.option("task.metrics"), run.option("task.metric"))
    return DEFAULT_METRIC if is_logged(DEFAULT_METRIC, [run]) else None


def told_of(key: str, runs: Sequence[RunRecord]) -> tuple[str, str]:
    """What the runs call a metric that is not ours, and its goal; nothing where they do not say."""
    for run in () if metrics.find(key) else runs:
        every = _task_of(run).get("metrics")
        said = every.get(key) if isinstance(every, Mapping) else None
        if isinstance(said, Mapping):
            words, better = said.get("words"), said.get("better")
            named = short(printable(words)).strip() if isinstance(words, str) else ""
            return named, GOALS.get(better, "") if isinstance(better, str) else ""
    return "", ""


def _task_of(run: RunRecord) -> Mapping[str, Any]:
    said = environment_of(run).get(metrics.TASK)
    return said if isinstance(said, Mapping) else {}
