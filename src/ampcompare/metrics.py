"""The declarations of all metrics that a run logs, used by training, sweeps, report, docs and tests.

A new metric needs one `declare` here and a line that logs it under the constant. Metrics of other programs
are not declared; they are read by their names.
"""

import re
from dataclasses import dataclass
from typing import Any

# When a metric is logged.
ALWAYS = "every row"
INTERVAL = "interval"  # of `log.every` steps
SKIP = "skipped step"
DIAGNOSIS = "diagnostic step"  # every `diagnostics.every` steps
EPOCH_END = "epoch"
EVALUATION = "evaluation"
END = "summary"  # in the summary only; the summary also has the last value of every other metric

# Directions: which values of a metric are better.
HIGHER = "higher"
LOWER = "lower"
FRACTION = "0..1"


@dataclass(frozen=True)
class Histogram:
    """A histogram of values.

    Attributes:
        counts: The number of values in each bin.
        edges: The edges of the bins, one more than there are counts.
    """

    counts: list[int]
    edges: list[float]


@dataclass(frozen=True)
class Metric:
    """The declaration of a metric.

    Attributes:
        key: The key of rows and summaries.
        label: The metric's name in sentences and titles.
        when: When it is logged: ALWAYS, INTERVAL, SKIP, DIAGNOSIS, EPOCH_END, EVALUATION or END.
        unit: The unit, FRACTION for a fraction.
        better: HIGHER, LOWER, or "" for neither.
        by_group: Whether it is also logged for each layer group, as KEY/GROUP.
        needs: A condition without which it is not logged.
        no_goal: Why a sweep cannot optimise it.
    """

    key: str
    label: str
    when: str
    unit: str = ""
    better: str = ""
    by_group: bool = False
    needs: str = ""
    no_goal: str = ""

    @property
    def title(self) -> str:
        """Return the label as a heading: `Throughput, images/s`."""
        unit = f", {self.unit}" if self.unit not in ("", FRACTION) else ""
        return f"{self.label[0].upper()}{self.label[1:]}{unit}"


METRICS: dict[str, Metric] = {}
GPU = "a GPU"
SKIPPED_STEP = "a skipped step"
OF_TASK = "a task with this metric"
OF_RECORDER = "a recorded loop"
EAGER = "a forward without compilation"
SIXTEEN_BIT_UPDATES = "16-bit weights that the optimizer updates directly"


def declare(key: str, label: str, when: str, unit: str = "", **more: Any) -> str:
    """Add a metric to METRICS and return its key.

    Args:
        **more: Fields of `Metric` other than the first four.
    """
    METRICS[key] = Metric(key, label, when, unit, **more)
    return key


def find(key: str) -> Metric | None:
    """Return the metric of a logged key, None for a key that is not declared.

    Args:
        key: A metric's key, or KEY/GROUP for one layer group.
    """
    if key in METRICS:
        return METRICS[key]
    metric = METRICS.get(key.rpartition("/")[0])
    return metric if metric and metric.by_group else None


# Parts of names, and whole words in names, from which the direction of an undeclared metric is guessed.
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
_NEGATIONS = {"neg", "negative", "negated"}  # reverses the direction
# Words with which a negation does not reverse the direction: "false negatives", "negative log likelihood".
_NOT_NEGATED_WITH = {"rate", "log", "likelihood", "nll", "true", "false"}


def guess_direction(key: str) -> str:
    """Guess from a metric's name whether higher or lower values are better.

    Args:
        key: A name, such as `word_error`, `val_acc` or `neg_mean_squared_error`.

    Returns:
        HIGHER, LOWER, or "" if the name says neither.
    """
    for text in (re.split(r"[/.]", key)[-1], key):  # `accuracy/loss` is a loss
        words = split_words(text)
        is_negated = not _NEGATIONS.isdisjoint(words) and _NOT_NEGATED_WITH.isdisjoint(words)
        if is_negated:
            words = [word for word in words if word not in _NEGATIONS]
        name = "_".join(words)
        if _LOWER_IS_BETTER.search(name):
            return HIGHER if is_negated else LOWER
        if _HIGHER_IS_BETTER.search(name):
            return LOWER if is_negated else HIGHER
    return ""


def split_words(key: str) -> list[str]:
    """Split a name into lower-case words, `val` and `acc` for `valAcc` and for `val_acc`."""
    joined = re.sub(r"(?<![a-zA-Z])m(?=(?:IoU|AP)(?![a-z]))", "M", key).replace("IoU", "IOU")
    return re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", joined).lower())


EVAL_PREFIX = "eval/"  # of the metrics of an evaluation


def make_best_key(key: str) -> str:
    """Return the summary's key for the best value of an evaluation metric: `best/eval_accuracy`."""
    return f"best/{key.replace('/', '_')}"


STEP = declare("global_step", "optimizer step", ALWAYS, "steps")
EPOCH = declare("epoch", "epoch", ALWAYS, "epochs")
ELAPSED = declare("time/elapsed_seconds", "elapsed time", ALWAYS, "s", better=LOWER)
TRAIN_SECONDS = declare("time/train_seconds", "training time", ALWAYS, "s", better=LOWER)
# The part of the training time in start-up: the first step of each process, and steps that compiled or
# captured something. Records of version 0.3 lack it.
STARTUP_SECONDS = declare("time/startup_seconds", "start-up time", ALWAYS, "s", better=LOWER)

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
GRADIENT_NORM_AT_UPDATE = declare(
    "grad/norm_at_update", "gradient norm at update", INTERVAL, needs=OF_RECORDER
)
GRADIENT_NORMS = (GRADIENT_NORM, GRADIENT_NORM_AT_UPDATE)  # before clipping, and as the optimizer reads it

