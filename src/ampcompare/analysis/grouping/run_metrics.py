"""The metrics of a run: how each is read from a record, and how groups are compared by it."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ampcompare import metrics
from ampcompare.analysis.grouping.compared_metric import ComparedMetric, is_accuracy_name
from ampcompare.data.sources import SOURCES
from ampcompare.runs import RunRecord
from ampcompare.runs.nested import is_number, lookup

MAX_VALUE = 1e100  # larger numbers are no measurements, and their squares would overflow
SPEED, MEMORY, QUALITY, ENERGY, TIME = "speed", "memory", "quality", "energy", "time"  # the questions
THROUGHPUT, PEAK, SKIPPED, SECONDS = "images_per_second", "peak_mib", "skipped_steps", "train_seconds"
SCORE, BEST, TO_TARGET, FINAL = "quality", "best_accuracy", "seconds_to_target", "final_accuracy"
EPOCHS, STEPS, IMAGES, CLASSES, CHANCE = "epochs", "steps", "test_images", "classes", "chance"


@dataclass(frozen=True)
class RunMetric:
    """A number that each run has.

    Attributes:
        column: Its name in the table of runs and in files.
        of: Reads it from a record, NaN if it was not recorded.
        question: The question that compares groups by it, "" if none does.
        sides: The words for an interval above and below no change. None if nothing is claimed.
        is_ratio: Whether groups are compared by the ratio of geometric means, and not by the difference.
        is_timed: Whether other work on the machine changes it.
        is_of_seed: Whether the seed decides it, so that a repeat with the same seed is no second measurement.
    """

    column: str
    of: Callable[[RunRecord, ComparedMetric], float]
    question: str = ""
    sides: tuple[str, str] | None = None
    is_ratio: bool = True
    is_timed: bool = False
    is_of_seed: bool = False

    @property
    def null(self) -> float:
        """The result of a comparison without any change."""
        return 1.0 if self.is_ratio else 0.0

    def value_of(self, run: RunRecord, metric: ComparedMetric) -> float:
        """Return the value of a run; NaN if it was not recorded, or is no valid measurement."""
        value = self.of(run, metric)
        minimum = 1 / MAX_VALUE if self.question and self.is_ratio else -MAX_VALUE
        return value if minimum <= value <= MAX_VALUE else math.nan


def summary_or_maximum(run: RunRecord, key: str, logged: str = "") -> float:
    """Return the value in the summary, else the largest logged value; NaN without either."""
    value = summary_value(run, key)
    return value if abs(value) <= MAX_VALUE else _maximum(run, logged or key)


def skipped_steps(run: RunRecord, _: ComparedMetric | None = None) -> float:
    """Return how many steps a run skipped; NaN if the record does not tell, or not of every step."""
    logged = run.logged_numbers(metrics.SKIPPED)[1]
    return math.nan if np.isnan(logged).any() else summary_or_maximum(run, metrics.SKIPPED)


def summary_value(run: RunRecord, key: str) -> float:
    """Return a number of the summary, NaN if it has none."""
    value = run.summary_number(key)
    return math.nan if value is None else value


def _maximum(run: RunRecord, key: str) -> float:
    values = _sound(run.values(key))
    return float(np.max(values)) if len(values) else math.nan


def _median(values: np.ndarray) -> float:
    values = _sound(values)
    return float(np.median(values)) if len(values) else math.nan


def _sound(values: np.ndarray) -> np.ndarray:
    """Return the values that are measurements: no NaN, and none beyond MAX_VALUE."""
    return values[np.abs(values) <= MAX_VALUE]


def _last(run: RunRecord, key: str) -> float:
    """Return the last logged value; NaN if that was NaN, even after a valid value."""
    in_summary = lookup(run.summary, key)
    if is_number(in_summary) or key not in run.logged:  # a summary `{"max": ...}` is not the last value
        return summary_value(run, key)
    _, numbers = run.logged_numbers(key)
    return float(numbers[-1]) if len(numbers) else math.nan


def _score(run: RunRecord, metric: ComparedMetric) -> float:
    """Return the last value of the metric, or its best one, in the shown unit."""
    values = _sound(run.values(metric.key))
    if metric.is_best and len(values):
        best = values.min() if metric.lower_is_better else values.max()
        return float(best) * metric.factor
    return _last(run, metric.key) * metric.factor


def _throughput(run: RunRecord, _: ComparedMetric) -> float:
    """Return the throughput of all processes: the recorded median, else that of the rows after warm-up."""
    recorded = summary_value(run, metrics.THROUGHPUT_MEDIAN)
    if abs(recorded) <= MAX_VALUE:
        return recorded
    windows = run.numbers(metrics.THROUGHPUT)
    warmup = run.option("log.warmup_steps")
    if is_number(warmup) and abs(warmup) <= MAX_VALUE:  # other programs may log these keys, too
        windows = windows[~(run.numbers(metrics.STEP) <= warmup)]
    return _median(windows)


def _best(run: RunRecord, _: ComparedMetric) -> float:
    value = summary_or_maximum(run, metrics.BEST_ACCURACY, metrics.EVAL_ACCURACY)
    return value if 0 <= value <= 1 else math.nan  # another program may log percent


def _seconds_in_all(run: RunRecord, _: ComparedMetric) -> float:
    return math.nan if count_clock_jumps(run) else _maximum(run, metrics.ELAPSED)


def _seconds_per_epoch(run: RunRecord, _: ComparedMetric) -> float:
    epochs = _maximum(run, metrics.EPOCH)
    return summary_or_maximum(run, metrics.TRAIN_SECONDS) / epochs if epochs >= 1 else math.nan


def _of_data(run: RunRecord, key: str, attribute: str) -> float:
    """Return a count as recorded, else as known for the data source; NaN without either."""
    recorded = summary_value(run, key)
    if 1 <= recorded <= MAX_VALUE:
        return float(math.floor(recorded))
    source = run.option("data.source")
    count = getattr(SOURCES.get(source), attribute, 0) if isinstance(source, str) else 0
    limit = run.option("data.test_limit")
    if attribute == "test_images" and is_number(limit) and limit > 0:
        count = min(count, limit)
    return count or math.nan


def _chance(run: RunRecord, metric: ComparedMetric) -> float:
    """Return the accuracy of guessing without looking at the inputs, 0..1.

    It is that of always guessing the commonest class of the test set, if its fraction is recorded, else
    1/classes; at least k/classes for a top-k accuracy. 0 if neither is known, or if the metric is no accuracy
    of a classification.
    """
    if not (metric.is_accuracy and is_accuracy_name(metric.key)):
        return 0.0
    top_k = re.search(r"top[_-]?(\d{1,6})", metric.key.lower())
    guesses = int(top_k[1]) if top_k else 1
    classes = _of_data(run, metrics.CLASSES, "classes")
    by_count = min(1.0, guesses / classes) if classes >= 1 else 0.0
    commonest = summary_value(run, metrics.COMMONEST_CLASS)
    return max(by_count, commonest) if 0 < commonest <= 1 else by_count


def count_clock_jumps(run: RunRecord) -> int:
    """Return how often the run's clock went backwards."""
    clock = run.values(metrics.ELAPSED)
    return int((np.diff(clock[np.isfinite(clock)]) < 0).sum())


