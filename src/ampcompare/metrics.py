"""The names of everything that a run logs: the schema that charts, sweeps and tests rely on (docs/metrics.md)."""

from __future__ import annotations

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
    "memory/peak_mib",
)
# When clipping or diagnostics are on.
GRADIENT = ("grad/norm",)
# Every `diagnostics.every` steps.
DIAGNOSTICS = ("grad/underflow_fraction", "grad/underflow_fraction_unscaled")
# After an epoch.
EVAL = ("eval/loss", "eval/accuracy", "eval/top5_accuracy")
ENERGY = ("energy/joules_per_image",)

HISTORY = frozenset({*CLOCK, *TRAIN, *GRADIENT, *DIAGNOSTICS, *EVAL, *ENERGY})

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