# Fractions of the gradients' elements, over all layer groups and in each.
_FRACTION: dict[str, Any] = {"when": DIAGNOSIS, "unit": FRACTION, "better": LOWER, "by_group": True}
UNDERFLOW = declare("grad/underflow_fraction", "gradient elements flushed to zero", **_FRACTION)
UNDERFLOW_UNSCALED = declare(
    "grad/underflow_fraction_unscaled", "gradient elements flushed at scale 1", **_FRACTION
)
OVERFLOW = declare("grad/overflow_fraction", "gradient elements that overflow", **_FRACTION)
ZEROS = declare("grad/zero_fraction", "gradient elements that are zero", **_FRACTION)
EXPONENTS = declare("grad/exponents", "gradient exponents", DIAGNOSIS, no_goal="a histogram")
# Fraction of the weights that an optimizer updates in a 16-bit dtype.
LOST_UPDATES = declare(
    "update/lost_fraction", "weights whose update is lost to rounding", **_FRACTION, needs=SIXTEEN_BIT_UPDATES
)

# Measurements of the network's activations.
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
for _key in (EVAL_LOSS, EVAL_TOP5, EVAL_MSE, EVAL_MAE):  # logged where it is the compared metric
    _metric = METRICS[_key]
    declare(
        make_best_key(_key), f"best {_metric.label}", END, _metric.unit, better=_metric.better, needs=OF_TASK
    )
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
FIRST_ANOMALY = declare(
    "anomaly/first_step",
    "first step that was skipped after the loss scale had settled, or that no loss scale repairs",
    END,
    "steps",
    needs="such a step",
    no_goal="missing in every run without such a step",
)
TEST_IMAGES = declare("data/test_images", "test images", END, "images", no_goal="the same in every run")
CLASSES = declare("data/classes", "classes", END, no_goal="the same in every run")
COMMONEST_CLASS = declare(
    "data/commonest_class_fraction",
    "fraction of the commonest class of the test set",
    END,
    FRACTION,
    needs="classes as targets",
    no_goal="the same in every run",
)
REFUSED = declare(
    "refusal",
    "why the run was refused",
    END,
    needs="a value of a sweep that has no effect",
    no_goal="a sentence",
)
RESUMED_INEXACTLY = declare(
    "data/resumed_inexactly",
    "whether the run was resumed within an epoch of the user's own data loader",
    END,
    needs="a resume within an epoch",
    no_goal="no number",
)
TEST_SET = declare("data/test_set", "fingerprint of the test split", END, no_goal="no number")
ENVIRONMENT = declare("environment", "device, driver and versions", END, no_goal="no number")
RUN = "run"  # the key of the config under which a record says where it was trained
# Keys below RUN.
PROCESS = "process"  # hex digits, which runs of one process share
POSITION = "position_in_process"  # the number of this run in its process, from 1
# Keys of a config about the process: no settings, and others after a run was resumed.
PROCESS_KEYS = (f"{RUN}.{PROCESS}", f"{RUN}.{POSITION}")
# Keys of the environment.
# The compared metric and all metrics of the task, as
# `{"metric": KEY, "metrics": {KEY: {"words": LABEL, "better": DIRECTION, "counts_samples": BOOLEAN}}}`.
TASK = "task"
PRECISION_DTYPE = "precision_dtype"  # the dtype that the backend computes in
ARITHMETIC = "arithmetic"  # on a CPU, the unit that multiplies each 16-bit dtype
# The ATen operations of the backend's dtype that the training computed in fp32 (`precision.cpu_arithmetic`).
FP32_OPERATIONS = "fp32_operations"
# PyTorch's switches for reductions in 16 bits, with their defaults, which runs had before they were recorded.
REDUCTION_DEFAULTS = {
    "allow_fp16_reduced_precision_reduction": True,
    "allow_bf16_reduced_precision_reduction": True,
    "allow_fp16_accumulation": False,
    "allow_fp16_bf16_reduction_math_sdp": False,
}
TF32 = "tf32"  # whether matrix products may use TF32; in our own trainings one option sets all switches
# The same of a recorded loop: matrix products, convolutions, recurrent layers.
TF32_SWITCHES = (TF32, "tf32_convolutions", "tf32_recurrent")
WEIGHT_DTYPES = "weight_dtypes"  # of the trainable weights in training, such as ["float32"]
FROZEN_WEIGHTS = "frozen_weights"  # frozen or quantised parts in other dtypes than fp32, by name
KEPT_FP32 = "kept_fp32"  # names of the modules that `precision.keep_fp32` kept in fp32
MODEL_PARAMETERS = "model_parameters"  # number of parameters of a network that is not built in
# Values of ARITHMETIC other than the name of a unit.
COMPUTED_IN_FP32 = "fp32"  # by `precision.cpu_arithmetic`
EMULATED = "emulated"  # PyTorch's own kernels, without a unit for the dtype; also in records of version 0.2
UNKNOWN = "unknown"
