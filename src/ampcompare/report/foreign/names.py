"""What the name of a logged key, or of a setting, says. What is asked of names is asked of these patterns."""

import re
from dataclasses import dataclass
from typing import Any

from ampcompare import metrics
from ampcompare.report.runs.metric import says_accuracy, says_direction


def last_part(key: str) -> str:
    """What stands behind the last slash or dot."""
    return re.split(r"[/.]", key.rstrip("/."))[-1]


def spelled(key: str) -> str:
    """The words of a key, as the patterns of this module have them: `valAcc@1` is `val_acc_1`."""
    return "_".join(filter(None, metrics.parts_of(key.replace("iB", "ib"))))


def _one_of(words: str) -> re.Pattern[str]:
    return re.compile(rf"(?:^|_)(?:{'|'.join(words.split())})(?:_|$)")


# The rows of a run: the first name that is there is taken.
STEPS = (
    f"{metrics.STEP} trainer/global_step train/global_step train/step global_steps optimizer_step"
    " iteration iter iterations num_steps step steps"
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
        return self.factor / values if self.is_duration else values * self.factor

    @property
    def how(self) -> str:
        """How it is read, behind its key."""
        if self.is_duration:
            lasts = "ms" if self.factor > 1 else "seconds"
            return f", the duration of a step in {lasts}, as {self.unit}"
        return f" (in {self.unit or 'its own unit'})"


# What a throughput counts, by its names, in the order in which it is taken where a run has several.
ITEM_OF = {"sample": "samples", "example": "samples", "ex": "samples", "image": "images", "img": "images"}
ITEM_OF |= {"token": "tokens", "tok": "tokens", "sequence": "sequences", "seq": "sequences"}
ITEM_OF |= {"frame": "frames", "word": "words", "batch": "batches"}
ITEM_OF |= dict.fromkeys(("step", "iter", "iteration", "it", "update"), "steps") | {"epoch": "epochs"}
ORDER = [*dict.fromkeys(ITEM_OF.values()), ""]
SHORT = {
    "sps": "samples",
    "ips": "images",
    "tps": "tokens",
    "fps": "frames",
    "wps": "words",
    "throughput": "",
}
_S = "(?:seconds?|secs?|s)"
_ITEM = f"({'|'.join(ITEM_OF)})"
_RATE = re.compile(rf"(?:^|_)(?:{_ITEM}(?:e?s)?_(?:per|p)_{_S}|({'|'.join(SHORT)}))(?:_|$)")
_LASTS = re.compile(  # how long a step takes; not `it_s`, which may be either
    rf"(?:^|_)(?:(?:step|iter|iteration|batch)_{_S}|{_S}_per_{_ITEM}|ms_per_{_ITEM}|{_ITEM}_ms"
    rf"|(?:time_per_{_ITEM}|{_ITEM}_(?:time|duration))(?:_(?:ms|{_S}))?)$"
)
EVALUATION = _one_of("eval val valid validation test dev evaluation")
TRAINING = _one_of("train training trn")
_NO_RATE = _one_of("total count num data wait load loading forward backward optimizer lr loss")


def speed_of(key: str) -> Pattern | None:
    """The throughput, or duration of a step, that a key is by its name."""
    text = spelled(last_part(re.sub(r"[/.](?=(?:s|sec)$)", "_per_", key)))
    rate, lasts = _RATE.search(text), _LASTS.search(text)
    if _NO_RATE.search(text) or not (rate or lasts):
        return None
    # How long an epoch took is not taken by guess: nobody says whether its evaluation is in it.
    is_free = not EVALUATION.search(spelled(key)) and bool(rate or "epoch" not in text)
    item = "steps" if not rate else ITEM_OF[rate[1]] if rate[1] else SHORT[rate[2]]
    factor = 1000.0 if lasts and "ms" in lasts[0].split("_") and not rate else 1.0
    rank = (not rate, ORDER.index(item)) if is_free else None
    return Pattern(f"{item}/s" if item else "", factor, not rate, rank)


_MEMORY = _one_of("memory mem vram rss allocated")
_NO_MEMORY = _one_of(
    "percent pct fraction frac utilization util ratio available free total format len length"
)
_MIB = {"byte": 1.0, "bytes": 1.0, "kb": 1e3, "kib": 2**10, "mb": 1e6, "mib": 2**20, "gb": 1e9, "gib": 2**30}


def memory_of(key: str) -> Pattern | None:
    """The memory that a key is by its name, in MiB where that says a unit. The GPU's comes first, a peak
    before what is in use, allocated before reserved.
    """
    text = spelled(key)
    if not _MEMORY.search(text) or _NO_MEMORY.search(text):
        return None
    words = text.split("_")
    unit = next((word for word in reversed(words) if word in _MIB), "")
    order = (
        not {"gpu", "cuda", "vram", "device"} & {*words},
        not {"peak", "max"} & {*words},
        bool({"reserved", "cpu", "ram", "cached"} & {*words}),
    )
    rank = None if key.startswith("_") else order
    return Pattern("MiB", _MIB[unit] / 2**20, rank=rank) if unit else Pattern("", rank=rank)


_RANKED = re.compile(r"top_?(?:[5-9]|\d\d)|(?:^|_)(?:acc)?(?:[5-9]|\d\d+)(?:_|$)")  # top-5 is no accuracy


def quality_rank(key: str) -> tuple[int, ...] | None:
    """Lower comes first: of an evaluation before that of training, an accuracy before other scores, these
    before errors and losses. None for what is no measure of quality, or nobody knows which way is better.
    """
    text, direction = spelled(key), says_direction(key)
    is_clock = {"time", "seconds"} & {*text.split("_")}
    if key.startswith("_") or direction is None or is_clock or speed_of(key) or memory_of(key):
        return None
    kind = 0 if says_accuracy(key) else 1 if direction == "maximize" else 2
    where = 0 if EVALUATION.search(text) else 2 if TRAINING.search(text) else 1
    return where, kind, bool(_RANKED.search(text))


def is_quality(key: str) -> bool:
    """Whether a sweep's metric is one of quality: speed, memory and energy have a place of their own."""
    if metrics.find(key) is not None:
        return key.startswith((metrics.EVAL, "train/"))
    return not (speed_of(key) or memory_of(key))


# Settings that are none of the training: where and when a run ran; what it is called, where its output is.
_LABEL = re.compile(
    r"(?:.*_)?(?:host|hostname|user|username|uuid|guid|timestamp|date|datetime|pid|port|cwd|argv|command|cmd"
    r"|cmdline|launcher|sha|commit|jobid|git_hash|git_branch"
    r"|notes?|comments?|tags?|outdir|logdir|workdir|savedir|ckptdir)"
    r"|(?:.*_)?(?:output|out|logs?|logging|saved?|saving|ckpts?|checkpoints?|runs?|exp|experiment|wandb|tensorboard"
    r"|tb|results?|working|work|job|slurm|trial|session|hub|project|display|dump|cache|artifacts?|default)"
    r"_(?:\w+_)?(?:dirs?|dirpath|directory|path|folder|file|filename|root|name|id|url|title|location|tag|time)"
    r"|(?:name|id|title|group|job_type|group_name|outputs?|experiment)"
)
_NO_LABEL = re.compile(  # what a training begins with
    r"(?:checkpoint|ckpt)s?_(?:path|file|filename|name)"
    r"|(?:.*_)?(?:init|initial|pretrained|resume|load|from|restore|input|source|weights|base|data)_\w+"
)


def is_label(key: str) -> bool:
    """Whether a setting is where, when or by whom a run was started, its name, or a place of its output."""
    return bool(_LABEL.fullmatch(spelled(key))) and not _NO_LABEL.fullmatch(spelled(last_part(key)))


def is_seed(key: str) -> bool:
    """Whether a setting is a seed by its name: `seed`, `trainer.data_seed`, `random_state`."""
    return bool(re.search(r"(?:^|_)seeds?$|^seed_everything$|^random_state$", spelled(last_part(key))))


_PRECISION = re.compile(
    r"(?:^|[^a-z0-9])(?:precision|amp|fp16|bf16|tf32|fp8|half|dtype|autocast|mixed|float16|bfloat16|backend)"
    r"(?![a-z0-9])|(?:fp|bf|tf)\d+|b?float\d+|opt[^a-z0-9]+level"
)
_FULL = re.compile(
    r"(?:fp|float|f)?_?32(?:\.0+)?(?:[-_ ]?(?:true|bit|full))?|fp32\b(?!.*(?:16|8|tf|mix|amp|half)).*"
    r"|none|null|not set|no|off|false|full|single|float|o0|0(?:\.0)?|",
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
