"""`RunRecord`: what is known of a run, or of a part of it, from any source. `merge_parts` joins parts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ampcompare import metrics
from ampcompare.runs.metric_definitions import MetricDefinition
from ampcompare.runs.nested import as_float, flatten, is_number, lookup, with_floats
from ampcompare.runs.run_state import RunState
from ampcompare.runs.step_keys import OPTIMIZER_STEPS
from ampcompare.runs.system_metrics import MachineFacts, merge_machines
from ampcompare.wandb_client.record_folders import parse_start

if TYPE_CHECKING:
    import pandas as pd

MAX_KEYS_SHOWN = 5
LABELS = ("group", "project", "entity", "job_type", "sweep_id", "notes", "tags")  # the newest of each counts
TIMESTAMP = "_timestamp"  # W&B's column of seconds since 1970
NAMELESS = "It holds no run record: its name and config are not known."
Column = tuple[np.ndarray, np.ndarray]  # row numbers, ascending, and the value in each row


@dataclass(kw_only=True)
class RunRecord:
    """One run, or its part between two resumes. Names and units are those of `ampcompare.metrics`.

    Attributes:
        id: The run id of W&B, or a path.
        ended_as: W&B's own word if it says more than `state`: `crashed` (the record ends without an exit
            code), `killed`, `pending`.
        exit_code: The recorded exit code, None without one.
        config: The config, nested or flat.
        summary: The summary: the last or best value of each key.
        rows: Number of logged rows.
        logged: For each key, in the order of logging, the row numbers in which it was logged and its values
            there. Values are float64 if all are numbers (a NaN was logged as NaN), else objects.
        problems: One sentence for each problem of the record.
        units: The unit of a key, if the file writes it with the values (`percent` for `85.3%`).
        definitions: What W&B's `define_metric` declares about a key or a pattern.
        objective: The metric of its sweep and the goal (`maximize`, or "").
        swept: The values of the settings that its sweep varies, if known.
        paths: The files that it was read from.
        last_write: When it last logged, else when its file was written.
        is_named: Whether its file has the run's name and config.
        is_early_stopped: Whether it trained with early stopping.
        is_arm_in_name: Whether its arm was read from its name, so that no order of the arms is known.
        is_of_chart: Whether it is a column of a chart that was exported from W&B, so that only its name says
            what it is.
        machine: What W&B's client recorded about the machine.
    """

    id: str
    state: RunState
    name: str = ""
    group: str = ""
    project: str = ""
    entity: str = ""
    job_type: str = ""
    sweep_id: str = ""
    notes: str = ""
    tags: tuple[str, ...] = ()
    started_at: datetime | None = None
    exit_code: int | None = None
    ended_as: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    rows: int = 0
    logged: dict[str, Column] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    units: dict[str, str] = field(default_factory=dict)
    definitions: dict[str, MetricDefinition] = field(default_factory=dict)
    objective: tuple[str, str] | None = None
    swept: dict[str, list[Any]] = field(default_factory=dict)
    paths: tuple[Path, ...] = ()
    last_write: datetime | None = None
    is_named: bool = True
    is_early_stopped: bool = False
    is_arm_in_name: bool = False
    is_of_chart: bool = False
    machine: MachineFacts = field(default_factory=MachineFacts, repr=False, compare=False)

    @property
    def environment(self) -> Mapping[str, Any]:
        """Machine and software: from the summary, or from the config if the run did not end."""
        for values in (self.summary, self.config):
            environment = values.get(metrics.ENVIRONMENT)
            if isinstance(environment, Mapping) and environment:
                return environment
        return {}

    @property
    def is_recorded(self) -> bool:
        """Return whether a user's own loop logged it with our recorder."""
        return self.option("recorder") is not None

    @property
    def is_own_training(self) -> bool:
        """Return whether this program trained it, so that the meaning of its options and rows is known."""
        return self.option("data.source") is not None and not self.is_recorded

    @cached_property
    def history(self) -> pd.DataFrame:
        """One row per logged row and one column per key.

        Columns are float64 with NaN for missing values if all values are numbers, else objects with None.
        """
        # imported here: reading files alone then starts three times as fast, with 40 MB less
        import pandas as pd

        columns = {}
        for key, (rows, values) in self.logged.items():
            cells = np.full(self.rows, None if values.dtype == object else np.nan, values.dtype)
            cells[rows] = values
            # As a Series: pandas 3 would convert an object array of texts to a text dtype.
            columns[key] = pd.Series(cells, dtype=values.dtype, copy=False)
        return pd.DataFrame(columns, index=range(self.rows), copy=False)

    def option(self, key: str, default: Any = None) -> Any:
        """Return the config value at a dotted key."""
        return lookup(self.config, key, default)

    def summary_number(self, key: str) -> float | None:
        """Return a number of the summary, None without one. W&B keeps `{"max": ...}` for some metrics."""
        value = lookup(self.summary, key)
        if isinstance(value, dict):
            kinds = ("last", "max", "min", "mean", "best")
            value = next((value[kind] for kind in kinds if kind in value), None)
        return as_float(value) if is_number(value) else None

    def logged_numbers(self, key: str) -> Column:
        """Return the rows in which a number was logged under a key, and the numbers as float64."""
        rows, values = self.logged.get(key, (np.empty(0, np.int64), np.empty(0)))
        if values.dtype == object:
            numeric = [n for n, value in enumerate(values) if is_number(value)]
            rows = rows[numeric]
            values = np.array([as_float(values[n]) for n in numeric], np.float64)
        return rows, values

    def numbers(self, key: str) -> np.ndarray:
        """Return the numbers of a key as float64, one value per row; NaN if the row has none."""
        numbers = np.full(self.rows, np.nan)
        rows, values = self.logged_numbers(key)
        numbers[rows] = values
        return numbers

    def values(self, key: str) -> np.ndarray:
        """Return the numbers logged under a key, in order, without NaN."""
        _, values = self.logged_numbers(key)
        return values[~np.isnan(values)]

    def nonfinite(self, key: str) -> np.ndarray:
        """Return the numbers of the rows in which NaN or infinity was logged under a key."""
        rows, values = self.logged_numbers(key)
        return rows[~np.isfinite(values)]

    def select(self, is_kept: np.ndarray) -> RunRecord:
        """Return the run with some of its rows, and without keys that they do not have.

        Args:
            is_kept: For each row whether it stays.
        """
        new_numbers = np.cumsum(is_kept) - 1
        logged = {}
        for key, (rows, values) in self.logged.items():
            stays = is_kept[rows]
            if stays.any():
                logged[key] = new_numbers[rows[stays]], values[stays]
        return replace(self, rows=int(is_kept.sum()), logged=logged)

    def with_columns(self, columns: Mapping[str, np.ndarray]) -> RunRecord:
        """Return the run with these columns in place of its own.

        Args:
            columns: One value per row, NaN for none.
        """
        logged = dict(self.logged)
        for key, numbers in columns.items():
            rows = np.flatnonzero(~np.isnan(numbers))
            logged[key] = rows, numbers[rows]
        return replace(self, logged=logged)


