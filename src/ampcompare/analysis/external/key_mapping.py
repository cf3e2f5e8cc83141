"""Map logged keys of other programs to our metrics, with their units, as the user describes them.

`--throughput KEY:per_second`, `--time KEY:seconds|ms[:cumulative]` and `--memory KEY:MiB|GiB|bytes` each
become a KeyMapping. Its `apply` stores the values of the key under our name, in our unit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ampcompare import metrics
from ampcompare.analysis.grouping.compared_metric import MIB, is_logged, logged_keys, nearest_key, sample_of
from ampcompare.analysis.grouping.rounding import THROUGHPUT_RESOLUTION, relative_resolution
from ampcompare.errors import UserError
from ampcompare.runs import RunRecord
from ampcompare.runs.step_keys import EPOCH_KEYS, OWN_STEP, STEP_KEYS
from ampcompare.runtime.formatting import printable

THROUGHPUT, TIME, MEMORY = "throughput", "time", "memory"
CUMULATIVE = "cumulative"
MAX_RUN_SECONDS = 3e8  # ten years; a larger time is a date in seconds since 1970
MIN_TIMES = 4  # values of a run from which it shows whether a time counts from the start
MIN_GROWTH = 0.75  # growth of a clock, as a fraction of the number of its values
MIN_FALLS = 0.25  # fraction of the differences between rows
MIN_LEFT = 0.7  # what a fall leaves of the value, where it is noise
# Factors from logged values to our units: items per second, seconds, MiB.
UNITS = {
    THROUGHPUT: {"per_second": 1.0},
    TIME: {"seconds": 1.0, "ms": 1e-3},
    MEMORY: {"MiB": 1.0, "GiB": 1024.0, "bytes": 2.0**-20},
}
TIME_UNITS = {"seconds": "s", "ms": "ms"}  # as a value is shown
FORMS = {
    THROUGHPUT: "KEY:per_second",
    TIME: "KEY:seconds or KEY:ms, with :cumulative where it counts from the start",
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
        is_cumulative: Whether a time counts from the start of the run.
    """

    role: str
    key: str
    unit: str
    is_cumulative: bool = False

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
        in_rows, in_summary = NAMES[self.role]
        own_names = (in_rows, in_summary)
        bare = replace(
            run,
            summary={key: value for key, value in run.summary.items() if key not in own_names},
            logged={key: column for key, column in run.logged.items() if key not in own_names},
        )
        if self.role in (THROUGHPUT, TIME):
            bare.summary[THROUGHPUT_RESOLUTION] = self._resolution(run)
        factor = UNITS[self.role][self.unit]
        logged = run.numbers(self.key)
        if self.is_cumulative:
            if _is_date(logged * factor):
                logged -= np.nanmin(logged)  # before the conversion, which would round a date
            seconds = logged * factor
            return bare.with_columns({metrics.TRAIN_SECONDS: seconds, in_rows: _rates(run, seconds)})
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


def _is_date(seconds: np.ndarray) -> bool:
    """Return whether times count from 1970 and not from the start of a run."""
    finite = seconds[np.isfinite(seconds)]
    return len(finite) > 0 and float(finite.min()) > MAX_RUN_SECONDS


