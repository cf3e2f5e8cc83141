"""One row per run: what a run comes down to, from its summary, or its history where the summary has none.

Everything behind this reads the frame that `table_of` makes: groups, tables, CSV, JSON and page.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd

from ampcompare import metrics
from ampcompare.data.sources import SOURCES
from ampcompare.precision.backends import REGISTRY
from ampcompare.records import RunRecord
from ampcompare.records.tree import as_text, is_number, lookup
from ampcompare.report.runs.ending import outcome_of
from ampcompare.report.runs.metric import ComparedMetric
from ampcompare.report.words import plural, printable, short

# Figures: numbers, NaN where nothing was recorded. Throughput is of all processes together, `peak_mib` the
# device's peak allocation (on a CPU the process's resident memory), `quality` the last value of the compared
# metric in the unit in which it is shown.
SPEED, STEP_TIME, STEP_TIME_95 = "images_per_second", "step_time_ms_p50", "step_time_ms_p95"
MEMORY, ENERGY, SKIPPED, SECONDS = "peak_mib", "joules_per_image", "skipped_steps", "train_seconds"
QUALITY, BEST, TO_TARGET = "quality", "best_accuracy", "seconds_to_target"
FIGURES = (SPEED, STEP_TIME, MEMORY, ENERGY, SKIPPED, SECONDS, QUALITY, BEST, TO_TARGET)
# What publications have besides: the time with evaluations, that of an epoch, the last accuracy (0..1).
IN_ALL, AN_EPOCH, FINAL = "seconds_in_all", "seconds_per_epoch", "final_accuracy"
OF_THE_SEED = (SKIPPED, QUALITY, BEST, FINAL)  # run again with the same seed is no second measurement
TIMED = (SPEED, STEP_TIME, ENERGY, SECONDS, IN_ALL, AN_EPOCH, TO_TARGET)  # in which others at work tell
# And what else is known of a run: HALF is its type of less than 32 bits (`bf16`), ARITHMETIC what that ran
# on, CARDS what it computed on (`shared`), SETTINGS all that tells it from others but its
# seed, GROUP the label of what that makes it one of.
RUN, NAME, SEED, OUTCOME, WHY = "run", "name", "seed", "outcome", "why"
DEVICE, DEVICE_TYPE, ROWS, EPOCHS, STEPS = "device", "device_type", "rows", "epochs", "steps"
ON_CPU, HALF, ARITHMETIC, CARDS = "on_cpu", "half", "arithmetic", "cards"
OVERLAP, JUMPS, SETTINGS, GROUP = "overlap", "clock_jumps", "settings", "group"
IMAGES, CLASSES, STARTED, PROBLEMS = "test_images", "classes", "started", "problems"

LARGEST = 1e100  # what is larger is no measurement, and could not be squared or added up
MOST_SHARED = 0.2  # of a run's training; with less, its median and its seconds are still its own
NO_DEVICE = "device not recorded"
SHORT = {"float16": "fp16", "bfloat16": "bf16"}


def table_of(
    records: Sequence[RunRecord], metric: ComparedMetric, seeds: Sequence[Any] | None = None
) -> pd.DataFrame:
    """The frame, in the order of the records; its index is (source, id) and unique.

    `seeds` are those of other programs' runs, which have them under other names.
    """
    index: dict[tuple[str, str], None] = {}
    for number, run in enumerate(records, 1):
        source = str(run.paths[0].parent.parent) if run.paths else f"{run.entity}/{run.project}"
        index[source, run.id if (source, run.id) not in index else f"{run.id} ({number})"] = None
    places = pd.MultiIndex.from_tuples([*index], names=("source", "id"))
    frame = pd.DataFrame([_row(run, metric) for run in records], index=places)
    said = [run.option("seed") for run in records] if seeds is None else seeds
    # As objects: in a column of text pandas turns None into NaN, and all unknown seeds would be one.
    frame[SEED] = pd.Series([*map(_seed, said)], index=places, dtype=object)
    figures = frame[[*FIGURES, STEP_TIME_95, EPOCHS, STEPS, IN_ALL, AN_EPOCH, FINAL]].astype(float)
    figures = figures.where(figures.abs() <= LARGEST)
    ratios = figures[[SPEED, MEMORY]]
    return frame.assign(**figures.assign(**ratios.where(ratios >= 1 / LARGEST)))


def _row(run: RunRecord, metric: ComparedMetric) -> dict[str, Any]:
    environment = environment_of(run)
    kind = as_text(environment.get("device_type") or "").lower()
    outcome, why = outcome_of(run, metric.key)
    clock = run.values(metrics.ELAPSED)
    clock = clock[np.isfinite(clock)]
    jumps = int((np.diff(clock) < 0).sum())
    seconds, epochs = _figure(run, metrics.TRAIN_SECONDS), _history(run, metrics.EPOCH)
    best = _figure(run, metrics.BEST_ACCURACY, metrics.EVAL_ACCURACY)
    return {
        RUN: run,
        NAME: printable(run.name or run.id),
        OUTCOME: outcome.value,
        WHY: why,
        DEVICE: as_text(environment.get("device_name") or ""),
        DEVICE_TYPE: kind,
        ON_CPU: "cpu" in (kind, run.option("device")),
        HALF: SHORT.get(_dtype_of(run), ""),
        ARITHMETIC: _arithmetic(run),
        ROWS: run.rows,
        EPOCHS: epochs,
        STEPS: _history(run, metrics.STEP),
        SPEED: _images_per_second(run),
        STEP_TIME: _summary(run, metrics.STEP_TIME_P50),
        STEP_TIME_95: _summary(run, metrics.STEP_TIME_P95),
        MEMORY: _figure(run, metrics.PEAK_MEMORY),
        ENERGY: _history(run, metrics.ENERGY, np.median),
        SKIPPED: _figure(run, metrics.SKIPPED),
        SECONDS: seconds,
        IN_ALL: clock.max() if len(clock) and not jumps else math.nan,
        AN_EPOCH: seconds / epochs if epochs >= 1 else math.nan,
        QUALITY: _last(run, metric.key) * metric.factor,
        FINAL: _last(run, metrics.EVAL_ACCURACY),
        BEST: best if 0 <= best <= 1 else math.nan,  # another program's may be in percent
        TO_TARGET: math.nan,
        OVERLAP: math.nan,
        JUMPS: jumps,
        IMAGES: _of_data(run, metrics.TEST_IMAGES, "test_images"),
        CLASSES: _of_data(run, metrics.CLASSES, "classes"),
        STARTED: _started(run),
        PROBLEMS: _problems(run, jumps),
    }


def environment_of(run: RunRecord) -> Mapping[str, Any]:
    """The machine and software of a run: from its summary, or its config for a run that did not end."""
    for holder in (run.summary, run.config):
        environment = holder.get(metrics.ENVIRONMENT)
        if isinstance(environment, Mapping) and environment:
            return environment
    return {}


def label_of(run: RunRecord) -> str:
    """The name under which a run is compared: its backend, a plug-in's by its own label."""
    # Records of others may hold anything.
    said = (environment_of(run).get("backend_label"), run.option("backend"), "unknown")
    return next(printable(text) for text in said if isinstance(text, str) and text.strip())


