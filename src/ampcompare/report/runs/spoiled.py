"""Runs whose BatchNorm statistics stayed non-finite after an overflow: what they evaluate says nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ampcompare import metrics
from ampcompare.records import RunRecord

LARGEST = 2.0**53  # no count or step is larger


@dataclass(frozen=True)
class Spoiled:
    """How many buffers, and since which step; `is_exact` where that is the step itself, not one behind it."""

    buffers: int
    step: int | None
    is_exact: bool


def spoiled_buffers(run: RunRecord) -> Spoiled | None:
    """What skipped steps did to a run's buffers; None where nothing is recorded, or all was put back."""
    if run.option("training.on_nonfinite_buffers") == "restore":
        return None
    counts = run.numbers(metrics.NONFINITE_BUFFERS)
    rows = np.flatnonzero((counts >= 1) & (counts <= LARGEST))
    if len(rows):
        count = int(counts[rows].max())
    elif (told := _whole(run.summary_number(metrics.NONFINITE_BUFFERS))) is not None:
        count = told
    else:
        return None
    if (exact := _whole(run.summary_number(metrics.NONFINITE_AT))) is not None:
        return Spoiled(count, exact, is_exact=True)
    steps = [_whole(float(step)) for step in run.numbers(metrics.STEP)[rows[:1]]]
    return Spoiled(count, steps[0] if steps else None, is_exact=False)


def _whole(value: float | None) -> int | None:
    """A count from 1 on; None for anything else that a record may hold."""
    return int(value) if value is not None and math.isfinite(value) and 1 <= value <= LARGEST else None
