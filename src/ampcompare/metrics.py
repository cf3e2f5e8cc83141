"""The names of everything that a run logs: the schema that charts, sweeps and tests rely on
(docs/metrics.md).
"""

from __future__ import annotations

from dataclasses import dataclass

STEP = "global_step"
# On every row.
CLOCK = (STEP, "epoch", "time/elapsed_seconds", "time/train_seconds")
# Every `log.every` steps; throughput and step time from the end of warm-up.
TRAIN = (
    "train/loss",
    "train/accuracy",
    "train/learning_rate",
    "amp/scale_factor",
    "amp/skipped_steps",
    "throughput/images_per_second",
    "throughput/step_time_ms",
    "throughput/data_time_ms",
    "memory/peak_mib",
)
# With them on a GPU.
GPU = ("memory/reserved_mib",)
# When clipping or diagnostics are on.
GRADIENT = ("grad/norm",)
# Every `diagnostics.every` steps; the fractions also for each layer group, as
# `grad/underflow_fraction/layer1`.
DIAGNOSTICS = (
    "grad/underflow_fraction",
    "grad/underflow_fraction_unscaled",
    "grad/overflow_fraction",
    "grad/zero_fraction",
    "grad/exponents",
)
# After an epoch.
EVAL = ("eval/loss", "eval/accuracy", "eval/top5_accuracy")
ENERGY = ("energy/joules_per_image",)


@dataclass(frozen=True)
class Histogram:
    """Counts of values between edges; there is one edge more than counts."""

    counts: list[int]
    edges: list[float]


HISTORY = frozenset({*CLOCK, *TRAIN, *GPU, *GRADIENT, *DIAGNOSTICS, *EVAL, *ENERGY})

# In the summary of a finished run, beside the last value of each metric.
SUMMARY = frozenset(
    {
        "best/eval_accuracy",
        "best/epoch",
        "throughput/images_per_second_median",
        "throughput/step_time_ms_p50",
        "throughput/step_time_ms_p95",
        "environment",
    }
)


def is_history(key: str) -> bool:
    """Whether a run's rows may hold this key."""
    return key in HISTORY or key.rpartition("/")[0] in DIAGNOSTICS
