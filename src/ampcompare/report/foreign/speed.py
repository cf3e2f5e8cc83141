"""Throughput from the moments at which rows were logged, where a program logged none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ampcompare.records import RunRecord
from ampcompare.records.tree import flatten
from ampcompare.report.foreign import names
from ampcompare.report.runs.quantities import Quantities

OWN_STEP = "_step"  # W&B's: one a call of log()
CLOCKS = ("_timestamp", "_runtime")
BLOCKS = 20  # of a run's log intervals, each with a rate of its own
MOST = 1e15
_ACCUMULATION = ("gradient_accumulation_steps", "accumulate_grad_batches", "grad_accum_steps", "accum_steps")


@dataclass(frozen=True)
class Pace:
    """Steps a second: `rates` has one value a row, NaN in all but the last row of each block of intervals.
    `rows` is the number of rows of the run. Where W&B's own step is all there is, it is rows that are
    counted: one a call of log(), however many steps went on in between.
    """

    rates: np.ndarray
    step_key: str
    rows: int
    is_epochs: bool = False

    @property
    def is_rows(self) -> bool:
        """Whether rows are counted, and nobody knows how many steps one is."""
        return self.step_key == OWN_STEP and not self.is_epochs


def pace_of(run: RunRecord) -> Pace | None:
    """The pace of a run by its own step, or W&B's; None where its rows do not tell.

    Between two rows of one step nothing was trained: that time (an evaluation, mostly) is left out, and what
    ends with a row of evaluation alone, where there is anything else. Of several intervals the first is left
    out, which has the start in it.
    """
    clock = next((c for key in CLOCKS if _is_clock(c := run.numbers(key))), None)
    step_key = names.first([k for k in names.STEPS if len(run.values(k)) > 1], run.logged)
    if clock is None or step_key is None:
        return None
    steps = run.numbers(step_key)
    rows = np.flatnonzero(
        np.isfinite(steps) & np.isfinite(clock) & (np.abs(steps) < MOST) & (np.abs(clock) < MOST)
    )
    gone, trained = np.diff(clock[rows]), np.diff(steps[rows])
    is_moving = (gone > 0) & (trained > 0)
    is_training = is_moving & ~_evaluates(run)[rows[1:]]
    inside = np.flatnonzero(is_training if is_training.any() else is_moving)
    if len(inside) > 2:
        inside = inside[1:]
    if not len(inside):
        return None
    rates = np.full(run.rows, np.nan)
    for block in np.array_split(inside, min(BLOCKS, len(inside))):
        rates[rows[block[-1] + 1]] = trained[block].sum() / gone[block].sum()
    return Pace(rates, step_key, len(rows), _counts_epochs(run, step_key, rows))


def step_words(run: RunRecord) -> str:
    """What the rows of a run are counted by: `optimizer step`, or what else its step is."""
    held = list(run.logged)
    key = names.first([k for k in names.STEPS if len(run.values(k))], held)
    if key is None or key == OWN_STEP:
        return "row"
    epoch_key = names.first(names.EPOCHS, held)
    is_epoch = epoch_key is not None and np.array_equal(run.values(epoch_key), run.values(key))
    return "epoch" if is_epoch else Quantities.step


def _is_clock(values: np.ndarray) -> bool:
    return bool(np.isfinite(values).sum() > 1)


def _evaluates(run: RunRecord) -> np.ndarray:
    """Mask of the rows that have something of an evaluation, and nothing of training."""
    found = {True: np.zeros(run.rows, bool), False: np.zeros(run.rows, bool)}
    for key in run.logged:
        words = set(names.parts(key))
        is_count = key.startswith("_") or key in (*names.STEPS, *names.EPOCHS)
        if words & names.EVALUATION and not is_count:
            found[True] |= np.isfinite(run.numbers(key))
        elif not is_count and (words & names.TRAINING or key in names.LOSSES):
            found[False] |= np.isfinite(run.numbers(key))
    return found[True] & ~found[False]


def _counts_epochs(run: RunRecord, step_key: str, rows: np.ndarray) -> bool:
    """Whether the step goes up by one an epoch: W&B's own where a row an epoch is logged, and no more, or one
    that is the epoch.
    """
    epoch_key = names.first(names.EPOCHS, run.logged)
    if epoch_key is None:
        return False
    epochs, steps = run.numbers(epoch_key)[rows], run.numbers(step_key)[rows]
    if step_key != OWN_STEP and not np.array_equal(epochs, steps):
        return False
    return bool(np.isfinite(epochs).all() and (np.diff(epochs) >= 1).all())


def batch_size_of(run: RunRecord) -> float | None:
    """Samples of one step as the config says it: the one batch size of training, times the batches whose
    gradients are added up. None where there is none, or several.
    """
    found, times = set(), 1.0
    for key, value in flatten(run.config):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < 1e9:
            continue
        last = names.last_part(key)
        words = names.parts(last)
        if words[-2:] == ["batch", "size"] or last in ("batch", "bs") or words[-3:-1] == ["batch", "size"]:
            if not set(words) & (names.EVALUATION | {"generation", "inference", "predict"}):
                found.add(float(value))
        elif last in _ACCUMULATION:
            times = float(value)
    return found.pop() * times if len(found) == 1 else None
