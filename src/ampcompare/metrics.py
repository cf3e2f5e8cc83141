"""Everything that a run logs, declared once: training, sweeps, report, docs and tests ask this list.

A new metric is one `declare` here and the line that logs it under the constant. Only what a run keeps of
itself is declared; metrics of other people's runs are read by their names.
"""

import re
from dataclasses import dataclass
from typing import Any

# When a metric is logged.
ALWAYS = "every row"
INTERVAL = "interval"  # of `log.every` steps
SKIP = "skipped step"
DIAGNOSIS = "look"  # every `diagnostics.every` steps
EPOCH_END = "epoch"
EVALUATION = "evaluation"
END = "summary"  # alone; the summary also has the last value of each metric of the rows

HIGHER, LOWER = "higher", "lower"
FRACTION = "0..1"


@dataclass(frozen=True)
class Histogram:
    """Counts of values between edges; there is one edge more than counts."""

    counts: list[int]
    edges: list[float]


@dataclass(frozen=True)
class Metric:
    """What everything else needs to know of a logged value."""

    key: str
    label: str  # in sentences and titles
    when: str
    unit: str = ""
    better: str = ""  # HIGHER or LOWER; empty: neither
    by_group: bool = False  # also for each layer group, as KEY/GROUP
    needs: str = ""  # without it there is no such value
    no_goal: str = ""  # why nothing can be optimised by it

    @property
    def title(self) -> str:
        """The words as a heading: `Throughput, images/s`."""
        unit = f", {self.unit}" if self.unit not in ("", FRACTION) else ""
        return f"{self.label[0].upper()}{self.label[1:]}{unit}"


METRICS: dict[str, Metric] = {}
GPU = "a GPU"
SKIPPED_STEP = "a skipped step"
OF_TASK = "a task that is scored by it"
EAGER = "a forward that is not compiled"
HALF_UPDATES = "weights that are updated in half precision"


def declare(key: str, label: str, when: str, unit: str = "", **more: Any) -> str:
    """Put a metric into the list; returns its key. `more` are the further fields of Metric."""
    METRICS[key] = Metric(key, label, when, unit, **more)
    return key


def find(key: str) -> Metric | None:
    """The metric of a logged key, also of one layer group; None for what we do not log."""
    found = METRICS.get(key) or METRICS.get(key.rpartition("/")[0])
    return found if found and (found.key == key or found.by_group) else None


# What a metric that nobody declared is judged by: parts of its name, and whole words in it.
_LOWER_IS_BETTER = re.compile(
    r"loss|error|perplexity|seconds|joules|miss_rate|bits_per|false_(posi|nega)tive|negative_log_likelihood"
    r"|(?<![^_])(time|mib|err|r?mse|mae|mape|ppl|nll|bp[bcp]|[wct]er|[fk]id|ece|brier|ce|xent|entropy|kl|cost"
    r"|divergence|distance|regret|residual|lpips|f[pn]r|far|frr|eer)(?![^_])"
)
_HIGHER_IS_BETTER = re.compile(
    r"accuracy|precision|recall|score|reward|auroc|auprc|bleu|rouge|true_(posi|nega)tive"
    r"|(?<![^_])(acc[15]?|top[15]|f1|auc|m?ap|map\d\d|m?iou|t[pn]r|dice|r2|psnr|ssim|mcc|kappa|em|ndcg|mrr|pearson"
    r"|spearman|corr(elation)?|return|success|win|hits?|meteor|cider|chrf|specificity|sensitivity|jaccard)(?![^_])"
)
_NEGATIONS = {"neg", "negative", "negated"}  # turns round what it stands by
_NOT_NEGATED_WITH = {"rate", "log", "likelihood", "nll", "true", "false"}  # false negatives; -log p


def guess_direction(key: str) -> str:
    """HIGHER or LOWER, as the name of a metric says it: `word_error`, `val_acc`, `neg_mean_squared_error`;
    else nothing.
    """
    for text in (re.split(r"[/.]", key)[-1], key):  # `accuracy/loss` is a loss
        words = split_words(text)
        turned = bool(_NEGATIONS & {*words}) and not _NOT_NEGATED_WITH & {*words}
        name = "_".join(word for word in words if not turned or word not in _NEGATIONS)
        if _LOWER_IS_BETTER.search(name):
            return HIGHER if turned else LOWER
        if _HIGHER_IS_BETTER.search(name):
            return LOWER if turned else HIGHER
    return ""


