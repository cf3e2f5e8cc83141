"""The table of runs: one row per run with its metrics, its outcome, its machine and its settings.

`build_run_table` makes the frame that groups, tables, CSV, JSON and page read.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pandas as pd

from ampcompare import metrics
from ampcompare.analysis.grouping.backend_info import describe_arithmetic, dtype_16bit_of, dtype_of
from ampcompare.analysis.grouping.compared_metric import ComparedMetric
from ampcompare.analysis.grouping.contention import measure_contention
from ampcompare.analysis.grouping.outcome import determine_outcome
from ampcompare.analysis.grouping.run_metrics import (
    METRICS_BY_COLUMN,
    count_clock_jumps,
    summary_or_maximum,
    summary_value,
)
from ampcompare.runs import RunRecord
from ampcompare.runs.nested import as_text
from ampcompare.runtime.formatting import plural, printable, short

# Columns besides the metrics. DTYPE is torch's name of the dtype that a run computed in (`bfloat16`),
# DTYPE_16BIT the short name of a 16-bit dtype (`bf16`), ARITHMETIC the instructions that it used. CARDS are
# the devices of the run, and OVERLAP is the fraction of its time in which other runs used them, too
# (`contention`). PROCESS is shared by the runs that one process trained one after the other. SETTINGS
# distinguish a run from other runs, except by the seed, and GROUP is the label of its group.
RUN, NAME, SEED, OUTCOME, WHY = "run", "name", "seed", "outcome", "why"
REFUSED = "refused"  # outcome of a run that ended before its first step
DEVICE, DEVICE_TYPE, ROWS, STARTED = "device", "device_type", "rows", "started"
ON_CPU, DTYPE_16BIT, DTYPE, ARITHMETIC, CARDS = "on_cpu", "half", "dtype", "arithmetic", "cards"
OVERLAP, JUMPS, PROBLEMS, SETTINGS, GROUP = "overlap", "clock_jumps", "problems", "settings", "group"
PROCESS = "process"

MAX_OVERLAP = 0.2  # fraction of a run's time; with less overlap its times still count
NO_DEVICE = "device not recorded"


def build_run_table(
    records: Sequence[RunRecord],
    metric: ComparedMetric,
    seeds: Sequence[Any],
    settings: Sequence[Mapping[str, str]],
) -> pd.DataFrame:
    """Return the table, in the order of the records.

    Args:
        seeds: The seed of each run, None if it is not known.
        settings: The distinguishing settings of each run.
    """
    frame = pd.DataFrame([_row(run, metric) for run in records])
    processes = [_process(run) or f"of run {number}" for number, run in enumerate(records)]
    fractions, cards = measure_contention(records, frame[DEVICE_TYPE], frame[STARTED])
    # As objects: pandas turns None into NaN in a text column, which would merge all unknown seeds.
    extra = {SEED: [*map(_seed, seeds)], SETTINGS: [*settings]}
    series = {name: pd.Series(values, dtype=object) for name, values in extra.items()}
    return frame.assign(**series, **{OVERLAP: fractions, CARDS: cards, PROCESS: processes})


def _process(run: RunRecord) -> str:
    """Return what identifies the process of a run of ours, "" if it is not recorded."""
    recorded = run.config.get(metrics.RUN)
    process = recorded.get(metrics.PROCESS) if isinstance(recorded, Mapping) else None
    return process if isinstance(process, str) else ""


def _row(run: RunRecord, metric: ComparedMetric) -> dict[str, Any]:
    environment = run.environment
    kind = as_text(environment.get("device_type") or "").lower()
    outcome, why = determine_outcome(run, metric.key)
    jumps = count_clock_jumps(run)
    return {
        RUN: run,
        NAME: printable(run.name or run.id),
        OUTCOME: outcome.value if outcome else REFUSED,
        WHY: why,
        DEVICE: as_text(environment.get("device_name") or ""),
        DEVICE_TYPE: kind,
        ON_CPU: "cpu" in (kind, run.option("device")),
        DTYPE_16BIT: dtype_16bit_of(run),
        DTYPE: dtype_of(run),
        ARITHMETIC: describe_arithmetic(run),
        ROWS: run.rows,
        STARTED: _started(run),
        JUMPS: jumps,
        PROBLEMS: _problems(run, jumps),
        **{column: run_metric.value_of(run, metric) for column, run_metric in METRICS_BY_COLUMN.items()},
    }


def describe_device(row: pd.Series) -> str:
    """Return the device in words: `NVIDIA A100 (CUDA)`."""
    kind = f" ({row[DEVICE_TYPE].upper()})" if row[DEVICE_TYPE] else ""
    return f"{row[DEVICE]}{kind}" if row[DEVICE] else NO_DEVICE


def is_machine_shared(rows: pd.DataFrame) -> pd.Series:
    """Return which runs shared their card or CPU for too long, so that their times do not count."""
    return rows[OVERLAP] > MAX_OVERLAP


def _seed(value: Any) -> str | None:
    """Return a seed as text, so that 1 and 1.0 are equal; None if none is recorded."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return None if value is None or value != value else short(printable(as_text(value)))


def _started(run: RunRecord) -> float:
    """Return the start time in seconds since 1970, infinity if unknown. Times without a zone are UTC."""
    start = run.started_at
    if not isinstance(start, datetime):
        return math.inf
    return start.replace(tzinfo=start.tzinfo or UTC).timestamp()


def _problems(run: RunRecord, jumps: int) -> list[str]:
    """Return everything that is wrong with the run's record, one sentence each."""
    problems = []
    if not run.rows:
        problems.append("No history.")
    bad_losses = len(run.nonfinite(metrics.LOSS))
    if bad_losses:
        problems.append(f"The loss is not finite in {plural(bad_losses, 'row')}.")
    # A run of 0.4 could restore its buffers: then it counted the restored ones.
    restored = run.option("training.on_nonfinite_buffers") == "restore"
    if not restored and summary_or_maximum(run, metrics.NONFINITE_BUFFERS) >= 1:
        step = summary_value(run, metrics.NONFINITE_AT)
        at_step = "" if math.isnan(step) else f" at step {step:,.0f}"
        problems.append(
            f"A forward pass overflowed{at_step} and left non-finite buffers (such as running statistics), "
            "so later evaluations are invalid."
        )
    if jumps:
        problems.append(
            "The clock of the run goes backwards, so charts over wall-clock time leave the run out."
        )
    return [*problems, *run.problems]
