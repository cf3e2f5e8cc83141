"""The figures of one run, from its summary, or its history where the summary has none (a crashed run)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ampcompare import metrics
from ampcompare.data.sources import SOURCES, Source
from ampcompare.precision.backends import REGISTRY
from ampcompare.records import RunRecord
from ampcompare.records.tree import as_text, lookup
from ampcompare.report.palette import in_type, meaning
from ampcompare.report.runs.ending import Outcome, outcome_of
from ampcompare.report.runs.metric import DEFAULT_METRIC, Unit
from ampcompare.report.runs.steadiness import Steadiness, steadiness
from ampcompare.report.words import plural, printable, short

LARGEST = 1e100  # what is larger is no measurement, and could not be squared or added up
NO_DEVICE = "device not recorded"
# Attributes of RunFigures of which a group has a mean over its seeds, and those of which it has a median.
MEANS = (
    "images_per_second",
    "step_time_ms_p50",
    "peak_mib",
    "joules_per_image",
    "skipped_steps",
    "train_seconds",
    "quality",
    "best_accuracy",
    "seconds_to_target",
)
# Those of them that a seed decides: what is run again with the same seed is no second measurement. Of all
# others, which are figures of a machine at work, each process is one.
OF_THE_SEED = frozenset({"skipped_steps", "quality", "best_accuracy"})
# And those in which others at work on the same card or CPU tell.
TIMED = frozenset(
    {"images_per_second", "step_time_ms_p50", "joules_per_image", "train_seconds", "seconds_to_target"}
)
MOST_SHARED = 0.2  # of a run's training; with less, its median and its seconds are still its own
MEDIANS = ("step_time_ms_p50", "step_time_ms_p95", "skipped_steps", "train_seconds")


@dataclass(frozen=True)
class RunFigures:
    """What a run comes down to. None is not recorded.

    Accuracies are fractions 0..1 on the test split, throughput global images per second of training,
    `peak_mib` the device's peak allocation (on a CPU the process's resident memory), `nan_losses` the number
    of rows in which the training loss was NaN or infinite and `nan_from` the first such `global_step`.
    `quality` is the last value of the metric that is compared, None also where that value is NaN.
    `clock_jumps` counts the rows whose wall clock is behind that of the row before. `seconds_to_target` is
    the training time until the metric reached the `Analysis`' target. `test_images` and `classes` are those
    of the data, `metric` is the key of the compared one, `steps` the last `global_step`. `overlap` is the
    share of its training in which other runs of the set were on its card (shared.py). `settings` are those
    that tell a run of another program apart (foreign/settings.py); None of our own, whose options say that;
    `aside` are settings beside these that tell nothing.
    `unit` says how the values of the compared metric are read; None leaves it to the name.
    """

    run: RunRecord
    label: str
    seed: Any
    device: str
    device_type: str
    rows: int
    epochs: float | None
    best_accuracy: float | None
    best_epoch: float | None
    images_per_second: float | None
    step_time_ms_p50: float | None
    step_time_ms_p95: float | None
    peak_mib: float | None
    skipped_steps: float | None
    train_seconds: float | None
    nan_losses: int
    nan_from: float | None
    quality: float | None = None
    joules_per_image: float | None = None
    clock_jumps: int = 0
    seconds_to_target: float | None = None
    test_images: int | None = None
    classes: int | None = None
    metric: str = DEFAULT_METRIC
    unit: Unit | None = None
    steps: float | None = None
    overlap: float | None = None
    settings: Mapping[str, str] | None = None
    aside: frozenset[str] = frozenset()

    @property
    def shares_machine(self) -> bool:
        """Whether other runs of the set were on its card so long that its times are not its own."""
        return self.overlap is not None and self.overlap > MOST_SHARED

    @property
    def outcome(self) -> Outcome:
        """How the run ended."""
        return self._ending[0]

    @property
    def why(self) -> str:
        """Why it is said that it failed, was stopped or refused; nothing for a run that finished."""
        return self._ending[1]

    @cached_property
    def _ending(self) -> tuple[Outcome, str]:
        return outcome_of(self.run, self.metric or DEFAULT_METRIC)

    @cached_property
    def steadiness(self) -> Steadiness:
        """Whether its throughput stalled or drifted."""
        return steadiness(self.run.numbers(metrics.THROUGHPUT)[steady_rows(self.run)])

    @property
    def device_words(self) -> str:
        """`NVIDIA A100 (CUDA)`."""
        if not self.device:
            return NO_DEVICE
        return f"{self.device} ({self.device_type.upper()})" if self.device_type else self.device

    @property
    def problems(self) -> list[str]:
        """Everything that is wrong with the run's record, a sentence each."""
        found = [] if self.rows else ["No history."]
        if self.nan_losses:
            found.append(f"{plural(self.nan_losses, 'row')} with a loss that is not finite.")
        if self.clock_jumps:
            found.append("Its clock goes backwards.")
        return [*found, *self.run.problems]


