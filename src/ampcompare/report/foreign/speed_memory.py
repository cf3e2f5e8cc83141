"""Speed and memory of other programs' runs: a logged key, else the moments of rows and what W&B sampled."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ampcompare import metrics
from ampcompare.errors import UserError
from ampcompare.records import RunRecord
from ampcompare.records.definitions import definition_of
from ampcompare.records.machine import OF_GPUS, OF_PROCESS, RESIDENT
from ampcompare.report.foreign import names
from ampcompare.report.foreign.reading import Reading
from ampcompare.report.runs.metric import MIB, nearest_key
from ampcompare.report.words import printable

# Our names of each: in rows, and in the summary of a run without rows of it.
SPEED = (metrics.THROUGHPUT, metrics.THROUGHPUT_MEDIAN)
MEMORY = (metrics.PEAK_MEMORY, metrics.PEAK_MEMORY)
BLOCKS = 20  # of a run's log intervals, each with a rate of its own
OWN_STEP = "_step"  # W&B's: one a call of log()
# What W&B's client samples of a machine, the best first: the least MiB that count (a GPU of which less is in
# use computes nothing), and what it is.
SAMPLES = {
    OF_PROCESS: (64, "the process on its GPUs"),
    OF_GPUS: (64, "the GPUs, whatever else ran there"),
    RESIDENT: (0, "the process's resident memory"),
}


def take_figures(reading: Reading) -> None:
    """Speed and memory of all runs, under our names, with their units; of our own runs only what was asked
    for. Raises UserError for a key that was asked for and that no run has as a number.
    """
    speed = _take(reading, "throughput", names.speed_of, SPEED, _take_pace)
    memory = _take(reading, "memory", names.memory_of, MEMORY, _take_samples)
    known = {name: unit for name, unit in (("speed", speed), ("memory", memory)) if unit is not None}
    reading.quantities = replace(reading.quantities, **known)


def _take(
    reading: Reading,
    what: str,
    pattern_of: Callable[[str], names.Pattern | None],
    ours: tuple[str, str],
    otherwise: Callable[[Reading], str | None],
) -> str | None:
    """Put the key that was asked for, or most likely is meant, under our name; what is to be had `otherwise`
    where none is. Returns its unit, None where nothing was taken.
    """
    logged = reading.logged
    key = asked = getattr(reading.asked, what)
    if asked is None:
        if not reading.is_foreign or any(map(logged.has, ours)):
            return None
        found = {key: pattern.rank for key in logged.keys if (pattern := pattern_of(key)) and pattern.rank}
        key = logged.best(found)
    elif not logged.has(asked):
        near = nearest_key(asked, [*logged.keys])
        said = f"no run has it as a number; {near and near + ' '}logged: {logged.named()}"
        raise UserError(f"--{what} {asked!r}: {said}")
    if key is None:
        return otherwise(reading)
    read_as = pattern_of(key) or names.Pattern("")
    reading.runs = [_renamed(run, key, ours, read_as.apply) for run in reading.runs]
    if asked is None:
        reading.picked.append((f"{key}{read_as.how} as the {what}", f"--{what}"))
    else:
        reading.notes.append(f"read {printable(key)}{read_as.how} as the {what}")
    return read_as.unit or (names.last_part(key) if ours == SPEED else "")


def _renamed(run: RunRecord, key: str, ours: tuple[str, str], change: Callable[[Any], Any]) -> RunRecord:
    """The run with its values of a key, from rows or else the summary, in place of what it has of ours."""
    values, told = run.numbers(key), run.summary_number(key)
    bare = replace(
        run,
        summary={k: value for k, value in run.summary.items() if k not in ours},
        logged={k: column for k, column in run.logged.items() if k not in ours},
    )
    with np.errstate(all="ignore"):
        if np.isfinite(values).any():
            return bare.adding({ours[0]: change(values)})
        if told is not None:
            bare.summary[ours[1]] = float(change(np.float64(told)))
    return bare


def _take_pace(reading: Reading) -> str | None:
    """Speed by the moments of rows, in steps or epochs a second, where the runs logged one of these."""
    keys = [step_key(run) for run in reading.logged.runs]
    rates = [_rates_of(run, key) for run, key in zip(reading.runs, keys, strict=True)]
    counted = next((key for key, found in zip(keys, rates, strict=True) if found is not None), None)
    kinds = {key in names.EPOCHS for key in keys if key != OWN_STEP}
    if counted is None or len(kinds) > 1:
        said = "Speed cannot be told, neither by a name nor by the moments of steps"
        logged = f"--throughput KEY takes one of those logged: {reading.logged.named()}."
        reading.doubts.append(f"{said}: {logged}")
        return None
    pairs = zip(reading.runs, rates, strict=True)
    reading.runs = [run if found is None else run.adding({metrics.THROUGHPUT: found}) for run, found in pairs]
    unit = "epochs/s" if kinds.pop() else "steps/s"
    reading.doubts.append(
        f"No throughput is logged: speed, in {unit}, is taken from the moments of rows "
        f"({printable(counted)}), whatever went on between two of them. --throughput KEY takes a logged one."
    )
    return unit


def step_key(run: RunRecord, metric: str = "") -> str:
    """What counts a run's rows: what W&B's `define_metric` declares of the metric; its steps; epochs, where
    each row ends one; else W&B's own count.
    """
    declared = definition_of(metric, run.definitions).step
    if declared and len(run.values(declared)):
        return declared
    key = next((key for key in names.STEPS if len(run.values(key)) > 1), OWN_STEP)
    for epochs in names.EPOCHS:
        if len(ends := run.values(epochs)) == run.rows > 1 and (np.diff(ends) >= 1).all():
            return epochs if key == OWN_STEP or np.array_equal(ends, run.values(key)) else key
    return key


def counts_rows(run: RunRecord) -> bool:
    """Return whether W&B's own step is no more than the number of the row: nobody gave `log(step=...)`."""
    return bool((np.diff(run.values(OWN_STEP), prepend=-1) == 1).all())