def _dtype_of(run: RunRecord) -> str:
    """The type that a run computed in, as far as record or backend say; else nothing."""
    if declared := REGISTRY.get(str(run.option("backend"))):
        return declared.dtype
    recorded = environment_of(run)
    said = (recorded.get(metrics.PRECISION_DTYPE), recorded.get("backend_type"))
    return next((short(printable(dtype)) for dtype in said if isinstance(dtype, str) and dtype), "")


def _arithmetic(run: RunRecord) -> str:
    """What its half type ran on: a processor's unit (`amx_bf16`), EMULATED, or UNKNOWN, as old records."""
    recorded = environment_of(run).get(metrics.ARITHMETIC)
    found = recorded.get(_dtype_of(run)) if isinstance(recorded, Mapping) else None
    return short(printable(found)) if isinstance(found, str) and found else metrics.UNKNOWN


def words_of(run: RunRecord) -> str:
    """What the backend of a run says of itself, as far as that is known."""
    words, dtype = environment_of(run).get("backend_words"), _dtype_of(run)
    if built_in := REGISTRY.get(str(run.option("backend"))):
        words = built_in.words
        if built_in.is_fp32:
            return built_in.words
    short = SHORT.get(dtype, dtype)
    return (str(words) if short in str(words) else f"{words}, {short}") if words and dtype else ""


def device_words(row: pd.Series) -> str:
    """`NVIDIA A100 (CUDA)`."""
    kind = f" ({row[DEVICE_TYPE].upper()})" if row[DEVICE_TYPE] else ""
    return f"{row[DEVICE]}{kind}" if row[DEVICE] else NO_DEVICE


def shares_machine(rows: pd.DataFrame) -> pd.Series:
    """Of which runs the times are not their own: others of the set were on their card or CPU too long."""
    return rows[OVERLAP] > MOST_SHARED


