"""RunRecord: what is known of one run or of a part of it, wherever it was read; how parts become a run."""

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
from ampcompare.runs.migrations import config_now
from ampcompare.runs.nested import as_float, flatten, is_number, lookup, with_floats
from ampcompare.runs.run_state import RunState
from ampcompare.runs.system_metrics import Machine, joined

if TYPE_CHECKING:
    import pandas as pd

MAX_KEYS_TOLD = 5
STAMP = "_timestamp"  # W&B's column of the seconds since 1970
# The optimizer's step, as we, Lightning and Hugging Face's Trainer log it. W&B's own `_step` begins again in
# each part of a run that is recorded offline.
STEPS = (metrics.STEP, "trainer/global_step", "train/global_step")
NAMELESS = "It holds no run record: its name and config are not known."
Column = tuple[np.ndarray, np.ndarray]  # the numbers of rows, ascending, and the value in each


@dataclass(kw_only=True)
class RunRecord:
    """One run, or its part between two resumes.

    `logged` has, for each key in the order of logging, the numbers of the rows (of `rows`) in which it was
    logged and its values there: float64 where all are numbers, a NaN among them being one that was logged;
    objects otherwise. Names and units are those of `ampcompare.metrics`. `state` is a RunState;
    `ended_as` is W&B's own word where that is another one: `crashed` (the record breaks off without an exit
    code), `killed`, `pending`. `problems` says in plain sentences what was wrong with the record.

    `units` has the unit of a key where the file writes it with the values (`percent` for `85.3%`),
    `definitions` what W&B's `define_metric` declares of a key or a pattern. `objective` is the metric of its
    sweep and the goal (`maximize`, or nothing), `swept` the values of the settings that its sweep varies,
    where these are known. `last_write` is when it last logged, else when its file was written. `machine` is
    what W&B's client saw of the machine. `is_named` says whether its file has the run's name and config,
    `is_early_stopped` whether it trained with early stopping.
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
    machine: Machine = field(default_factory=Machine, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.config = config_now(self.config)

    @property
    def environment(self) -> Mapping[str, Any]:
        """The machine and software: from its summary, or its config for a run that did not end."""
        told = (of.get(metrics.ENVIRONMENT) for of in (self.summary, self.config))
        return next((found for found in told if isinstance(found, Mapping) and found), {})

    @property
    def is_recorded(self) -> bool:
        """Whether a loop of somebody's own logged it, under our recorder."""
        return self.option("recorder") is not None

    @cached_property
    def history(self) -> pd.DataFrame:
        """One row per logged row and one column per key: float64 where all values are numbers, with NaN where
        a row has none; objects with None otherwise.
        """
        import pandas as pd  # here: who only reads files starts in a third of the time, with 40 MB less

        columns = {}
        for key, (rows, values) in self.logged.items():
            cells = np.full(self.rows, None if values.dtype == object else np.nan, values.dtype)
            cells[rows] = values
            # As a Series: pandas 3 would make a text dtype of an object array of texts, pandas 2 not.
            columns[key] = pd.Series(cells, dtype=values.dtype, copy=False)
        return pd.DataFrame(columns, index=range(self.rows), copy=False)

    def option(self, key: str, default: Any = None) -> Any:
        """The config value at a dotted key."""
        return lookup(self.config, key, default)

    def summary_number(self, key: str) -> float | None:
        """A number of the summary, or None. W&B keeps `{"max": ...}` for some metrics."""
        value = lookup(self.summary, key)
        if isinstance(value, dict):
            kinds = ("last", "max", "min", "mean", "best")
            value = next((value[kind] for kind in kinds if kind in value), None)
        return as_float(value) if is_number(value) else None

    def logged_numbers(self, key: str) -> Column:
        """The rows in which a number was logged under a key, and the numbers as float64."""
        rows, values = self.logged.get(key, (np.empty(0, np.int64), np.empty(0)))
        if values.dtype == object:
            kept = [n for n, value in enumerate(values) if is_number(value)]
            rows, values = rows[kept], np.array([as_float(values[n]) for n in kept], np.float64)
        return rows, values

    def numbers(self, key: str) -> np.ndarray:
        """The numbers of a key as float64, one value a row; NaN where it has none."""
        found = np.full(self.rows, np.nan)
        rows, values = self.logged_numbers(key)
        found[rows] = values
        return found

    def values(self, key: str) -> np.ndarray:
        """The numbers logged under a key, in order; logged NaNs are left out."""
        _, values = self.logged_numbers(key)
        return values[~np.isnan(values)]

    def nonfinite(self, key: str) -> np.ndarray:
        """The numbers of the rows in which NaN or an infinity was logged under a key."""
        rows, values = self.logged_numbers(key)
        return rows[~np.isfinite(values)]

    def adding(self, columns: Mapping[str, np.ndarray]) -> RunRecord:
        """The run with these columns, one value a row and NaN where there is none, in place of its own."""
        made = {
            key: (at := np.flatnonzero(~np.isnan(numbers)), numbers[at]) for key, numbers in columns.items()
        }
        return replace(self, logged=self.logged | made)