def label_of(run: RunRecord) -> str:
    """The name under which a run is compared: its backend, a plug-in's by its own label."""
    # Records of others may hold anything.
    said = (environment_of(run).get("backend_label"), run.option("backend"), "unknown")
    return next(printable(text) for text in said if isinstance(text, str) and text.strip())


def dtype_of(run: RunRecord) -> str | None:
    """The type that a run computed in, as far as record or backend say."""
    if declared := REGISTRY.get(str(run.option("backend"))):
        return declared.dtype
    recorded = environment_of(run)
    said = (recorded.get(metrics.PRECISION_DTYPE), recorded.get("backend_type"))
    return next((short(printable(dtype)) for dtype in said if isinstance(dtype, str) and dtype), None)


def words_of(run: RunRecord) -> str:
    """What the backend of a run says of itself, as far as that is known."""
    if built_in := REGISTRY.get(str(run.option("backend"))):
        return meaning(built_in)
    words, dtype = environment_of(run).get("backend_words"), dtype_of(run)
    return in_type(str(words), dtype) if words and dtype else ""


def environment_of(run: RunRecord) -> Mapping[str, Any]:
    """The machine and software of a run: from its summary, or its config for a run that did not end."""
    for holder in (run.summary, run.config):
        environment = holder.get(metrics.ENVIRONMENT)
        if isinstance(environment, Mapping) and environment:
            return environment
    return {}


def figures_of(run: RunRecord, metric: str = DEFAULT_METRIC) -> RunFigures:
    """The figures of a run; `metric` is the key of the one that is compared."""
    environment = environment_of(run)
    best, best_epoch = _best_accuracy(run)
    nan_losses, nan_from = _bad_losses(run)
    return RunFigures(
        run=run,
        label=label_of(run),
        seed=run.option("seed"),
        device=as_text(environment.get("device_name") or ""),
        device_type=as_text(environment.get("device_type") or "").lower(),
        rows=run.rows,
        epochs=_history(run, metrics.EPOCH, np.max),
        best_accuracy=best,
        best_epoch=best_epoch,
        images_per_second=_images_per_second(run),
        step_time_ms_p50=_summary(run, metrics.STEP_TIME_P50),
        step_time_ms_p95=_summary(run, metrics.STEP_TIME_P95),
        peak_mib=_figure(run, metrics.PEAK_MEMORY, np.max),
        skipped_steps=_figure(run, metrics.SKIPPED, np.max),
        train_seconds=_figure(run, metrics.TRAIN_SECONDS, np.max),
        nan_losses=nan_losses,
        nan_from=nan_from,
        quality=_last_of(run, metric),
        joules_per_image=_history(run, metrics.ENERGY, np.median),
        clock_jumps=_clock_jumps(run),
        test_images=_test_images(run),
        classes=_classes(run),
        metric=metric,
        steps=_history(run, metrics.STEP, np.max),
    )


def steady_rows(run: RunRecord) -> np.ndarray:
    """Mask of the rows timed after warm-up. Our own runs log no other; those of others may."""
    warmup = run.option("log.warmup_steps")
    if metrics.STEP not in run.logged or not isinstance(warmup, int | float) or abs(warmup) > LARGEST:
        return np.ones(run.rows, dtype=bool)
    return ~(run.numbers(metrics.STEP) <= warmup)