def split_words(key: str) -> list[str]:
    """The words that a name is made of: of `valAcc` and `val_acc` the same."""
    joined = re.sub(r"(?<![a-zA-Z])m(?=(?:IoU|AP)(?![a-z]))", "M", key).replace("IoU", "IOU")
    return re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", joined).lower())


EVAL_PREFIX = "eval/"  # and the name of a score: what an evaluation logs of it


def make_best_key(key: str) -> str:
    """Under which key the summary has the best of a metric's evaluations: `best/eval_accuracy`."""
    return f"best/{key.replace('/', '_')}"


STEP = declare("global_step", "optimizer step", ALWAYS, "steps")
EPOCH = declare("epoch", "epoch", ALWAYS, "epochs")
ELAPSED = declare("time/elapsed_seconds", "elapsed time", ALWAYS, "s", better=LOWER)
TRAIN_SECONDS = declare("time/train_seconds", "training time", ALWAYS, "s", better=LOWER)

LOSS = declare("train/loss", "training loss", INTERVAL, better=LOWER)
ACCURACY = declare("train/accuracy", "training accuracy", INTERVAL, FRACTION, better=HIGHER)
LEARNING_RATE = declare("train/learning_rate", "learning rate", INTERVAL)
SCALE = declare("amp/scale_factor", "loss scale factor", INTERVAL)
SKIPPED = declare("amp/skipped_steps", "skipped steps", INTERVAL, "steps", better=LOWER)
NONFINITE_BUFFERS = declare(
    "amp/nonfinite_buffers", "buffers left non-finite by skipped steps", INTERVAL, "buffers", better=LOWER
)
NONFINITE_MODULE = declare(
    "amp/nonfinite_module",
    "module with the first non-finite gradient",
    SKIP,
    needs=SKIPPED_STEP,
    no_goal="a name",
)
THROUGHPUT = declare("throughput/images_per_second", "throughput", INTERVAL, "images/s", better=HIGHER)
STEP_TIME = declare("throughput/step_time_ms", "step time", INTERVAL, "ms", better=LOWER)
DATA_TIME = declare("throughput/data_time_ms", "time for the batch", INTERVAL, "ms", better=LOWER)
PEAK_MEMORY = declare("memory/peak_mib", "peak memory", INTERVAL, "MiB", better=LOWER)
RESERVED_MEMORY = declare("memory/reserved_mib", "reserved memory", INTERVAL, "MiB", better=LOWER, needs=GPU)
GRADIENT_NORM = declare("grad/norm", "gradient norm", INTERVAL, needs="clipping or diagnostics")

# Shares of the gradients' elements, in all and in each layer group.
_FRACTION: dict[str, Any] = {"when": DIAGNOSIS, "unit": FRACTION, "better": LOWER, "by_group": True}
UNDERFLOW = declare("grad/underflow_fraction", "gradient elements flushed to zero", **_FRACTION)
UNDERFLOW_UNSCALED = declare(
    "grad/underflow_fraction_unscaled", "gradient elements flushed at scale 1", **_FRACTION
)
OVERFLOW = declare("grad/overflow_fraction", "gradient elements that overflow", **_FRACTION)
ZEROS = declare("grad/zero_fraction", "gradient elements that are zero", **_FRACTION)
EXPONENTS = declare("grad/exponents", "gradient exponents", DIAGNOSIS, no_goal="a histogram")
# Of the weights that an optimizer updates in half precision, likewise.
LOST_UPDATES = declare(
    "update/lost_fraction", "weights whose update is lost to rounding", **_FRACTION, needs=HALF_UPDATES
)

# Of what the network's modules return, likewise.
_ACTIVATION: dict[str, Any] = {"when": DIAGNOSIS, "needs": EAGER}
ACTIVATION_LARGEST = declare(
    "activation/max_abs", "largest activation", **_ACTIVATION, better=LOWER, by_group=True
)
ACTIVATION_SUBNORMAL = declare(
    "activation/subnormal_fraction",
    "activations below fp16's smallest normal number",
    **_FRACTION,
    needs=EAGER,
)

