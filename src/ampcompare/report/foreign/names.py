"""What the name of a logged key, or of a setting, says. What is asked of names is asked of these patterns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ampcompare import metrics
from ampcompare.report.runs.metric import says_accuracy, says_direction

_PIECES = re.compile(r"[KMGkmg]iB(?![a-z])|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def parts(key: str) -> list[str]:
    """The words of a key, small: `valAcc@1` is val, acc, 1."""
    return [piece.lower() for piece in _PIECES.findall(key)]


def last_part(key: str) -> str:
    """What stands behind the last slash or dot."""
    return re.split(r"[/.]", key.rstrip("/."))[-1]


def spelled(key: str) -> str:
    """The words of a key, as the patterns of this module have them: `val_acc_1`."""
    return "_".join(parts(key))


def _one_of(words: str) -> re.Pattern[str]:
    """A pattern that finds any of the words, whole, in a spelled name."""
    return re.compile(rf"(?:^|_)(?:{'|'.join(words.split())})(?:_|$)")


# The rows of a run: the first name that is there is taken.
STEPS = (
    f"{metrics.STEP} trainer/global_step train/global_step train/step global_steps optimizer_step"
    " iteration iter iterations num_steps step steps _step"
).split()
EPOCHS = "epoch train/epoch trainer/epoch epochs".split()
LOSSES = (
    f"{metrics.LOSS} train_loss loss/train training_loss train_loss_step train/loss_step"
    " train/train_loss train_loss_epoch train/loss_epoch training/loss loss"
).split()


@dataclass(frozen=True)
class Pattern:
    """What a key is taken as: `unit` is that of the figure, empty for its own, `factor` what makes it of the
    logged one, which the duration of a step (`is_duration`) divides. The lowest `rank` is taken; None: by no
    guess.
    """

    unit: str
    factor: float = 1.0
    is_duration: bool = False
    rank: tuple[int, ...] | None = None

    def apply(self, values: Any) -> Any:
        """The figure of the logged values."""
        return self.factor / values if self.is_duration else values * self.factor

    @property
    def how(self) -> str:
        """How it is read, behind its key."""
        lasts = "ms" if self.factor > 1 else "seconds"
        if self.is_duration:
            return f", the duration of a step in {lasts}, as {self.unit}"
        return f" (in {self.unit or 'its own unit'})"


_S = "(?:second|seconds|sec|secs|s)"


def _rate(words: str, short: str = "-") -> str:
    # `step_s` is how long a step takes: a rate without a "per" is in the plural, or one of the short forms.
    per, plural = rf"(?:{words})(?:e?s)?_(?:per|p)_{_S}", rf"(?:{words})e?s_{_S}"
    return rf"(?:^|_)(?:(?:{per}|{plural})(?:_|$)|(?:{short})$)"


def _lasts(words: str, unit: str, is_said: str) -> str:
    time = rf"(?:time_per_(?:{words})|(?:{words})_(?:time|duration))(?:_?{unit}){is_said}"
    return rf"(?:^|_)(?:{unit}_per_(?:{words})|(?:{words})_{unit}|{time})$"


# Throughput, in the order in which it is taken where a run has several; of a duration what divides it.
SPEEDS = (
    (_rate("sample|example|ex", "sps|ex_(?:s|sec)"), "samples/s", 0),
    (_rate("image|img", "ips|img_(?:s|sec)"), "images/s", 0),
    (_rate("token|tok", "tps|tok_(?:s|sec)"), "tokens/s", 0),
    (_rate("sequence|seq"), "sequences/s", 0),
    (_rate("frame", "fps"), "frames/s", 0),
    (_rate("word", "wps"), "words/s", 0),
    (r"(?:^|_)throughput(?:_|$)", "", 0),
    (_rate("batch"), "batches/s", 0),
    (_rate("step|iter|iteration|it|update", "it_(?:s|sec)"), "steps/s", 0),
    (_rate("epoch"), "epochs/s", 0),
    (_lasts("step|iter|iteration|it|batch", "ms", ""), "steps/s", 1000),
    (_lasts("step|iter|iteration|it|batch", _S, "?"), "steps/s", 1),
    (_lasts("epoch", "ms", ""), "epochs/s", 1000),
    (_lasts("epoch", _S, "?"), "epochs/s", 1),
)
EVALUATION = _one_of("eval val valid validation test dev evaluation")
TRAINING = _one_of("train training trn")
_NO_RATE = _one_of("lr loss count total num")
_PART_OF_STEP = _one_of("wait data load loading forward backward optimizer")


def speed_of(key: str) -> Pattern | None:
    """The throughput, or duration of a step, that a key is by its name."""
    text = spelled(last_part(re.sub(rf"[/.](?={_S}$)", "_", re.sub(r"[/.](?=(?:s|sec)$)", "_per_", key))))
    for rank, (name, unit, seconds) in enumerate(SPEEDS):
        if re.search(name, text) and not _NO_RATE.search(text):
            # How long an epoch took is not taken by guess: nobody says whether its evaluation is in it.
            is_free = not EVALUATION.search(spelled(key)) and not (seconds and unit == "epochs/s")
            found = Pattern(unit, seconds or 1.0, bool(seconds), (rank,) if is_free else None)
            return None if seconds and _PART_OF_STEP.search(text) else found
    return None


_MEMORY = _one_of("memory mem vram rss allocated")
_NO_MEMORY = _one_of(
    "percent pct fraction frac utilization util ratio available free total format len length"
)
_MIB = {"byte": 1.0, "bytes": 1.0, "kb": 1e3, "kib": 2**10, "mb": 1e6, "mib": 2**20, "gb": 1e9, "gib": 2**30}


def memory_of(key: str) -> Pattern | None:
    """The memory that a key is by its name, in MiB where that says a unit. The GPU's comes first, a peak
    before what is in use, allocated before reserved.
    """
    text, words = spelled(key), parts(key)
    if not _MEMORY.search(text) or _NO_MEMORY.search(text):
        return None
    unit = next((word for word in reversed(words) if word in _MIB), "")
    order = (
        not {"gpu", "cuda", "vram", "device"} & {*words},
        not {"peak", "max"} & {*words},
        bool({"reserved", "cpu", "ram", "cached"} & {*words}),
    )
    rank = None if key.startswith("_") else order
    return Pattern("MiB", _MIB[unit] / 2**20, rank=rank) if unit else Pattern("", rank=rank)


_AFTERTHOUGHTS = _one_of("runtime time seconds second samples sec step steps flos")
_RANKED = re.compile(r"top_?(?:[5-9]|\d\d)|(?:^|_)(?:[5-9]|\d\d+)(?:_|$)")  # top5_accuracy is no accuracy


def quality_rank(key: str) -> tuple[int, ...] | None:
    """Lower comes first: of an evaluation before that of training, an accuracy before other scores, these
    before errors and losses. None for what is no measure of quality, or nobody knows which way is better.
    """
    text, direction = spelled(key), says_direction(key)
    if key.startswith("_") or direction is None or speed_of(key) or memory_of(key):
        return None
    last = spelled(last_part(key))
    if _AFTERTHOUGHTS.search(last) and not says_accuracy(key) and "loss" not in last:
        return None
    kind = 0 if says_accuracy(key) else 1 if direction == "maximize" else 2
    where = 0 if EVALUATION.search(text) else 2 if TRAINING.search(text) else 1
    return where, kind, bool(_RANKED.search(text))


def is_quality(key: str) -> bool:
    """Whether a sweep's metric is one of quality: speed, memory and energy have a place of their own."""
    if metrics.find(key) is not None:
        return key.startswith((metrics.EVAL, "train/"))
    return not (speed_of(key) or memory_of(key))


