"""Keys with two meanings: the rows of a key that count are those of `--where`.

Rows of several kinds are asked about where the format declares them, or where a key stands several times at
one step.

`--where [KEY:]COLUMN=VALUE` takes a key from the rows with this value. `COLUMN` alone means rows that have a
value in the column, `!COLUMN` rows that have none.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ampcompare.analysis.external.declared_metrics import is_step_column
from ampcompare.analysis.external.key_mapping import epoch_key
from ampcompare.analysis.grouping.logged_keys import nearest_key
from ampcompare.errors import UserError
from ampcompare.runs import RunRecord
from ampcompare.runs.row_order import columns_of_runs, is_equal, row_labels
from ampcompare.runs.run_record import TIMESTAMP
from ampcompare.runs.step_keys import EPOCH_KEYS, OWN_STEP, STEP_KEYS
from ampcompare.runs.values import label_of_value
from ampcompare.runtime.formatting import listed, numeric_sort_key, printable, short, some

MAX_KINDS = 8  # values that a message lists
# The columns that name the kind of a row (mmcv writes `mode`), and the formats' own names in them.
SPLIT_COLUMNS = ("mode", "split")
TRAININGS = ("train",)
EVALUATIONS = ("val", "valid", "validation", "eval", "test")
# The keys of mmengine's rows. Only those of training have a learning rate.
LEARNING_RATE = "lr"
MMENGINE = (LEARNING_RATE, "time", "data_time", "step")
COUNTERS = frozenset({*STEP_KEYS, *EPOCH_KEYS, OWN_STEP, TIMESTAMP, "_runtime"})


@dataclass(frozen=True)
class Condition:
    """One `--where`.

    Attributes:
        text: The option as the user wrote it.
        key: The key that it is about, "" for every key.
        column: The column that is tested.
        value: The value that the column must have; None if any value counts.
        is_absent: Whether the column must have no value.
    """

    text: str
    key: str
    column: str
    value: str | None = None
    is_absent: bool = False

    def rows(self, run: RunRecord) -> np.ndarray:
        """Return for each row of a run whether it meets the condition."""
        is_met = np.zeros(run.rows, bool)
        rows, values = run.logged.get(self.column, (np.empty(0, np.int64), np.empty(0)))
        if self.value is None:
            is_met[rows] = True
        else:
            is_met[rows] = [is_equal(label_of_value(value), self.value) for value in values]
        return ~is_met if self.is_absent else is_met


def parse_condition(text: str, runs: Sequence[RunRecord]) -> Condition:
    """Return the condition that a `--where` names.

    Raises:
        UserError: No run has the column, or no row has the value.
    """
    columns = list(dict.fromkeys(key for run in runs for key in run.logged))
    # Before a colon stands the key, the longest that a run has.
    key = max((name for name in columns if text.startswith(f"{name}:")), key=len, default="")
    test = text.removeprefix(f"{key}:") if key else text
    is_absent = test.startswith("!")
    column = test.removeprefix("!")
    value = None
    if column not in columns and "=" in column:  # the name of a column may have an equals sign
        column, _, value = column.partition("=")
    if column not in columns:
        hint = nearest_key(column, columns, end=" ")
        names = ", ".join(columns[:12])
        raise UserError(f"--where {text!r}: no run has the column {column!r}; {hint}columns: {names}")
    condition = Condition(text, key, column, value, is_absent)
    if not any(condition.rows(run).any() for run in runs):
        values = some(_values(column, runs), MAX_KINDS)
        raise UserError(f"--where {text!r}: no row has this value; {printable(column)} has {values}")
    return condition


def _values(column: str, runs: Sequence[RunRecord]) -> list[str]:
    """Return the values of a column as text: `train`, `val`."""
    values = {label_of_value(value) for run in runs for value in run.logged.get(column, ((), ()))[1]}
    return [short(printable(value), 24) for value in sorted(values, key=numeric_sort_key)]


def apply_conditions(runs: Sequence[RunRecord], conditions: Sequence[Condition]) -> list[RunRecord]:
    """Return the runs in which each key has the rows that meet its conditions.

    A condition without a key leaves those keys alone that no row has which meets it: a time that stands in
    training rows only is not lost by `--where split=val`.
    """
    return [_apply(run, conditions) for run in runs]


def _apply(run: RunRecord, conditions: Sequence[Condition]) -> RunRecord:
    logged = dict(run.logged)
    summary = dict(run.summary)
    general = [one for one in conditions if not one.key]
    for key in run.logged.keys() - COUNTERS:
        of_key = [one for one in conditions if one.key == key]
        for condition in of_key or [one for one in general if one.column != key]:
            rows, values = logged[key]
            is_kept = condition.rows(run)[rows]
            if not is_kept.any() and not condition.key:
                continue
            logged[key] = rows[is_kept], values[is_kept]
            if not is_kept.all():
                summary.pop(key, None)  # it may be the value of another row
    return replace(run, logged=logged, summary=summary)


def ask_about_kinds(
    runs: Sequence[RunRecord], keys: Sequence[str], metric: str, conditions: Sequence[Condition]
) -> tuple[list[str], list[str]]:
    """Return a question for each key that stands in rows of several kinds, and arguments for all of them.

    Args:
        runs: The runs before any condition was applied.
        keys: The keys that are compared.
        metric: That of the keys which measures quality; the others measure speed.
        conditions: The conditions of the user.
    """
    general = [one for one in conditions if not one.key]
    is_metric_chosen = bool(general and _kinds(runs, metric))
    asked: dict[str, list[str]] = {}
    for key in dict.fromkeys(keys):
        relevant = [one for one in conditions if one.key == key]
        if not relevant and (key == metric or not is_metric_chosen):
            relevant = general
        of_key = [replace(one, key=key) for one in relevant if one.column != key]
        kinds = _kinds(apply_conditions(runs, of_key), key)
        if kinds:
            asked[key] = kinds
    questions = []
    arguments = []
    for key, kinds in asked.items():
        condition = _suggest(kinds[::-1], EVALUATIONS) if key == metric else _suggest(kinds, TRAININGS)
        is_structural = "=" not in condition
        if len(asked) > 1 or is_metric_chosen or is_structural:
            condition = f"{key}:{condition}"
        columns = listed(dict.fromkeys(_describe(kind, runs) for kind in kinds))
        run_by = next((",".join(names) for run in runs if (names := columns_of_runs(run))), "")
        of_runs = f", --run-by {printable(run_by)} if these are runs" if run_by and not is_structural else ""
        questions.append(
            f"rows: {printable(key)} stands in rows of several kinds, told apart by {columns}; add --where "
            f"{printable(condition)} or another of them{of_runs}, or --step COLUMN if another column counts "
            "the steps"
        )
        arguments += ["--where", condition]
    return questions, arguments


def _describe(kind: str, runs: Sequence[RunRecord]) -> str:
    column, equals, _ = kind.partition("=")
    name = printable(column.removeprefix("!"))
    return f"{name} ({listed(_values(column, runs))})" if equals else name


def _suggest(kinds: Sequence[str], words: Sequence[str]) -> str:
    """Return the kind for an example to copy: that with one of the formats' own names, else the first."""
    return next((kind for kind in kinds if kind.partition("=")[2] in words), kinds[0])


