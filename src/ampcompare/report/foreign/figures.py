"""Speed and memory of other programs' runs: a logged key, else the moments of rows and what W&B sampled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ampcompare import metrics
from ampcompare.errors import UserError
from ampcompare.records import RunRecord
from ampcompare.records.machine import OF_GPUS, OF_PROCESS, RESIDENT
from ampcompare.report.foreign import names
from ampcompare.report.foreign.reading import Reading
from ampcompare.report.runs.metric import nearest_key
from ampcompare.report.words import printable

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


def take_figures(reading: Reading, throughput: str | None, memory: str | None) -> None:
    """Speed and memory of all runs, under our names, with their units; of our own runs only what was asked
    for. Raises UserError for a key that was asked for and that no run has as a number.
    """
    if (unit := _take(reading, "throughput", throughput, names.speed_of, SPEED)) is not None:
        reading.quantities = replace(reading.quantities, speed=unit)
    elif reading.is_foreign and not any(map(reading.logged.has, SPEED)):
        _take_pace(reading)
    if (unit := _take(reading, "memory", memory, names.memory_of, MEMORY)) is not None:
        reading.quantities = replace(reading.quantities, memory=unit)
    elif reading.is_foreign and not any(map(reading.logged.has, MEMORY)):
        _take_samples(reading)


def _take(
    reading: Reading,
    what: str,
    asked: str | None,
    pattern_of: Callable[[str], names.Pattern | None],
    ours: tuple[str, str],
) -> str | None:
    """Put the key that was asked for, or most likely is meant, under our name, in rows or, where none has
    any, in the summary. Returns its unit, None where there is none.
    """
    logged, key = reading.logged, asked
    if asked is not None and not logged.has(asked):
        near = nearest_key(asked, [*logged.keys])
        said = f"no run has it as a number; {near and near + ' '}logged: {logged.named()}"
        raise UserError(f"--{what} {asked!r}: {said}")
    if asked is None and reading.is_foreign and not any(map(logged.has, ours)):
        found = {key: pattern.rank for key in logged.keys if (pattern := pattern_of(key)) and pattern.rank}
        key = logged.best(found)
    if key is None:
        return None
    read_as = pattern_of(key) or names.Pattern("")
    reading.runs = [_renamed(run, key, ours, read_as.apply) for run in reading.runs]
    if asked is None:
        reading.picked.append((f"{key}{read_as.how} as the {what}", f"--{what}"))
    else:
        reading.notes.append(f"read {printable(key)}{read_as.how} as the {what}")
    return read_as.unit or (names.last_part(key) if ours == SPEED else "")


def _renamed(run: RunRecord, key: str, ours: tuple[str, str], change: Callable[[Any], Any]) -> RunRecord:
    values, told = run.numbers(key), run.summary_number(key)
    summary = {k: v for k, v in run.summary.items() if k not in ours}
    logged = {k: c for k, c in run.logged.items() if k != ours[0] or told is not None}
    with np.errstate(all="ignore"):
        if np.isfinite(values).any():
            return replace(run.adding({ours[0]: change(values)}), summary=summary)
        summary |= {} if told is None else {ours[1]: float(change(np.float64(told)))}
    return replace(run, summary=summary, logged=logged)


def _take_pace(reading: Reading) -> None:
    """Speed by the moments of rows, in steps or epochs a second, where the runs logged one of these."""
    keys = [step_key(run) for run in reading.logged.runs]
    kinds = {key in names.EPOCHS for key in keys if key != OWN_STEP}
    rates = [_rates_of(run, key) for run, key in zip(reading.runs, keys, strict=True)]
    counted = next((key for key, found in zip(keys, rates, strict=True) if found is not None), None)
    if counted is None or len(kinds) > 1:
        said = "Speed cannot be told, neither by a name nor by the moments of steps"
        logged = f"--throughput KEY takes one of those logged: {reading.logged.named()}."
        reading.doubts.append(f"{said}: {logged}")
        return
    pairs = zip(reading.runs, rates, strict=True)
    reading.runs = [run if found is None else run.adding({metrics.THROUGHPUT: found}) for run, found in pairs]
    unit = "epochs/s" if kinds.pop() else "steps/s"
    reading.quantities = replace(reading.quantities, speed=unit)
    reading.doubts.append(
        f"No throughput is logged: speed, in {unit}, is taken from the moments of rows "
        f"({printable(counted)}), whatever went on between two of them. --throughput KEY takes a logged one."
    )


def step_key(run: RunRecord) -> str:
    """What counts a run's rows: its steps; epochs, where each row ends one; else W&B's own count."""
    key = next((key for key in names.STEPS if len(run.values(key)) > 1), OWN_STEP)
    for epochs in names.EPOCHS:
        if len(ends := run.values(epochs)) == run.rows > 1 and (np.diff(ends) >= 1).all():
            return epochs if key == OWN_STEP or np.array_equal(ends, run.values(key)) else key
    return key


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


def _take_samples(reading: Reading) -> None:
    """Peak memory from W&B's own samples, of the best kind that all runs with samples have."""
    sampled = [run.machine.peaks for run in reading.runs if run.machine.peaks]
    known = [k for k, (least, _) in SAMPLES.items() if all(least < p.get(k, 0.0) < np.inf for p in sampled)]
    if not sampled or not known:
        return
    peaks = [
        {metrics.PEAK_MEMORY: p} if (p := run.machine.peaks.get(known[0])) else {} for run in reading.runs
    ]
    pairs = zip(reading.runs, peaks, strict=True)
    reading.runs = [replace(run, summary=run.summary | peak) for run, peak in pairs]
    reading.doubts.append(
        f"No memory is logged: the peak is the largest of W&B's own samples of {SAMPLES[known[0]][1]}, one "
        "every few seconds. --memory KEY takes a logged one."
    )


def with_machines(runs: list[RunRecord]) -> list[RunRecord]:
    """The runs with a record of the machine that W&B saw. Where some have none, and the others had one
    device, none has: a run that died too early to say it would be set apart from its fellows.
    """
    facts = [run.machine.facts for run in runs]
    if not all(facts) and len({found.get("device_name") for found in facts if found}) < 2:
        return runs
    return [
        replace(run, summary={metrics.ENVIRONMENT: found, **run.summary}) if found else run
        for run, found in zip(runs, facts, strict=True)
    ]