def _rates(run: RunRecord, seconds: np.ndarray) -> np.ndarray:
    """Return the steps per second between two rows that have the cumulative time, NaN elsewhere."""
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
        UserError: The text has another form, or no run has the key as a number.
    """
    is_cumulative = role == TIME and text.endswith(f":{CUMULATIVE}")
    bare = text.removesuffix(f":{CUMULATIVE}") if is_cumulative else text
    key, _, unit = bare.rpartition(":")
    if not key or unit not in UNITS[role]:
        raise UserError(f"--{role} {text!r}: expected {FORMS[role]}")
    if not is_logged(key, runs):
        raise _not_logged(role, key, runs)
    is_step_time = role == TIME and not is_cumulative
    if is_step_time and any(_is_date(run.numbers(key) * UNITS[role][unit]) for run in runs):
        raise UserError(
            f"--time {text!r}: its values are dates in seconds since 1970, and no time of a step; write "
            f"--time {text}:{CUMULATIVE}"
        )
    if is_step_time and _counts_from_start(key, runs):
        raise UserError(
            f"--time {text!r}: its values grow from row to row in every run, so they count from the start; "
            f"write --time {text}:{CUMULATIVE}"
        )
    if is_cumulative and _falls_often(key, runs):
        raise UserError(
            f"--time {text!r}: its values fall again and again in every run, so they do not count from the "
            f"start; write --time {bare}"
        )
    return KeyMapping(role, key, unit, is_cumulative)


def _counts_from_start(key: str, runs: Sequence[RunRecord]) -> bool:
    """Return whether a time grows from row to row in every run that logs it, as a clock does.

    The n-th value of a clock is about n times its first. Steps that become slower grow less.
    """
    columns = [values for run in runs if len(values := run.values(key))]
    return bool(columns) and all(
        len(values) >= MIN_TIMES
        and (np.diff(values) > 0).all()
        and values[-1] >= MIN_GROWTH * len(values) * values[0]
        for values in columns
    )


def _falls_often(key: str, runs: Sequence[RunRecord]) -> bool:
    """Return whether a time falls in every run that logs it, a little and often.

    A time that counts from the start falls seldom, where a run was resumed, or far, where each epoch begins
    at 0.
    """
    columns = [values for run in runs if len(values := run.values(key))]
    return bool(columns) and all(_falls_a_little_and_often(values) for values in columns)


def _falls_a_little_and_often(values: np.ndarray) -> bool:
    falls = np.diff(values) < 0
    if len(values) < MIN_TIMES or falls.mean() < MIN_FALLS:
        return False
    left = values[1:][falls] / values[:-1][falls]
    return bool(np.median(left) >= MIN_LEFT)


def _not_logged(role: str, key: str, runs: Sequence[RunRecord]) -> UserError:
    names = logged_keys(runs)
    logged = ", ".join(names[:12]) or "nothing"
    sample = sample_of(key, runs)
    if sample:
        return UserError(
            f"--{role} {key!r}: its values are no numbers, such as {sample}; logged as numbers: {logged}"
        )
    hint = nearest_key(key, names, end=" ")
    return UserError(f"--{role} {key!r}: no run logged this key as a number; {hint}logged: {logged}")


def parse_key_mappings(options: dict[str, str | None], runs: Sequence[RunRecord]) -> list[KeyMapping]:
    """Return a mapping for each role that is named.

    Raises:
        UserError: Both throughput and time are named.
    """
    if options.get(THROUGHPUT) and options.get(TIME):
        raise UserError("--time: cannot be combined with --throughput; use one of the two")
    return [parse_key_mapping(role, text, runs) for role, text in options.items() if text]


MIN_COUNTS = 3  # values from which equal increments show a counter


def is_step_column(key: str, runs: Sequence[RunRecord]) -> bool:
    """Return whether a logged key counts steps, whatever its name is: no metric to compare.

    It is declared as the step of a metric, has the values of the step, or counts whole numbers in equal
    increments. A key that is named like a score counts nothing.
    """
    if key in STEP_KEYS or key in EPOCH_KEYS or key == OWN_STEP:
        return True
    if any(definition.step == key for run in runs for definition in run.definitions.values()):
        return True
    with_values = [run for run in runs if len(run.values(key))]
    if not with_values:
        return False
    if all(
        np.array_equal(run.numbers(key), run.numbers(metrics.STEP), equal_nan=True) for run in with_values
    ):
        return True
    if metrics.guess_direction(key):
        return False
    return all(_is_counter(run.values(key)) for run in with_values)


def _is_counter(values: np.ndarray) -> bool:
    increments = np.diff(values)
    is_whole = bool((values == np.round(values)).all())
    return len(values) >= MIN_COUNTS and is_whole and increments[0] > 0 and bool(np.ptp(increments) == 0)


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

    total = steps.copy()
    offset = 0.0
    uncounted = 1.0 if logged.min() == 0 else 0.0  # the step 0, where an epoch begins with it
    for epoch in np.unique(epoch_of_row):
        is_of_epoch = epoch_of_row == epoch
        total[rows[is_of_epoch]] = logged[is_of_epoch] + offset
        offset += logged[is_of_epoch].max() + uncounted
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
            increases = np.maximum(np.diff(runtime[rows], prepend=0.0), 0.0)
            runtime[rows] = np.cumsum(increases)
        return runtime
    timestamps = run.numbers("_timestamp")
    if np.isfinite(timestamps).any():
        return timestamps - np.nanmin(timestamps)
    return None