# Settings that are none of the training, by their last part and what is above it: the circumstances of a run;
# the name of a run, or a place of its output; what may be that, and may as well say what was trained.
CIRCUMSTANCE, NAME, EITHER = "circumstance", "name", "either"
_HOST = (
    r"(?:.*_)?(?:notes|tags|host|hostname|user|username|uuid|guid|timestamp|date|datetime|pid|port|cwd|argv|command"
    r"|cmd|cmdline|outdir|logdir|workdir|savedir|ckptdir|launcher|hydra|sha|commit|jobid)"
)
_OUTPUT = (
    "(?:output|out|outputs|log|logs|logging|save|saved|saving|ckpts?|checkpoints?|runs?|exp|experiment|wandb"
    "|tensorboard|tb|results?|working|work|job|slurm|trial|session|hub|project|display|dump|cache|artifacts?)"
)
_PLACE = "(?:dirs?|dirpath|directory|path|folder|file|filename|root|name|id|url|title|location|tag|time)"
_WEIGHTS = "(?:checkpoint|ckpt)s?(?:_(?:path|file|filename|name))?"  # written, or what a training begins with
_KINDS = (  # of what fits several the first
    (
        "",
        re.compile(
            rf".*/(?:{_WEIGHTS}|(?:.*_)?(?:init|initial|pretrained|resume|load|from|restore|input|source"
            r"|weights|base|data)_\w+)"
        ),
    ),
    (
        CIRCUMSTANCE,
        re.compile(rf".*/{_HOST}|(?:.*_)?git(?:_.*)?/(?:.*_)?(?:hash|branch)|.*/(?:.*_)?git_(?:hash|branch)"),
    ),
    (EITHER, re.compile(rf".*/{_OUTPUT}")),
    (
        NAME,
        re.compile(
            rf".*/(?:.*_)?(?:{_OUTPUT}|default)_(?:\w+_)?{_PLACE}|(?:(?:.*_)?{_OUTPUT})?/(?:name|id|title|time)"
        ),
    ),
    (NAME, re.compile(r"/group|.*/group_name|.*/job_type")),
)