def with_target(rows: pd.DataFrame, target: float | None, metric: ComparedMetric) -> pd.DataFrame:
    """The frame with the training seconds at which each run's metric was at `target` (shown unit) or better.

    NaN for a run that did not reach it, and where its clock went backwards.
    """
    if target is None:
        return rows
    found = []
    for run, jumps in zip(rows[RUN], rows[JUMPS], strict=True):
        there, clock = reaching(run, target, metric), run.numbers(metrics.TRAIN_SECONDS)
        known = clock[: there[0] + 1] if len(there) and not jumps else clock[:0]
        known = known[np.isfinite(known)]  # a row without the clock is at the time of the row before
        found.append(float(known[-1]) if len(known) else math.nan)
    return rows.assign(**{TO_TARGET: found})


def reaching(run: RunRecord, target: float, metric: ComparedMetric) -> np.ndarray:
    """The numbers of the rows in which the metric is at `target` (shown unit) or better."""
    values, slack = run.numbers(metric.key) * metric.factor, 1e-9 * max(1.0, abs(target))
    return np.flatnonzero((values <= target + slack) if metric.falls else (values >= target - slack))


def _seed(value: Any) -> str | None:
    """A seed as text, so that 1 and 1.0 are one; None where none is recorded."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return None if value is None or value != value else short(printable(as_text(value)))


def _started(run: RunRecord) -> float:
    """Seconds since 1970, in UTC unless the record says otherwise; infinity where that is not known."""
    began = run.started_at
    return began.replace(tzinfo=began.tzinfo or UTC).timestamp() if isinstance(began, datetime) else math.inf


def _of_data(run: RunRecord, key: str, known: str) -> float:
    """A count as recorded, else what is known of the source; NaN if neither."""
    if 1 <= (told := _summary(run, key)) <= LARGEST:
        return float(math.floor(told))
    named, limit = run.option("data.source"), run.option("data.test_limit")
    count = getattr(SOURCES.get(named), known, 0) if isinstance(named, str) else 0
    is_limit = known == "test_images" and is_number(limit) and limit > 0
    return (min(count, limit) if is_limit else count) or math.nan


def _summary(run: RunRecord, key: str) -> float:
    told = run.summary_number(key)
    return math.nan if told is None else told


def _history(run: RunRecord, key: str, reduce: Callable[[np.ndarray], Any] = np.max) -> float:
    values = run.values(key)
    values = values[np.abs(values) <= LARGEST]
    return float(reduce(values)) if len(values) else math.nan


def _figure(run: RunRecord, key: str, logged: str = "") -> float:
    """A figure as the summary has it, else the largest that was logged; NaN where neither is."""
    value = _summary(run, key)
    return value if abs(value) <= LARGEST else _history(run, logged or key)


def _last(run: RunRecord, key: str) -> float:
    """The last value logged; NaN where it was, however good the one before."""
    told = lookup(run.summary, key)
    if is_number(told) or key not in run.logged:  # not `{"max": ...}`, which is not the last
        return _summary(run, key)
    _, numbers = run.logged_numbers(key)
    return float(numbers[-1]) if len(numbers) else math.nan


def _images_per_second(run: RunRecord) -> float:
    """The median as recorded, else of the rows after warm-up."""
    found, warmup = _summary(run, metrics.THROUGHPUT_MEDIAN), run.option("log.warmup_steps")
    if abs(found) <= LARGEST:
        return found
    windows, steps = run.numbers(metrics.THROUGHPUT), run.numbers(metrics.STEP)
    if is_number(warmup) and abs(warmup) <= LARGEST:  # others' runs may log these, too
        windows = windows[~(steps <= warmup)]
    windows = windows[np.abs(windows) <= LARGEST]
    return float(np.median(windows)) if len(windows) else math.nan


def _problems(run: RunRecord, jumps: int) -> list[str]:
    """Everything that is wrong with the run's record, a sentence each."""
    found = [] if run.rows else ["No history."]
    if bad_losses := len(run.nonfinite(metrics.LOSS)):
        found.append(f"{plural(bad_losses, 'row')} with a loss that is not finite.")
    restores = run.option("training.on_nonfinite_buffers") == "restore"
    if not restores and _figure(run, metrics.NONFINITE_BUFFERS) >= 1:
        at, todo = _summary(run, metrics.NONFINITE_AT), "training.on_nonfinite_buffers=restore mends it"
        step = "" if math.isnan(at) else f" at step {at:,.0f}"
        left = f"A forward that overflowed{step} left buffers (BatchNorm's statistics) non-finite"
        found.append(f"{left}: evaluations from there on say nothing; {todo}.")
    found += ["Its clock goes backwards: it is not drawn by wall-clock time."] if jumps else []
    return [*found, *run.problems]