def _test_images(run: RunRecord) -> int | None:
    """How many images an evaluation is of: as recorded, else what is known of the source; None if neither."""
    if (recorded := _whole(run.summary_number(metrics.TEST_IMAGES))) is not None:
        return recorded
    source, limit = _source(run), run.option("data.test_limit")
    if source is None or not source.test_images:
        return None
    is_limited = isinstance(limit, int) and not isinstance(limit, bool) and 0 < limit < source.test_images
    return limit if is_limited else source.test_images


def _classes(run: RunRecord) -> int | None:
    """How many classes the data have: as recorded, else what is known of the source; None if neither."""
    recorded, source = _whole(run.summary_number(metrics.CLASSES)), _source(run)
    return recorded or (source.classes if source and source.classes else None)


def _source(run: RunRecord) -> Source | None:
    named = run.option("data.source")
    return SOURCES.get(named) if isinstance(named, str) else None


def _whole(value: float | None) -> int | None:
    """A count above 0; None for anything else."""
    return int(value) if value is not None and math.isfinite(value) and value >= 1 else None


def _measured(value: float | None) -> float | None:
    """The figure if it can be one: nothing is that large, and what is that small is 0."""
    if value is None or not abs(value) <= LARGEST:  # nor NaN
        return None
    return 0.0 if abs(value) < 1 / LARGEST else value


def _last_of(run: RunRecord, key: str) -> float | None:
    """The last value logged; None where it was NaN, however good the one before."""
    told = lookup(run.summary, key)
    if isinstance(told, int | float) or key not in run.logged:  # not `{"max": ...}`, which is not the last
        return _summary(run, key)
    _, numbers = run.logged_numbers(key)
    return _measured(float(numbers[-1])) if len(numbers) else None


def _images_per_second(run: RunRecord) -> float | None:
    if (found := _summary(run, metrics.THROUGHPUT_MEDIAN)) is None:
        windows = run.numbers(metrics.THROUGHPUT)[steady_rows(run)]
        windows = windows[np.abs(windows) <= LARGEST]
        found = float(np.median(windows)) if len(windows) else None
    return found if found and found >= 1 / LARGEST else None


def _summary(run: RunRecord, key: str) -> float | None:
    return _measured(run.summary_number(key))


def _history(run: RunRecord, key: str, reduce: Callable[[np.ndarray], Any]) -> float | None:
    values = run.values(key)
    values = values[np.abs(values) <= LARGEST]
    return _measured(float(reduce(values))) if len(values) else None


def _figure(run: RunRecord, key: str, reduce: Callable[[np.ndarray], Any]) -> float | None:
    value = _summary(run, key)
    return _history(run, key, reduce) if value is None else value


def _best_accuracy(run: RunRecord) -> tuple[float | None, float | None]:
    if (best := _summary(run, metrics.BEST_ACCURACY)) is not None:
        return best, _summary(run, metrics.BEST_EPOCH)
    if metrics.EVAL_ACCURACY not in run.logged or not len(run.values(metrics.EVAL_ACCURACY)):
        return None, None
    accuracy = run.numbers(metrics.EVAL_ACCURACY)
    row = int(np.nanargmax(accuracy))
    epoch = run.numbers(metrics.EPOCH)[row] if metrics.EPOCH in run.logged else math.nan
    return float(accuracy[row]), None if math.isnan(epoch) else float(epoch)


def _clock_jumps(run: RunRecord) -> int:
    """Rows that are logged after the fact have an older step; a jump of the clock is told by time."""
    clock = run.values(metrics.ELAPSED)
    return int((np.diff(clock[np.isfinite(clock)]) < 0).sum())


def _bad_losses(run: RunRecord) -> tuple[int, float | None]:
    """How many logged losses were NaN or infinite, and the first step of them."""
    rows = run.nonfinite(metrics.LOSS)
    if not len(rows):
        return 0, None
    step = float(run.numbers(metrics.STEP)[rows[0]])
    return len(rows), None if math.isnan(step) else step