def columns_of(rows: Iterable[Mapping[str, Any]]) -> tuple[int, dict[str, Column]]:
    """How many rows these are, and what was logged in them. None is nothing; W&B's text for NaN is one."""
    found: dict[str, tuple[list[int], list[Any]]] = {}
    number = -1
    for number, row in enumerate(rows):
        for key, value in row.items():
            if value is not None:
                at, values = found.setdefault(key, ([], []))
                at.append(number)
                values.append(with_floats(value))
    return number + 1, {key: (np.array(at), as_array(values)) for key, (at, values) in found.items()}


def as_array(values: Sequence[Any]) -> np.ndarray:
    """Values as float64 where all are numbers, as objects otherwise."""
    if all(map(is_number, values)):
        return np.array([as_float(value) for value in values], np.float64)
    return np.fromiter(values, object, len(values))


def merge(parts: Sequence[RunRecord]) -> RunRecord:
    """One run from its parts. The later one, by start time, wins from its first `global_step` on."""
    ordered = sorted(parts, key=_age)
    last = ordered[-1]
    # A part that was killed before its first write lacks nothing that another part does not say.
    is_named = any(part.is_named for part in ordered)
    problems: list[str] = []
    config: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    for part in ordered:
        is_lacking = not part.is_named and (part.rows or not (is_named or part.problems))
        nameless = [NAMELESS] if is_lacking else []
        where = f"{part.paths[0].parent.name}: " if len(ordered) > 1 else ""
        problems += [f"{where}{problem}" for problem in (*part.problems, *nameless)]
        problems += _config_changes(config, part.config)
        config, summary = config | part.config, summary | part.summary
    rows, logged, replaced = _stacked(ordered)
    if replaced:
        again = "rows were logged again by a later part of the run; the later ones count."
        problems.append(f"{replaced:,} {again}")
    names = ("name", "group", "project", "entity", "job_type", "sweep_id", "notes", "tags")
    newest: dict[str, Any] = {
        name: next((v for part in reversed(ordered) if (v := getattr(part, name))), getattr(last, name))
        for name in names
    }
    return replace(
        last,
        **newest | {"name": newest["name"] or last.id},
        started_at=next((part.started_at for part in ordered if part.started_at), None),
        config=config,
        summary=summary,
        rows=rows,
        logged=sharing_rows(logged),
        problems=problems,
        definitions={key: one for part in ordered for key, one in part.definitions.items()},
        units={key: unit for part in ordered for key, unit in part.units.items()},
        paths=tuple(path for part in ordered for path in part.paths),
        is_named=is_named,
        machine=joined(part.machine for part in ordered),
    )


def _age(part: RunRecord) -> tuple[float, str]:
    moment = part.started_at or part.last_write
    return (moment.timestamp() if moment else math.inf, part.paths[0].parent.name)


def _config_changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    old, new = dict(flatten(before)), dict(flatten(after))
    changed = [k for k in sorted(old.keys() | new.keys()) if repr(old.get(k)) != repr(new.get(k))]
    if not (before and after and changed):
        return []
    told = ", ".join(changed[:MAX_KEYS_TOLD]) + (", ..." if len(changed) > MAX_KEYS_TOLD else "")
    return [f"Its parts differ in config: {told}; the later values are shown."]


def _stacked(ordered: Sequence[RunRecord]) -> tuple[int, dict[str, Column], int]:
    """The rows of all parts that no later one logged again, and how many fell out."""
    if len(ordered) == 1:
        return ordered[0].rows, ordered[0].logged, 0
    import pandas as pd  # not of a run in one part

    masks = []
    begin = math.inf  # the lowest first step of the parts after this one
    for part in reversed(ordered):
        steps = pd.Series(part.numbers(next((key for key in STEPS if key in part.logged), metrics.STEP)))
        # A row without a step belongs to the step before it, the first ones to the beginning.
        masks.append((steps.ffill().fillna(-math.inf) < begin).to_numpy() | (begin == math.inf))
        begin = min([begin, *steps.dropna()[:1]])
    found: dict[str, list[Column]] = {}
    rows = 0
    for part, mask in zip(ordered, reversed(masks), strict=True):
        place = (np.cumsum(mask) - 1 + rows).astype(np.int32)
        rows += int(mask.sum())
        for key, (at, values) in part.logged.items():
            found.setdefault(key, []).append((place[at[mask[at]]], values[mask[at]]))
    logged = {
        key: (np.concatenate([at for at, _ in some]), np.concatenate([values for _, values in some]))
        for key, some in found.items()
    }
    return rows, logged, sum(part.rows for part in ordered) - rows


def sharing_rows(logged: Mapping[str, Column]) -> dict[str, Column]:
    """The same in less memory: most keys are logged in the same rows, and one array of them is enough."""
    same: dict[bytes, np.ndarray] = {}
    return {key: (same.setdefault(rows.tobytes(), rows), values) for key, (rows, values) in logged.items()}
