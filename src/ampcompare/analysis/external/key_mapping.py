"""Map logged keys of other programs to our metrics, with their units, as the user describes them.

`--throughput KEY:per_second`, `--time KEY:seconds|ms:each|cumulative` and `--memory KEY:MiB|GiB|bytes` each
become a KeyMapping. Its `apply` stores the values of the key under our name, in our unit.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import pandas as pd

from ampcompare import metrics
from ampcompare.analysis.external.declared_metrics import CUMULATIVE, EACH, declared_kind
from ampcompare.analysis.grouping.compared_metric import MIB
from ampcompare.analysis.grouping.logged_keys import is_logged, not_logged
from ampcompare.analysis.grouping.rounding import THROUGHPUT_RESOLUTION, relative_resolution
from ampcompare.errors import UserError
from ampcompare.runs import RunRecord
from ampcompare.runs.missing_input import MissingInput
from ampcompare.runs.step_keys import EPOCH_KEYS, OWN_STEP
from ampcompare.runs.values import SECONDS
from ampcompare.runtime.formatting import listed, number, plural, printable

THROUGHPUT, TIME, MEMORY = "throughput", "time", "memory"
MAX_RUN_SECONDS = 3e8  # ten years; a larger time is a date in seconds since 1970
FIRST_VALUES = 4  # of a time whose kind is asked for
# Factors from logged values to our units: items per second, seconds, MiB.
UNITS = {
    THROUGHPUT: {"per_second": 1.0},
    TIME: {SECONDS: 1.0, "ms": 1e-3},
    MEMORY: {"MiB": 1.0, "GiB": 1024.0, "bytes": 2.0**-20},
}
TIME_UNITS = {"seconds": "s", "ms": "ms"}  # as a value is shown
FORMS = {
    THROUGHPUT: "KEY:per_second",
    TIME: "KEY:seconds:each or KEY:ms:each for the time of one step or epoch, KEY:seconds:cumulative or "
    "KEY:ms:cumulative for a time that counts from the start",
    MEMORY: "KEY:MiB, KEY:GiB or KEY:bytes",
}
# Our keys for each role: in rows, and in the summary of a run without such rows.
NAMES = {
    THROUGHPUT: (metrics.THROUGHPUT, metrics.THROUGHPUT_MEDIAN),
    TIME: (metrics.THROUGHPUT, metrics.THROUGHPUT_MEDIAN),
    MEMORY: (metrics.PEAK_MEMORY, metrics.PEAK_MEMORY),
}


@dataclass(frozen=True)
class KeyMapping:
    """A logged key and its role.

    Attributes:
        role: THROUGHPUT, TIME or MEMORY.
        key: The logged key.
        unit: The unit of its values, as the user names it.
        kind: EACH or CUMULATIVE for a time, "" for the other roles.
    """

    role: str
    key: str
    unit: str
    kind: str = ""

    @property
    def is_cumulative(self) -> bool:
        """Whether a time counts from the start of the run."""
        return self.kind == CUMULATIVE

    @property
    def text(self) -> str:
        """The mapping in words: `step_time as the time (ms)`."""
        kind = "cumulative time" if self.is_cumulative else self.role
        return f"{printable(self.key)} as the {kind} ({self.unit.replace('_', ' ')})"

    @property
    def shown_unit(self) -> str:
        """The unit in which the value is shown; a cumulative time is shown in steps or epochs per second."""
        if self.role == MEMORY:
            return MIB
        return printable(self.key) if self.role == THROUGHPUT else "1/s"

    def apply(self, run: RunRecord) -> RunRecord:
        """Return the run with the values of the key under our name and in our unit.

        Values that the run already has under our name are replaced.
        """
        in_rows, in_summary = own_names = NAMES[self.role]
        bare = replace(
            run,
            summary={key: value for key, value in run.summary.items() if key not in own_names},
            logged={key: column for key, column in run.logged.items() if key not in own_names},
        )
        if self.role != MEMORY:
            bare.summary[THROUGHPUT_RESOLUTION] = self._resolution(run)
        factor = UNITS[self.role][self.unit]
        logged = run.numbers(self.key)
        if self.is_cumulative:
            is_date = _is_date(logged * factor)
            if is_date:
                logged -= np.nanmin(logged)  # before the conversion, which would round a date
            clock = logged * factor
            total = clock if is_date else _continued_clock(clock)
            return bare.with_columns({metrics.TRAIN_SECONDS: total, in_rows: _rates(run, clock)})
        if np.isfinite(logged * factor).any():
            return bare.with_columns({in_rows: self._compared_value(logged * factor)})
        from_summary = run.summary_number(self.key)
        if from_summary is not None:
            bare.summary[in_summary] = float(self._compared_value(np.array(from_summary * factor)))
        return bare

    def _resolution(self, run: RunRecord) -> float:
        """Return the relative resolution of the speed, from the digits that were logged; 0 if unknown."""
        logged = run.values(self.key)
        if not len(logged):
            logged = np.array([run.summary_number(self.key) or math.nan])
        return relative_resolution(logged, np.diff(logged) if self.is_cumulative else None)

    def _compared_value(self, values: np.ndarray) -> np.ndarray:
        """Return the compared value: for a duration, how many of it fit in a second."""
        with np.errstate(all="ignore"):
            return 1 / values if self.role == TIME else values


def apply_mappings(runs: Iterable[RunRecord], mappings: Sequence[KeyMapping]) -> list[RunRecord]:
    """Return the runs with the values of all mapped keys under our names."""
    return [reduce(lambda mapped, mapping: mapping.apply(mapped), mappings, run) for run in runs]


def _is_date(seconds: np.ndarray) -> bool:
    """Return whether times count from 1970 and not from the start of a run."""
    finite = seconds[np.isfinite(seconds)]
    return len(finite) > 0 and float(finite.min()) > MAX_RUN_SECONDS


def _continued_clock(clock: np.ndarray) -> np.ndarray:
    """Return the seconds of all starts of a run up to each row, NaN where a row has no time.

    A clock falls where the run starts again. It counts from 0 there, so the first row of a start adds its own
    value.

    Args:
        clock: The logged seconds of each row, NaN for none.
    """
    rows = np.flatnonzero(np.isfinite(clock))
    increases = np.diff(clock[rows], prepend=0.0)
    total = clock.copy()
    total[rows] = np.cumsum(np.where(increases < 0, clock[rows], increases))
    return total


def _rates(run: RunRecord, seconds: np.ndarray) -> np.ndarray:
    """Return the steps per second between two rows of one start that have the time, NaN elsewhere."""
    steps = run.numbers(metrics.STEP)
    if not np.isfinite(steps).any():
        steps = np.arange(float(run.rows))
    rows = np.flatnonzero(np.isfinite(seconds) & np.isfinite(steps))
    time_passed = np.diff(seconds[rows])
    steps_done = np.diff(steps[rows])
    is_moving = (time_passed > 0) & (steps_done > 0)
    rates = np.full(run.rows, np.nan)
    rates[rows[1:][is_moving]] = steps_done[is_moving] / time_passed[is_moving]
    return rates


def parse_key_mapping(role: str, text: str, runs: Sequence[RunRecord]) -> KeyMapping:
    """Return the mapping that `--throughput`, `--time` or `--memory` names.

    Raises:
        MissingInput: Nothing says of which kind a time is.
        UserError: The text has another form, no run has the key as a number, or its values are no such times.
    """
    head, _, kind = text.rpartition(":")
    if role != TIME or kind not in (EACH, CUMULATIVE):
        head, kind = text, ""
    key, _, unit = head.rpartition(":")
    if not key or unit not in UNITS[role]:
        raise UserError(f"--{role} {text!r}: expected {FORMS[role]}")
    if not is_logged(key, runs):
        raise not_logged(f"--{role}", key, runs)
    if role != TIME:
        return KeyMapping(role, key, unit)
    if unit != SECONDS and any(run.units.get(key) == SECONDS for run in runs):
        form = f"{key}:{SECONDS}:{kind}".removesuffix(":")
        raise UserError(f"--time {text!r}: its values are durations, read as seconds; write {form}")
    mapping = KeyMapping(role, key, unit, _kind_of_time(text, key, kind, runs))
    contradiction = _contradiction(mapping, runs)
    if contradiction:
        raise UserError(f"--time {text!r}: {contradiction}")
    return mapping


def _kind_of_time(text: str, key: str, kind: str, runs: Sequence[RunRecord]) -> str:
    """Return EACH or CUMULATIVE, as the user says or the format of all runs with the key declares.

    Args:
        text: The option as the user wrote it.
        key: The key of the rows that the option names.
        kind: EACH, CUMULATIVE, or "" if the option names none.

    Raises:
        MissingInput: Neither says it.
        UserError: The two differ.
    """
    kinds = {declared_kind(key, run) for run in runs if is_logged(key, [run])}
    declared = kinds.pop() if len(kinds) == 1 else ""
    if kind and declared and kind != declared:
        bare = text.removesuffix(f":{kind}")
        raise UserError(
            f"--time {text!r}: the format of these logs declares {printable(key)} as {declared}, so :{kind} "
            f"contradicts it; write --time {bare}:{declared} or leave :{kind} out"
        )
    if kind or declared:
        return kind or declared
    columns = [run.values(key) for run in runs]
    first = [number(value) for value in max(columns, key=len)[:FIRST_VALUES]]
    question = (
        f"time: add --time {text}:{EACH} if a value is the time of one step or epoch, or --time "
        f"{text}:{CUMULATIVE} if it counts from the start; first values of {printable(key)}: {listed(first)}"
    )
    likely = CUMULATIVE if _grows(key, runs) else EACH
    raise MissingInput([question], ["--time", f"{text}:{likely}"])


def _contradiction(mapping: KeyMapping, runs: Sequence[RunRecord]) -> str:
    """Return why the values cannot be times of this kind, and what to write; "" if they can.

    A clock falls only where a run starts again, and counts in between. So it never falls twice in a row.
    """
    is_of_step = not mapping.is_cumulative
    form = f"--time {mapping.key}:{mapping.unit}"
    if is_of_step and any(_is_date(run.numbers(mapping.key) * UNITS[TIME][mapping.unit]) for run in runs):
        return f"its values are dates in seconds since 1970, and no time of a step; write {form}:{CUMULATIVE}"
    columns = [run.values(mapping.key) for run in runs]
    if any((values < 0).any() for values in columns):
        return "it has values below 0, so it is no time"
    falls = [np.diff(values) < 0 for values in columns]
    if mapping.is_cumulative and any((fall[1:] & fall[:-1]).any() for fall in falls):
        return (
            "its values fall in two rows one after the other, so they do not count from the start; write "
            f"{form}:{EACH}"
        )
    return ""


def describe_growth(mapping: KeyMapping, runs: Sequence[RunRecord]) -> list[str]:
    """Return a doubt about a time of each step that grows in every row, or a cumulative time that falls."""
    form = f"{printable(mapping.key)}:{mapping.unit}"
    falling = [run for run in runs if (np.diff(run.values(mapping.key)) < 0).any()]
    if mapping.is_cumulative and falling and not declared_kind(mapping.key, falling[0]):
        return [
            f"{printable(mapping.key)} falls in {plural(len(falling), 'run')}, read as new starts. If it is "
            f"the time of each step, the speed is wrong: --time {form}:{EACH} reads it so."
        ]
    if mapping.kind == EACH and _grows(mapping.key, runs):
        return [
            f"{printable(mapping.key)} grows from row to row in every run, as a time that counts from the "
            f"start does. If it does, the speed is wrong: --time {form}:{CUMULATIVE} reads it so."
        ]
    return []


def _grows(key: str, runs: Sequence[RunRecord]) -> bool:
    """Return whether a key grows from row to row in every run that logs it."""
    columns = [values for run in runs if len(values := run.values(key))]
    return bool(columns) and all(len(values) > 1 and (np.diff(values) > 0).all() for values in columns)


def counts_rows(run: RunRecord) -> bool:
    """Return whether W&B's own step is only the row number, because the loop passed no `log(step=...)`."""
    return bool((np.diff(run.values(OWN_STEP), prepend=-1) == 1).all())


