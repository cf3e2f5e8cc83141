"""Everything that a run logs, declared once: training, sweeps, report, docs and tests ask this list.

A new metric is one `declare` here and the line that logs it under the constant. Only what a run keeps of
itself is declared; metrics of other people's runs are read by their names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# When a metric is logged.
ALWAYS = "every row"
INTERVAL = "every `log.every` steps"
DIAGNOSIS = "every `diagnostics.every` steps"
EPOCH_END = "every epoch"
EVALUATION = "every `eval.every` epochs"
END = "in the summary"  # alone; the summary also has the last value of each metric of the rows

HIGHER, LOWER = "higher", "lower"
SHARE = "0..1"


@dataclass(frozen=True)
class Histogram:
    """Counts of values between edges; there is one edge more than counts."""

    counts: list[int]
    edges: list[float]


@dataclass(frozen=True)
class Metric:
    """What everything else needs to know of a logged value."""

    key: str
    words: str  # in sentences and titles
    when: str
    unit: str = ""
    better: str = ""  # HIGHER or LOWER; empty: neither
    by_group: bool = False  # also for each layer group, as KEY/GROUP
    needs: str = ""  # without it there is no such value
    no_goal: str = ""  # why nothing can be optimised by it

    @property
    def title(self) -> str:
        """The words as a heading: `Throughput, images/s`."""
        unit = f", {self.unit}" if self.unit not in ("", SHARE) else ""
        return f"{self.words[0].upper()}{self.words[1:]}{unit}"


METRICS: dict[str, Metric] = {}
GPU = "a GPU"
HALF_UPDATES = "weights that are updated in half precision"


def declare(key: str, words: str, when: str, unit: str = "", **more: Any) -> str:
    """Put a metric into the list; returns its key. `more` are the further fields of Metric."""
    METRICS[key] = Metric(key, words, when, unit, **more)
    return key


def find(key: str) -> Metric | None:
    """The metric of a logged key, also of one layer group; None for what we do not log."""
    found = METRICS.get(key) or METRICS.get(key.rpartition("/")[0])
    return found if found and (found.key == key or found.by_group) else None


STEP = declare("global_step", "optimizer step", ALWAYS, "steps")
EPOCH = declare("epoch", "epoch", ALWAYS, "epochs")
ELAPSED = declare("time/elapsed_seconds", "elapsed time", ALWAYS, "s", better=LOWER)
TRAIN_SECONDS = declare("time/train_seconds", "training time", ALWAYS, "s", better=LOWER)

LOSS = declare("train/loss", "training loss", INTERVAL, better=LOWER)
ACCURACY = declare("train/accuracy", "training accuracy", INTERVAL, SHARE, better=HIGHER)
LEARNING_RATE = declare("train/learning_rate", "learning rate", INTERVAL)
SCALE = declare("amp/scale_factor", "loss scale factor", INTERVAL)
SKIPPED = declare("amp/skipped_steps", "skipped steps", INTERVAL, "steps", better=LOWER)
NONFINITE_BUFFERS = declare(
    "amp/nonfinite_buffers", "buffers left non-finite by skipped steps", INTERVAL, "buffers", better=LOWER
)
THROUGHPUT = declare("throughput/images_per_second", "throughput", INTERVAL, "images/s", better=HIGHER)
STEP_TIME = declare("throughput/step_time_ms", "step time", INTERVAL, "ms", better=LOWER)
DATA_TIME = declare("throughput/data_time_ms", "time for the batch", INTERVAL, "ms", better=LOWER)
PEAK_MEMORY = declare("memory/peak_mib", "peak memory", INTERVAL, "MiB", better=LOWER)
RESERVED_MEMORY = declare("memory/reserved_mib", "reserved memory", INTERVAL, "MiB", better=LOWER, needs=GPU)
GRADIENT_NORM = declare("grad/norm", "gradient norm", INTERVAL, needs="clipping or diagnostics")

# Shares of the gradients' elements, in all and in each layer group.
PART: dict[str, Any] = {"when": DIAGNOSIS, "unit": SHARE, "better": LOWER, "by_group": True}
UNDERFLOW = declare("grad/underflow_fraction", "gradient elements flushed to zero", **PART)
UNDERFLOW_UNSCALED = declare(
    "grad/underflow_fraction_unscaled", "gradient elements flushed at scale 1", **PART
)
OVERFLOW = declare("grad/overflow_fraction", "gradient elements that overflow", **PART)
ZEROS = declare("grad/zero_fraction", "gradient elements that are zero", **PART)
EXPONENTS = declare("grad/exponents", "gradient exponents", DIAGNOSIS, no_goal="a histogram")
# Of the weights that an optimizer updates in half precision, likewise.
LOST_UPDATES = declare(
    "update/lost_fraction", "weights whose update is lost to rounding", **PART, needs=HALF_UPDATES
)
UPDATE_SIZE = declare(
    "update/relative_size",
    "size of the update relative to the weights",
    DIAGNOSIS,
    by_group=True,
    needs=HALF_UPDATES,
)

EVAL_LOSS = declare("eval/loss", "eval loss", EVALUATION, better=LOWER)
EVAL_ACCURACY = declare("eval/accuracy", "eval accuracy", EVALUATION, SHARE, better=HIGHER)
EVAL_TOP5 = declare("eval/top5_accuracy", "eval top5 accuracy", EVALUATION, SHARE, better=HIGHER)
ENERGY = declare("energy/joules_per_image", "energy", EPOCH_END, "J/image", better=LOWER, needs=GPU)

BEST_ACCURACY = declare("best/eval_accuracy", "best eval accuracy", END, SHARE, better=HIGHER)
BEST_EPOCH = declare("best/epoch", "epoch of the best eval accuracy", END, "epochs")
THROUGHPUT_MEDIAN = declare(
    "throughput/images_per_second_median", "median throughput", END, "images/s", better=HIGHER
)
STEP_TIME_P50 = declare("throughput/step_time_ms_p50", "median step time", END, "ms", better=LOWER)
STEP_TIME_P95 = declare(
    "throughput/step_time_ms_p95", "95th percentile of the step time", END, "ms", better=LOWER
)
SCALE_COLLAPSED = declare(
    "amp/scale_collapsed_at_step",
    "step at which the loss scale collapsed",
    END,
    "steps",
    needs="a dynamic loss scale",
    no_goal="null in every run whose loss scale holds",
)
NONFINITE_AT = declare(
    "amp/nonfinite_buffers_at_step",
    "step at which buffers became non-finite",
    END,
    "steps",
    needs="a dynamic loss scale",
    no_goal="null in every run whose buffers stay finite",
)
TEST_IMAGES = declare("data/test_images", "test images", END, "images", no_goal="the same in every run")
CLASSES = declare("data/classes", "classes", END, no_goal="the same in every run")
REFUSED = declare(
    "refusal", "why it was refused", END, needs="values that a sweep chose in vain", no_goal="a sentence"
)
TEST_SET = declare("data/test_set", "fingerprint of the test split", END, no_goal="no number")
ENVIRONMENT = declare("environment", "device, driver and versions", END, no_goal="no number")
# In it: the type that the backend computes in, and what each half type's products run on on a CPU.
PRECISION_DTYPE, ARITHMETIC = "precision_dtype", "arithmetic"
EMULATED, UNKNOWN = "emulated", "unknown"  # instead of the unit that a type ran on
# Among the run's files: the class of each test image in the last evaluation, in the order of the test split.
PREDICTIONS_FILE = "predictions.npy"
