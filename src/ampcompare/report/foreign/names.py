"""What the name of a logged key or of a setting says of it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ampcompare import metrics

_PIECES = re.compile(r"[KMGkmg]iB(?![a-z])|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
EVALUATION = frozenset({"eval", "val", "valid", "validation", "test", "dev", "evaluation"})
TRAINING = frozenset({"train", "training", "trn"})

# A rate: what is counted, in the singular, by the words that people write for it.
ITEMS = {
    "sample": "samples/s",
    "example": "samples/s",
    "ex": "samples/s",
    "image": "images/s",
    "img": "images/s",
    "token": "tokens/s",
    "tok": "tokens/s",
    "sequence": "sequences/s",
    "seq": "sequences/s",
    "frame": "frames/s",
    "word": "words/s",
    "step": "steps/s",
    "iter": "steps/s",
    "iteration": "steps/s",
    "it": "steps/s",
    "update": "steps/s",
    "batch": "batches/s",
    "epoch": "epochs/s",
}
SHORT_RATES = {"fps": "frames/s", "wps": "words/s", "ips": "images/s", "sps": "samples/s", "tps": "tokens/s"}
BARE_RATES = frozenset({"throughput"})  # says no unit
SECOND = "(?:second|seconds|sec|secs|s)"
_ITEM = "|".join(sorted(ITEMS, key=len, reverse=True))
# `step_s` is how long a step takes: a rate without a "per" is in the plural, or one of the usual short forms.
_RATE = re.compile(
    rf"(?:^|_)(?:({_ITEM})(?:e?s)?_(?:per|p)_{SECOND}|({_ITEM})e?s_{SECOND}|(img|it|tok|ex)_(?:s|sec))(?:_|$)"
)
# How long one step takes, or an epoch, the other way round: what it has to be divided by to be seconds.
_LASTING = "step|iter|iteration|it|batch|epoch"
_DURATION = re.compile(
    rf"(?:^|_)(?:(?:(ms|{SECOND})_per|time_per)_({_LASTING})"
    rf"|({_LASTING})_(?:time|duration|(?=ms$|{SECOND}$)))(?:_?(ms|{SECOND}))?$"
)
_PART_OF_STEP = frozenset({"wait", "data", "load", "loading", "forward", "backward", "optimizer"})
_NO_RATE = frozenset({"lr", "loss", "count", "total", "num"})

MEMORY = frozenset({"memory", "mem", "vram", "rss"})
MEMORY_UNITS = {  # to MiB
    "bytes": 1 / 2**20,
    "byte": 1 / 2**20,
    "b": 1 / 2**20,
    "kb": 1e3 / 2**20,
    "kib": 1 / 2**10,
    "mb": 1e6 / 2**20,
    "mib": 1.0,
    "gb": 1e9 / 2**20,
    "gib": 1024.0,
}
STEPS: tuple[str, ...] = (
    metrics.STEP,
    "trainer/global_step",
    "train/global_step",
    "train/step",
    "global_steps",
    "optimizer_step",
)
STEPS += ("iteration", "iter", "iterations", "num_steps", "step", "steps", "_step")
EPOCHS = ("epoch", "train/epoch", "trainer/epoch", "epochs")
LOSSES: tuple[str, ...] = (
    metrics.LOSS,
    "train_loss",
    "loss/train",
    "training_loss",
    "train_loss_step",
    "train/loss_step",
)
LOSSES += ("train/train_loss", "train_loss_epoch", "train/loss_epoch", "training/loss", "loss")


def parts(key: str) -> list[str]:
    """The words of a key, small: `valAcc@1` is val, acc, 1."""
    return [piece.lower() for piece in _PIECES.findall(key)]


def last_part(key: str) -> str:
    """What stands behind the last slash or dot."""
    return re.split(r"[/.]", key.rstrip("/."))[-1]


def is_seed(key: str) -> bool:
    """Whether a setting is a seed by its name: `seed`, `trainer.data_seed`, `random_state`."""
    words = parts(last_part(key))
    return bool(words) and (
        words[-1] in ("seed", "seeds") or words in (["seed", "everything"], ["random", "state"])
    )


def can_be_seed(value: str) -> bool:
    """Whether a setting's value, as text, is one of a seed: a whole number, a switch, none, or several."""
    one = r"[-+]?\d+(?:\.0*)?|[-+]?\d(?:\.\d+)?e\+?\d+|0x[0-9a-f]+|true|false|null|none|not set|"
    return bool(re.fullmatch(rf"\[?(?:{one})(?:, ?(?:{one}))*\]?", value.strip(), re.I))