def epoch_key(run: RunRecord) -> str:
    """Return the key that counts the epochs of a run, "" without one. Its letters may have any case."""
    logged = {key.lower(): key for key in run.logged if len(run.values(key))}
    return next((logged[key] for key in EPOCH_KEYS if key in logged), "")


def with_clock(run: RunRecord, step: str) -> RunRecord:
    """Return the run with step, epoch and clock under our names.

    A step that restarts in each epoch is no global step: the steps of the epochs before are added to it.
    """
    clock = _clock(run)
    if clock is not None and metrics.ELAPSED not in run.logged:
        run = run.with_columns({metrics.ELAPSED: clock})
    keys = {metrics.STEP: step, metrics.EPOCH: epoch_key(run)}
    added = {name: run.logged[key] for name, key in keys.items() if key in run.logged}
    run = replace(run, logged=run.logged | added)
    total = _continued_steps(run.numbers(metrics.STEP), run.numbers(metrics.EPOCH))
    return run if total is None else run.with_columns({metrics.STEP: total})


def _continued_steps(steps: np.ndarray, epochs: np.ndarray) -> np.ndarray | None:
    """Return the steps since the start of a run if they restart in each epoch, None if they do not.

    They restart if they go back and never exceed the largest step from before. A run that continues from a
    checkpoint repeats some steps and then exceeds them.

    Args:
        steps: The logged step of each row, NaN for none.
        epochs: The logged epoch of each row, NaN for none.
    """
    rows = np.flatnonzero(np.isfinite(steps))
    logged = steps[rows]
    falls = np.flatnonzero(np.diff(logged) < 0)
    if not len(falls):
        return None
    first_restart = falls[0] + 1
    if logged[first_restart:].max() > logged[:first_restart].max():
        return None
    epoch_of_row = epochs[rows]
    has_epochs = np.isfinite(epoch_of_row).all()
    if has_epochs and (epoch_of_row[falls + 1] < epoch_of_row[falls]).any():
        return None  # the epoch goes back with the step: the run continued from a checkpoint
    if not has_epochs or len({*epoch_of_row}) < 2:  # no epoch is recorded: each fall begins one
        epoch_of_row = np.concatenate([[0], np.cumsum(np.diff(logged) < 0)])

    uncounted = 1.0 if logged.min() == 0 else 0.0  # the step 0, where an epoch begins with it
    lengths = pd.Series(logged).groupby(epoch_of_row).max() + uncounted
    before = lengths.cumsum().shift(fill_value=0.0)  # the steps of all earlier epochs
    total = steps.copy()
    total[rows] = logged + before[epoch_of_row].to_numpy()
    return total


def _clock(run: RunRecord) -> np.ndarray | None:
    """Return the seconds of work up to each row, None if they are not recorded.

    W&B's `_runtime` restarts when a run is resumed offline, so its increases from row to row are summed. A
    decrease adds nothing.
    """
    runtime = run.numbers("_runtime")
    rows = np.flatnonzero(np.isfinite(runtime))
    if len(rows):
        with np.errstate(all="ignore"):
            runtime[rows] = np.cumsum(np.maximum(np.diff(runtime[rows], prepend=0.0), 0.0))
        return runtime
    timestamps = run.numbers("_timestamp")
    if np.isfinite(timestamps).any():
        return timestamps - np.nanmin(timestamps)
    return None
