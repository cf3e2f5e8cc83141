"""What publications give of a run, taken from our records: times, throughput, peak memory, accuracies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from ampcompare import metrics
from ampcompare.report.runs import table
from ampcompare.report.runs.groups import Group
from ampcompare.report.runs.table import JUMPS, LARGEST, RUN


def measured(group: Group, what: str) -> pd.Series:
    """The counted runs' measurements of what publications give (`published.publication.MEASURED`), in its
    unit: per process, accuracies per seed.
    """
    column, take = TAKEN[what]
    taken = [take(row) for _, row in group.all_rows.iterrows()]
    return replace(group, all_rows=group.all_rows.assign(**{column: taken})).sample(column)


def _final_accuracy(row: pd.Series) -> float:
    return 100 * table.last_of(row[RUN], metrics.EVAL_ACCURACY)


def _in_all(row: pd.Series) -> float:
    """The wall clock at the last row, evaluations in it; NaN where the clock went backwards."""
    clock = row[RUN].values(metrics.ELAPSED)
    clock = clock[(clock >= 0) & (clock <= LARGEST)]
    return float(clock.max()) if len(clock) and not row[JUMPS] else np.nan


def _per_epoch(row: pd.Series) -> float:
    return row[table.SECONDS] / row[table.EPOCHS] if row[table.EPOCHS] >= 1 else np.nan


# By what a publication measures: the column that decides how it is sampled, and how it is had of a run.
TAKEN: Mapping[str, tuple[str, Callable[[pd.Series], float]]] = {
    "seconds": (table.SECONDS, lambda row: row[table.SECONDS]),
    "seconds_in_all": (table.SECONDS, _in_all),
    "seconds_per_epoch": (table.SECONDS, _per_epoch),
    "images_per_second": (table.SPEED, lambda row: row[table.SPEED]),
    "peak_memory": (table.MEMORY, lambda row: row[table.MEMORY]),
    "final_accuracy": (table.QUALITY, _final_accuracy),
    "best_accuracy": (table.BEST, lambda row: 100 * row[table.BEST]),
}