def rate_of(key: str) -> tuple[str, float] | None:
    """The unit of a throughput and, of the duration of a step, what divides to steps a second (1000 for ms);
    0 where it is a rate already. None for a key that is neither.
    """
    words = parts(last_part(key))
    if words in (["s"], ["sec"]):  # `img/s`
        words = [*parts(last_part(key[: -len(last_part(key)) - 1])), "per", *words]
    elif len(words) == 1 and re.fullmatch(SECOND, words[0]):
        words = parts(last_part(key[: -len(last_part(key)) - 1])) + words
    text = "_".join(words)
    if set(words) & _NO_RATE:
        return None
    if found := _RATE.search(text):
        return ITEMS[found[1] or found[2] or found[3]], 0.0
    if words and words[-1] in SHORT_RATES:
        return SHORT_RATES[words[-1]], 0.0
    if set(words) & BARE_RATES:
        return "", 0.0
    if (found := _DURATION.search(text)) and not set(words) & _PART_OF_STEP:
        unit = "epochs/s" if "epoch" in (found[2], found[3]) else "steps/s"
        return unit, 1000.0 if "ms" in (found[1], found[4]) else 1.0
    return None


def says_seconds(key: str) -> bool:
    """Whether the name of a duration says its unit."""
    return any(word == "ms" or re.fullmatch(SECOND, word) for word in parts(last_part(key)))


def memory_of(key: str) -> tuple[str, float] | None:
    """The unit of an amount of memory, `MiB`, with the factor to it; no unit, and 1, where no name says one.
    None for a key that is no memory, or a share of it.
    """
    words = parts(key)
    if not set(words) & MEMORY and "allocated" not in words:
        return None
    if set(words) & {
        "percent",
        "pct",
        "fraction",
        "utilization",
        "util",
        "ratio",
        "available",
        "free",
        "total",
        "frac",
        "format",
        "len",
        "length",
    }:
        return None
    for word in reversed(words):
        if word in MEMORY_UNITS and word != "b":
            return "MiB", MEMORY_UNITS[word]
    return "", 1.0


# Settings that name a run or a place of it, and say nothing of what was trained.
_NAMES = frozenset(
    """
    notes tags host hostname user username uuid guid timestamp date datetime pid port cwd argv
    command cmd cmdline outdir logdir workdir savedir ckptdir launcher hydra sha commit jobid
    """.split()
)
_OUTPUTS = frozenset(
    """
    output out outputs log logs logging save saved saving ckpt ckpts checkpoint checkpoints run runs exp
    experiment wandb tensorboard tb result results work working job slurm trial session hub project display
    group dump cache default host artifact artifacts
    """.split()
)
_PLACES = frozenset({"dir", "dirs", "dirpath", "directory", "path", "folder", "file", "filename", "root"})
_PLACES |= {"name", "id", "url", "title", "location", "tag", "time", "type"}
# Of these alone, without a place behind them: they may as well be what a training begins with.
_FROM = frozenset("init initial pretrained resume load from restore input source weights base data".split())
_WEIGHTS = frozenset({"checkpoint", "checkpoints", "ckpt", "ckpts"})
# Settings of a training that are numbers.
_AMOUNTS = frozenset(
    """
    batch bs lr rate epoch epochs step steps iters iterations width depth decay wd dropout momentum warmup
    layers layer hidden dim size heads length beta beta1 beta2 temperature alpha gamma eps epsilon clip
    smoothing channels accum accumulation
    """.split()
)
_GIT = frozenset({"sha", "commit", "hash", "branch"})


def is_quality(key: str) -> bool:
    """Whether a sweep's metric is one of quality: speed, memory and energy have a place of their own."""
    if metrics.find(key) is not None:
        return key.startswith(("eval/", "train/"))
    return not (rate_of(key) or memory_of(key))