def _rates_of(run: RunRecord, key: str) -> np.ndarray | None:
    """How many steps or epochs a second: one value a row, NaN in all but the last row of each block of
    intervals; None where its rows do not tell.

    Between two rows of one step nothing was trained: that time (an evaluation, mostly) is left out, and what
    ends with a row without a training loss, where there is any with it. Of several intervals the first is
    left out, which has the start in it.
    """
    if key == OWN_STEP:
        return None
    stamped = "_timestamp" if "_timestamp" in run.logged else metrics.ELAPSED
    clock, steps, losses = (run.numbers(name) for name in (stamped, key, metrics.LOSS))
    rows = np.flatnonzero(np.isfinite(steps) & np.isfinite(clock))
    with np.errstate(all="ignore"):
        gone, done = np.diff(clock[rows]), np.diff(steps[rows])
        is_moving = (gone > 0) & (done > 0)
        is_training = is_moving & np.isfinite(losses[rows[1:]])
        inside = np.flatnonzero(is_training if is_training.any() else is_moving)
        inside = inside[1:] if len(inside) > 2 else inside
        rates = np.full(run.rows, np.nan)
        for block in np.array_split(inside, min(BLOCKS, len(inside))) if len(inside) else ():
            rates[rows[block[-1] + 1]] = done[block].sum() / gone[block].sum()
    return rates if len(inside) else None


def _take_samples(reading: Reading) -> str | None:
    """Peak memory from W&B's own samples, of the best kind that all runs with samples have."""
    sampled = [run.machine.peaks for run in reading.runs if run.machine.peaks]
    for kind, (least, words) in SAMPLES.items():
        if sampled and all(least < peaks.get(kind, 0.0) < np.inf for peaks in sampled):
            reading.runs = [
                replace(run, summary=run.summary | {metrics.PEAK_MEMORY: run.machine.peaks[kind]})
                if run.machine.peaks
                else run
                for run in reading.runs
            ]
            reading.doubts.append(
                f"No memory is logged: the peak is the largest of W&B's own samples of {words}, one "
                "every few seconds. --memory KEY takes a logged one."
            )
            return MIB
    return None