def build_columns(rows: Iterable[Mapping[str, Any]]) -> tuple[int, dict[str, Column]]:
    """Return the number of rows, and the values of each key with their row numbers.

    None is no value. W&B's text for NaN is a value.
    """
    by_key: dict[str, tuple[list[int], list[Any]]] = {}
    number = -1
    for number, row in enumerate(rows):
        for key, value in row.items():
            if value is not None:
                row_numbers, values = by_key.setdefault(key, ([], []))
                row_numbers.append(number)
                values.append(with_floats(value))
    return number + 1, {
        key: (np.array(row_numbers), as_array(values)) for key, (row_numbers, values) in by_key.items()
    }


def as_array(values: Sequence[Any]) -> np.ndarray:
    """Return values as float64 if all are numbers, else as objects."""
    if all(map(is_number, values)):
        return np.array([as_float(value) for value in values], np.float64)
    return np.fromiter(values, object, len(values))


def _first_anomaly(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of the first anomaly: a loop that resumes may not know that of its earlier part."""
    key = metrics.FIRST_ANOMALY
    steps = [values[key] for values in (earlier, later) if isinstance(values.get(key), int)]
    return {key: min(steps)} if steps else {}


def merge_parts(parts: Sequence[RunRecord]) -> RunRecord:
    """Join the parts of one run.

    A part that started later replaces the rows of earlier parts from its first `global_step` on.
    """
    ordered = sorted(parts, key=_age)
    last = ordered[-1]
    is_named = any(part.is_named for part in ordered)
    problems: list[str] = []
    config: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    definitions: dict[str, MetricDefinition] = {}
    units: dict[str, str] = {}
    for part in ordered:
        label = f"{part.paths[0].parent.name}: " if len(ordered) > 1 else ""
        problems += [f"{label}{problem}" for problem in part.problems]
        # A part that was killed before its first write lacks nothing if another part is complete.
        if not part.is_named and (part.rows or not (is_named or part.problems)):
            problems.append(f"{label}{NAMELESS}")
        problems += _config_changes(config, part.config)
        config |= part.config
        summary |= part.summary | _first_anomaly(summary, part.summary)
        definitions |= part.definitions
        units |= part.units
    rows, logged, replaced = _stack_rows(ordered)
    if replaced:
        problems.append(
            f"{replaced:,} rows were logged twice because the run was resumed; the later rows count."
        )
    return replace(
        last,
        **{name: _newest(ordered, name) for name in LABELS} | {"name": _newest(ordered, "name") or last.id},
        started_at=next((part.started_at for part in ordered if part.started_at), None),
        config=config,
        summary=summary,
        rows=rows,
        logged=share_row_arrays(logged),
        problems=problems,
        definitions=definitions,
        units=units,
        paths=tuple(path for part in ordered for path in part.paths),
        is_named=is_named,
        machine=merge_machines(part.machine for part in ordered),
    )


def _newest(ordered: Sequence[RunRecord], field_name: str) -> Any:
    """Return the value of the last part that has it, else the empty value of the last part."""
    values = [getattr(part, field_name) for part in ordered]
    known = [value for value in values if value]
    return known[-1] if known else values[-1]


def _age(part: RunRecord) -> tuple[float, tuple[str, int], str]:
    moment = part.started_at or part.last_write
    name = part.paths[0].parent.name
    start = parse_start(name, part.id) or ("", 0)  # starts within a second are numbered
    return (moment.timestamp() if moment else math.inf, start, name)


def _config_changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    if not before or not after:
        return []
    old = dict(flatten(before))
    new = dict(flatten(after))
    keys = sorted({*old, *new} - {*metrics.PROCESS_KEYS})
    changed = [key for key in keys if repr(old.get(key)) != repr(new.get(key))]
    if not changed:
        return []
    more = ", ..." if len(changed) > MAX_KEYS_SHOWN else ""
    shown = ", ".join(changed[:MAX_KEYS_SHOWN])
    return [f"Its parts differ in config: {shown}{more}; the later values are shown."]


def _stack_rows(ordered: Sequence[RunRecord]) -> tuple[int, dict[str, Column], int]:
    """Return the rows of all parts that no later part logged again, and how many were dropped."""
    if len(ordered) == 1:
        return ordered[0].rows, ordered[0].logged, 0
    import pandas as pd  # only for runs with several parts

    masks = []  # by part, the last one first: which of its rows stay
    begin = math.inf  # lowest first step of the parts after this one
    for part in reversed(ordered):
        step_key = next((key for key in OPTIMIZER_STEPS if key in part.logged), metrics.STEP)
        steps = pd.Series(part.numbers(step_key))
        # A row without a step belongs to the step before it, or to the beginning.
        is_earlier = steps.ffill().fillna(-math.inf) < begin
        masks.append(is_earlier.to_numpy() | (begin == math.inf))
        begin = min([begin, *steps.dropna()[:1]])
    pieces: dict[str, list[Column]] = {}
    rows = 0
    for part, mask in zip(ordered, reversed(masks), strict=True):
        new_numbers = (np.cumsum(mask) - 1 + rows).astype(np.int32)
        rows += int(mask.sum())
        for key, (row_numbers, values) in part.logged.items():
            stays = mask[row_numbers]
            piece = (new_numbers[row_numbers[stays]], values[stays])
            pieces.setdefault(key, []).append(piece)
    logged = {key: concatenate_columns(columns) for key, columns in pieces.items()}
    dropped = sum(part.rows for part in ordered) - rows
    return rows, logged, dropped


def concatenate_columns(columns: Sequence[Column]) -> Column:
    """Return the row numbers and the values of several columns, one after the other."""
    row_numbers = np.concatenate([row_numbers for row_numbers, _ in columns])
    values = np.concatenate([values for _, values in columns])
    return row_numbers, values


def share_row_arrays(logged: Mapping[str, Column]) -> dict[str, Column]:
    """Return the same columns in less memory: keys that were logged in the same rows share one array."""
    shared: dict[bytes, np.ndarray] = {}
    return {key: (shared.setdefault(rows.tobytes(), rows), values) for key, (rows, values) in logged.items()}