def is_label(key: str) -> bool:
    """Whether a setting names a run, a moment or a place for its output, by the key alone."""
    words = parts(last_part(key))
    if not words or set(words[:-1]) & _FROM:
        return False
    if of_its_circumstances(key) or may_be_setting(key):
        return True
    above = parts(key)[: -len(words)]
    if words[-1] not in _PLACES:
        return words == ["group"] and not above
    if len(words) == 1:
        return words[0] in ("name", "id", "title", "time") and (not above or bool(_OUTPUTS & {above[-1]}))
    return (bool(_OUTPUTS & set(words[:-1])) and words[-1] != "type") or words == ["job", "type"]


def of_its_circumstances(key: str) -> bool:
    """Whether a setting is of the circumstances of a run (its host, user, moment, commit), whatever it is."""
    words = parts(last_part(key))
    return bool(words) and (words[-1] in _NAMES or (words[-1] in _GIT and "git" in parts(key)))


def may_be_setting(key: str) -> bool:
    """Whether a name of a run or a place may as well say what was trained: `checkpoint`, `experiment`."""
    words = parts(last_part(key))
    if len(words) == 1:
        return words[0] in _OUTPUTS and words[0] not in ("group", "default")
    return words[0] in _WEIGHTS and words[-1] in ("path", "file", "filename", "name") if words else False


def says_weights(key: str) -> bool:
    """Whether it names weights, written or read."""
    return bool(set(parts(last_part(key))) & _WEIGHTS) and may_be_setting(key)


def says_amount(key: str) -> bool:
    """Whether a number under this key is a setting of the training: `batch_size`, `lr`, `max_epochs`."""
    return bool(set(parts(last_part(key))) & _AMOUNTS)


def looks_like_label(text: str) -> bool:
    """Whether a value is that of a path, a stamp or an id: by its look alone."""
    if re.fullmatch(r"[-+]?\d{8,}(\.\d*)?", text) or re.search(r"\d{4}-?\d{2}-?\d{2}[T _-]?\d{2}", text):
        return True
    if "/" in text or "\\" in text:
        return True
    return bool(re.fullmatch(r"(?=.*\d)(?=.*[a-f])[0-9a-f-]{8,}", text.lower()))


PRECISION = frozenset(
    """
    precision amp fp16 bf16 tf32 fp8 half dtype autocast mixed float16 bfloat16 backend opt
    """.split()
)
_TYPES = re.compile(r"(?:fp|bf|tf)\d+|float\d+|bfloat\d+")


def says_precision(key: str) -> bool:
    """Whether a setting chooses the precision, by its last part."""
    last = last_part(key).lower()
    words = set(re.split(r"[^a-z0-9]+", last))
    if words & {"eval", "level"} and "opt" not in words:
        return False
    return bool(words & (PRECISION - {"opt"})) or {"opt", "level"} <= words or bool(_TYPES.search(last))


FULL = re.compile(
    r"(?:fp|float|f)?_?32(?:\.0+)?(?:[-_ ]?(?:true|bit|full))?|fp32\b(?!.*(?:16|8|tf|mix|amp|half)).*"
    r"|none|null|not set|no|off|false|full|single|float|o0|0|",
    re.I,
)
UNSAID = frozenset({"", "null", "not set"})  # what is off where another run has it on
_HALF = re.compile(
    r"(?<!\d)(?:b|bf|fp|float|bfloat)?_?(?:16|8)(?!\d)|half|mixed|amp|autocast|true|on|o[123]", re.I
)
_OF_TYPE = re.compile(r"(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])")  # `torch.`, `DataType.`


def is_full_precision(value: str) -> bool:
    """Whether the value of a precision setting means fp32."""
    return bool(FULL.fullmatch(_OF_TYPE.sub("", value.strip(), count=1)))


def is_half_precision(value: str) -> bool:
    """Whether it says that half precision is in it."""
    return bool(_HALF.search(value))


def first(names: Iterable[str], among: Iterable[str]) -> str | None:
    """The first of the names that is there."""
    known = set(among)
    return next((name for name in names if name in known), None)