def seconds_to_target(run: RunRecord, metric: ComparedMetric) -> float:
    """Return the training time in seconds, without start-up, at which the metric reached its target.

    If the record does not separate start-up (`separates_startup`), the time includes it. NaN if the run did
    not reach the target, or if its clock went backwards.
    """
    reached = rows_at_target(run, metric)
    if not len(reached) or count_clock_jumps(run):
        return math.nan
    clock = run.numbers(metrics.TRAIN_SECONDS)
    if separates_startup(run):
        clock = clock - run.numbers(metrics.STARTUP_SECONDS)
    times = clock[: reached[0] + 1]
    times = times[np.isfinite(times)]  # a row without a clock has the time of the row before it
    return float(times[-1]) if len(times) else math.nan


def separates_startup(run: RunRecord) -> bool:
    """Return whether the record has the part of its training time that was start-up."""
    return metrics.STARTUP_SECONDS in run.logged


def rows_at_target(run: RunRecord, metric: ComparedMetric) -> np.ndarray:
    """Return the numbers of the rows in which the metric is at its target or better."""
    target = metric.target
    if target is None:
        return np.empty(0, int)
    sign = -1 if metric.lower_is_better else 1
    values = sign * run.numbers(metric.key) * metric.factor
    return np.flatnonzero(values >= sign * target - 1e-9 * max(1.0, abs(target)))


# In the order of the export files. Memory is the peak allocation of the device, or the resident memory
# of the process on a CPU. The score is the last value of the compared metric in the shown unit.
RUN_METRICS = (
    RunMetric(THROUGHPUT, _throughput, SPEED, ("faster", "slower"), is_timed=True),
    RunMetric("step_time_ms_p50", lambda run, _: summary_value(run, metrics.STEP_TIME_P50), is_timed=True),
    RunMetric(
        PEAK, lambda run, _: summary_or_maximum(run, metrics.PEAK_MEMORY), MEMORY, ("larger", "smaller")
    ),
    RunMetric("joules_per_image", lambda run, _: _median(run.values(metrics.ENERGY)), ENERGY, is_timed=True),
    RunMetric(SKIPPED, skipped_steps, is_ratio=False, is_of_seed=True),
    RunMetric(SECONDS, lambda run, _: summary_or_maximum(run, metrics.TRAIN_SECONDS), is_timed=True),
    RunMetric(
        SCORE,
        _score,
        QUALITY,
        ("better", "worse"),
        is_ratio=False,
        is_of_seed=True,
    ),
    RunMetric(BEST, _best, is_ratio=False, is_of_seed=True),
    RunMetric(TO_TARGET, seconds_to_target, TIME, is_timed=True),
)
# Other values of a run. Publications report some of them: the time with evaluations, the time of an
# epoch, and the last accuracy (0..1).
OTHER_METRICS = (
    RunMetric("step_time_ms_p95", lambda run, _: summary_value(run, metrics.STEP_TIME_P95), is_timed=True),
    RunMetric(EPOCHS, lambda run, _: _maximum(run, metrics.EPOCH)),
    RunMetric(STEPS, lambda run, _: _maximum(run, metrics.STEP)),
    RunMetric(IMAGES, lambda run, _: _of_data(run, metrics.TEST_IMAGES, "test_images")),
    RunMetric(CLASSES, lambda run, _: _of_data(run, metrics.CLASSES, "classes")),
    RunMetric(CHANCE, _chance),
    RunMetric("seconds_in_all", _seconds_in_all, is_timed=True),
    RunMetric("seconds_per_epoch", _seconds_per_epoch, is_timed=True),
    RunMetric(FINAL, lambda run, _: _last(run, metrics.EVAL_ACCURACY), is_of_seed=True),
)
METRICS_BY_COLUMN = {run_metric.column: run_metric for run_metric in (*RUN_METRICS, *OTHER_METRICS)}
COMPARED_METRICS = {run_metric.question: run_metric for run_metric in RUN_METRICS if run_metric.question}