def _kinds(runs: Sequence[RunRecord], key: str) -> list[str]:
    """Return a condition for each kind of rows in which a key stands; empty for one kind."""
    every = (_kinds_of_format(run, key) or _kinds_at_one_step(run, key) for run in runs)
    return next((kinds for kinds in every if kinds), [])


def _kinds_of_format(run: RunRecord, key: str) -> list[str]:
    """Return the kinds that the format of a run declares.

    They are the values of its column of splits, or rows with and without a learning rate (mmengine).
    """
    rows, _ = run.logged_numbers(key)
    for column in SPLIT_COLUMNS:
        names = {*row_labels(run, column)[rows]} - {None}
        if len(names) > 1:
            return [f"{column}={name}" for name in sorted(names, key=numeric_sort_key)]
    if all(name in run.logged for name in MMENGINE):
        return _kinds_by_presence(LEARNING_RATE, [np.isin(rows, run.logged[LEARNING_RATE][0])])
    return []


def _kinds_by_presence(column: str, groups: Sequence[np.ndarray]) -> list[str]:
    """Return two kinds if each group of rows has rows with the column and rows without it."""
    is_mixed = bool(groups) and all(has.any() and not has.all() for has in groups)
    return [column, f"!{column}"] if is_mixed else []


def _kinds_at_one_step(run: RunRecord, key: str) -> list[str]:
    """Return the kinds of rows that have a key several times at one step; empty if nothing tells them apart.

    A column tells them apart if its values are texts, or return at every such step; or if some of the rows
    have it, and others do not.
    """
    rows, _ = run.logged_numbers(key)
    counter = next((name for name in STEP_KEYS if name in run.logged), "")
    step = run.numbers(counter) if counter else np.arange(float(run.rows))
    epoch_name = epoch_key(run)
    # A step may restart in each epoch. Complex numbers are pairs; NaN would differ from itself.
    epoch = run.numbers(epoch_name) if epoch_name else np.zeros(run.rows)
    steps = (np.nan_to_num(step, nan=-1.0) + 1j * np.nan_to_num(epoch, nan=-1.0))[rows]
    begins = np.flatnonzero(np.diff(steps, prepend=np.nan) != 0)
    doubled = [group for group in np.split(rows, begins[1:]) if len(group) > 1]
    others = [name for name in run.logged if name != key and not is_step_column(name, [run])]
    if not doubled:
        return []
    for column in others:
        labels = row_labels(run, column)
        names = set.intersection(*({*labels[group]} for group in doubled)) - {None}
        is_text = run.logged[column][1].dtype == object
        if len(names) > 1 and (is_text or len(doubled) > 1):
            return [f"{column}={name}" for name in sorted(names, key=numeric_sort_key)]
    by_presence = (
        _kinds_by_presence(column, [np.isin(group, run.logged[column][0]) for group in doubled])
        for column in others
    )
    return next((kinds for kinds in by_presence if kinds), [])
