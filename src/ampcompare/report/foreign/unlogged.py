"""Speed, memory and energy that nobody logged: from the moments of rows, and what W&B sampled."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from ampcompare import metrics
from ampcompare.records import RunRecord
from ampcompare.report.foreign import names
from ampcompare.report.foreign.taking import Taking
from ampcompare.report.words import printable

LARGEST = 1e15  # of a step or a moment
BLOCKS = 20  # of a run's log intervals, each with a rate of its own
OWN_STEP = "_step"  # W&B's: one a call of log()
# What W&B's client samples of a machine, the best first: keys, the factor to MiB, the least MiB that counts
# (a GPU of which less is in use computes nothing), and what it is.
SAMPLES = (
    (r"gpu\.process\.\d+\.memoryAllocatedBytes", 1 / 2**20, 64, "the process on its GPUs"),
    (r"gpu\.\d+\.memoryAllocatedBytes", 1 / 2**20, 64, "the GPUs, whatever else ran there"),
    (r"proc\.memory\.rssMB", 1.0, 0, "the process's resident memory"),
)
POWER = (r"gpu\.process\.\d+\.powerWatts", r"gpu\.\d+\.powerWatts")
SPEED = "--throughput KEY takes a logged one."


def take_pace(taking: Taking) -> None:
    """Speed by the moments of rows. Where no step is logged but W&B's own, one for each call of log(), how
    many steps a row is nobody says: rows are comparable only where all runs that finished have as many.
    """
    runs = {n: taking.logged.runs[n] for n in taking.theirs}
    paces = {n: pace for n, run in runs.items() if (pace := _pace_of(run)) is not None}
    kinds = {pace[:2] for pace in paces.values()}
    rows = sorted(len(runs[n].values(OWN_STEP)) for n in paces if runs[n].state == "finished")
    if not kinds:
        return
    key, kind = kinds.pop()
    why = "the runs count their steps in several ways" if kinds else ""
    if kind == "row" and rows and rows[0] < rows[-1]:
        why = f"no step but W&B's own, of which the runs have {rows[0]:,} to {rows[-1]:,} rows"
    if why:
        taking.cautions.append(f"No throughput is logged, and {why}, so that no speed is given. {SPEED}")
        return
    for n, (*_, rates) in paces.items():
        taking.runs[n] = taking.runs[n].adding({metrics.THROUGHPUT: rates})
    taking.quantities = replace(taking.quantities, speed=f"{kind}s/s")
    counted = "W&B's own, one for each call of log()" if key == OWN_STEP else printable(key)
    taking.cautions.append(
        f"No throughput is logged: speed, in {kind}s/s, is taken from the moments of rows and their steps "
        f"({counted}). What went on between two rows beside training counts as training, and nobody waited "
        f"for the device. {SPEED}"
    )


def steps_of(run: RunRecord) -> tuple[str | None, str]:
    """The key of a run's steps, and what they count: steps, epochs, or W&B's own rows."""
    key = next((key for key in names.STEPS if len(run.values(key)) > 1), None)
    epochs = next((run.numbers(epoch) for epoch in names.EPOCHS if epoch in run.logged), np.empty(0))
    steps = run.numbers(key) if key else np.empty(0)
    if len(epochs) and len(steps):
        of_rows = epochs[np.isfinite(steps)]
        is_it = key == OWN_STEP or np.array_equal(of_rows, steps[np.isfinite(steps)])
        if is_it and np.isfinite(of_rows).all() and (np.diff(of_rows) >= 1).all():
            return key, "epoch"
    return key, "row" if key in (None, OWN_STEP) else "step"


def _pace_of(run: RunRecord) -> tuple[str, str, np.ndarray] | None:
    """The key of a run's steps, what they count, and how many a second: one value a row, NaN in all but the
    last row of each block of intervals; None where its rows do not tell.

    Between two rows of one step nothing was trained: that time (an evaluation, mostly) is left out, and what
    ends with a row without anything of training, where there is any with it. Of several intervals the first
    is left out, which has the start in it.
    """
    clocks = (run.numbers(key) for key in ("_timestamp", "_runtime"))
    clock = next((c for c in clocks if np.isfinite(c).sum() > 1), None)
    key, kind = steps_of(run)
    if clock is None or key is None:
        return None
    steps = run.numbers(key)
    rows = np.flatnonzero((np.abs(steps) < LARGEST) & (np.abs(clock) < LARGEST))
    gone, done = np.diff(clock[rows]), np.diff(steps[rows])
    is_moving = (gone > 0) & (done > 0)
    is_training = is_moving & ~_evaluates(run)[rows[1:]]
    inside = np.flatnonzero(is_training if is_training.any() else is_moving)
    inside = inside[1:] if len(inside) > 2 else inside
    rates = np.full(run.rows, np.nan)
    for block in np.array_split(inside, min(BLOCKS, len(inside))) if len(inside) else ():
        rates[rows[block[-1] + 1]] = done[block].sum() / gone[block].sum()
    return (key, kind, rates) if len(inside) else None


def _evaluates(run: RunRecord) -> np.ndarray:
    """Mask of the rows that have something of an evaluation, and nothing of training."""
    of = {True: np.zeros(run.rows, bool), False: np.zeros(run.rows, bool)}
    for key in (key for key in run.logged if key[:1] != "_" and key not in (*names.STEPS, *names.EPOCHS)):
        is_evaluation = bool(names.EVALUATION.search(names.spelled(key)))
        if is_evaluation or names.TRAINING.search(names.spelled(key)) or key in names.LOSSES:
            of[is_evaluation] |= np.isfinite(run.numbers(key))
    return of[True] & ~of[False]


def take_samples(taking: Taking) -> None:
    """Peak memory from W&B's own samples, of the best kind that all runs with samples have."""
    totals = [[_total(taking.runs[n], keys) for n in taking.theirs] for keys, *_ in SAMPLES]
    sampled = [any(total is not None for total in of_run) for of_run in zip(*totals, strict=True)]
    for (_, factor, least, what), of_kind in zip(SAMPLES, totals, strict=True):
        peaks = [0.0 if total is None else float(total.max()) * factor for total in of_kind]
        if not any(sampled) or [peak > 0 and least <= peak < LARGEST for peak in peaks] != sampled:
            continue
        for n, peak in zip(taking.theirs, peaks, strict=True):
            told = {metrics.PEAK_MEMORY: peak} if peak else {}
            taking.runs[n] = replace(taking.runs[n], summary=taking.runs[n].summary | told)
        taking.cautions.append(
            f"No memory is logged: the peak is the largest of W&B's own samples of {what}, one every few "
            "seconds, and what lies between two of them is not seen. --memory KEY takes a logged one."
        )
        return


def take_energy(taking: Taking) -> None:
    """Energy of one item: the mean power of the GPUs that W&B sampled, over the throughput."""
    for n in taking.theirs:
        run = taking.runs[n]
        watts = next((total.mean() for keys in POWER if (total := _total(run, keys)) is not None), 0.0)
        speeds = run.values(metrics.THROUGHPUT)
        speed = run.summary_number(metrics.THROUGHPUT_MEDIAN) or (np.median(speeds) if len(speeds) else 0.0)
        if 0 < watts < LARGEST and 0 < speed < LARGEST and run.rows and not len(run.values(metrics.ENERGY)):
            taking.runs[n] = run.adding(
                {metrics.ENERGY: np.append(np.full(run.rows - 1, np.nan), watts / speed)}
            )


def _total(run: RunRecord, keys: str) -> np.ndarray | None:
    """The sum over GPUs, sample by sample; None without one. W&B writes a sample of all GPUs at once."""
    samples = run.machine.samples
    columns = [c for key, c in samples.items() if re.fullmatch(keys, key) and np.isfinite(c).any()]
    every = np.stack(columns) if columns else np.empty((0, 0))
    return np.nansum(every[:, np.isfinite(every).any(axis=0)], axis=0) if columns else None