EVAL_LOSS = declare("eval/loss", "eval loss", EVALUATION, better=LOWER)
EVAL_ACCURACY = declare("eval/accuracy", "eval accuracy", EVALUATION, FRACTION, better=HIGHER)
EVAL_TOP5 = declare("eval/top5_accuracy", "eval top5 accuracy", EVALUATION, FRACTION, better=HIGHER)
EVAL_MSE = declare("eval/mse", "eval MSE", EVALUATION, better=LOWER, needs=OF_TASK)
EVAL_MAE = declare("eval/mae", "eval MAE", EVALUATION, better=LOWER, needs=OF_TASK)
ENERGY = declare("energy/joules_per_image", "energy", EPOCH_END, "J/image", better=LOWER, needs=GPU)

BEST_ACCURACY = declare(make_best_key(EVAL_ACCURACY), "best eval accuracy", END, FRACTION, better=HIGHER)
for _key in (EVAL_LOSS, EVAL_TOP5, EVAL_MSE, EVAL_MAE):  # where it is the one that is compared
    _of = METRICS[_key]
    declare(make_best_key(_key), f"best {_of.label}", END, _of.unit, better=_of.better, needs=OF_TASK)
BEST_EPOCH = declare("best/epoch", "epoch of the best evaluation", END, "epochs")
THROUGHPUT_MEDIAN = declare(
    "throughput/images_per_second_median", "median throughput", END, "images/s", better=HIGHER
)
STEP_TIME_P50 = declare("throughput/step_time_ms_p50", "median step time", END, "ms", better=LOWER)
STEP_TIME_P95 = declare(
    "throughput/step_time_ms_p95", "95th percentile of the step time", END, "ms", better=LOWER
)
_SCALE_EVENT: dict[str, Any] = {"when": END, "unit": "steps", "needs": "a dynamic loss scale"}
SCALE_COLLAPSED = declare(
    "amp/scale_collapsed_at_step",
    "step at which the loss scale collapsed",
    **_SCALE_EVENT,
    no_goal="null in every run whose loss scale holds",
)
NONFINITE_AT = declare(
    "amp/nonfinite_buffers_at_step",
    "step at which buffers became non-finite",
    **_SCALE_EVENT,
    no_goal="null in every run whose buffers stay finite",
)
NONFINITE_MODULES = declare(
    "amp/nonfinite_modules",
    "modules with the first non-finite gradient, and how often",
    END,
    needs=SKIPPED_STEP,
    no_goal="a line of names",
)
TEST_IMAGES = declare("data/test_images", "test images", END, "images", no_goal="the same in every run")
CLASSES = declare("data/classes", "classes", END, no_goal="the same in every run")
REFUSED = declare(
    "refusal", "why it was refused", END, needs="values that a sweep chose in vain", no_goal="a sentence"
)
RESUMED_INEXACTLY = declare(
    "data/resumed_inexactly",
    "whether it went on within an epoch of a loader of one's own, whose batches may be others",
    END,
    needs="a resume within such an epoch",
    no_goal="no number",
)
TEST_SET = declare("data/test_set", "fingerprint of the test split", END, no_goal="no number")
ENVIRONMENT = declare("environment", "device, driver and versions", END, no_goal="no number")
# Keys of the environment. TASK: what a network is scored by, `{"metric": KEY, "metrics": {KEY: {"words": ...,
# "better": ...}}}` (the compared metric, and all). PRECISION_DTYPE: the dtype that the backend computes in.
# ARITHMETIC: on a CPU, what each 16-bit dtype's products run on. FP32_OPERATIONS: the ATen operations of the
# backend's dtype that the training computed in fp32 (`precision.cpu_arithmetic`).
TASK, PRECISION_DTYPE, ARITHMETIC = "task", "precision_dtype", "arithmetic"
FP32_OPERATIONS = "fp32_operations"
KEPT_FP32 = "kept_fp32"  # the modules that `precision.keep_fp32` has kept, by their names
MODEL_PARAMETERS = "model_parameters"  # likewise: of a network from elsewhere
# Values of ARITHMETIC beside a unit's name. COMPUTED_IN_FP32: by `precision.cpu_arithmetic`. EMULATED: by
# PyTorch's own kernels without a unit for the dtype, and in records of version 0.2.
COMPUTED_IN_FP32 = "fp32"
EMULATED, UNKNOWN = "emulated", "unknown"
