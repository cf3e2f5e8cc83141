"""What publications give of a run, taken from our records: times, throughput, peak memory, accuracies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from ampcompare import metrics
from ampcompare.report.runs import table
from ampcompare.report.runs.groups import Group

# Of what a publication measures (`published.publication.MEASURED`) the column that it is sampled like.
SAMPLED_AS = {
    "seconds": table.SECONDS,
    "seconds_in_all": table.SECONDS,
    "seconds_per_epoch": table.SECONDS,
    "images_per_second": table.SPEED,
    "peak_memory": table.MEMORY,
    "final_accuracy": table.QUALITY,
    "best_accuracy": table.BEST,
}


def measured(group: Group, what: str) -> pd.Series:
    """The counted runs' measurements of what publications give, in its unit: per process, accuracies per
    seed.
    """
    column, rows = SAMPLED_AS[what], group.all_rows
    taken = rows[column]
    if what == "seconds_in_all":
        taken = rows.apply(_in_all, axis=1)
    elif what == "seconds_per_epoch":
        taken = taken / rows[table.EPOCHS].where(rows[table.EPOCHS] >= 1)
    elif what == "best_accuracy":
        taken = 100 * taken
    elif what == "final_accuracy":  # whatever metric is compared
        taken = rows[table.RUN].map(lambda run: 100 * table.last_of(run, metrics.EVAL_ACCURACY))
    return replace(group, all_rows=rows.assign(**{column: taken})).sample(column)


def _in_all(row: pd.Series) -> float:
    """The wall clock at the last row, evaluations in it; NaN where the clock went backwards."""
    clock = row[table.RUN].values(metrics.ELAPSED)
    clock = clock[(clock >= 0) & (clock <= table.LARGEST)]
    return float(clock.max()) if len(clock) and not row[table.JUMPS] else np.nan