def label_kind(key: str) -> str:
    """CIRCUMSTANCE, NAME or EITHER, by the key alone; nothing for a setting of the training."""
    last, every = parts(last_part(key)), parts(key)
    text = f"{'_'.join(every[: len(every) - len(last)])}/{'_'.join(last)}"
    return next((kind for kind, name in _KINDS if name.fullmatch(text)), "")


def looks_like_label(text: str) -> bool:
    """Whether a value is a path, a stamp or an id: by its look alone."""
    stamp = r"[-+]?\d{8,}(\.\d*)?|.*\d{4}-?\d{2}-?\d{2}[T _-]?\d{2}.*"
    return bool(re.fullmatch(rf"{stamp}|.*[/\\].*|(?=.*\d)(?=.*[a-f])[0-9a-f-]{{8,}}", text, re.I | re.S))


_AMOUNTS = _one_of(
    "batch bs lr rate epochs? steps? iters? iterations width depth decay wd dropout momentum warmup layers?"
    " hidden dim size heads length beta beta1 beta2 temperature alpha gamma eps epsilon clip smoothing"
    " channels accum accumulation"
)


def says_amount(key: str) -> bool:
    """Whether a number under this key is a setting of the training: `batch_size`, `lr`, `max_epochs`."""
    return bool(_AMOUNTS.search(spelled(last_part(key))))


def is_seed(key: str) -> bool:
    """Whether a setting is a seed by its name: `seed`, `trainer.data_seed`, `random_state`."""
    return bool(re.search(r"(?:^|_)seeds?$|^seed_everything$|^random_state$", spelled(last_part(key))))


def can_be_seed(value: str) -> bool:
    """Whether a setting's value, as text, is one of a seed: a whole number, a switch, none, or several."""
    one = r"[-+]?\d+(?:\.0*)?|[-+]?\d(?:\.\d+)?e\+?\d+|0x[0-9a-f]+|true|false|null|none|not set|"
    return bool(re.fullmatch(rf"\[?(?:{one})(?:, ?(?:{one}))*\]?", value.strip(), re.I))


_PRECISION = re.compile(
    r"(?:^|[^a-z0-9])(?:precision|amp|fp16|bf16|tf32|fp8|half|dtype|autocast|mixed|float16|bfloat16|backend)"
    r"(?![a-z0-9])|(?:fp|bf|tf)\d+|b?float\d+|opt[^a-z0-9]+level"
)
_FULL = re.compile(
    r"(?:fp|float|f)?_?32(?:\.0+)?(?:[-_ ]?(?:true|bit|full))?|fp32\b(?!.*(?:16|8|tf|mix|amp|half)).*"
    r"|none|null|not set|no|off|false|full|single|float|o0|0|",
    re.I,
)
UNSAID = frozenset({"", "null", "not set"})  # what is off where another run has it on
_HALF = re.compile(
    r"(?<!\d)(?:b|bf|fp|float|bfloat)?_?(?:16|8)(?!\d)|half|mixed|amp|autocast|true|on|o[123]", re.I
)
_OF_TYPE = re.compile(r"(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])")  # `torch.`, `DataType.`


def says_precision(key: str) -> bool:
    """Whether a setting chooses the precision, by its last part."""
    last = last_part(key).lower()
    is_other = re.search(r"(?<![a-z0-9])(?:eval|level)(?![a-z0-9])", last) and "opt" not in last
    return bool(_PRECISION.search(last)) and not is_other


def is_full_precision(value: str) -> bool:
    """Whether the value of a precision setting means fp32."""
    return bool(_FULL.fullmatch(_OF_TYPE.sub("", value.strip(), count=1)))


def is_half_precision(value: str) -> bool:
    """Whether it says that half precision is in it."""
    return bool(_HALF.search(value))
