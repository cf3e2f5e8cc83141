"""What every backend says of itself, once; all else asks it here. Free of torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

TYPES = ("float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2")  # of `precision.dtype`
AUTO = "auto"  # of `precision.dtype`: the one that suits the device
_MOST_WORDS = 100  # characters: they stand in a legend
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,39}")  # it goes into names of runs, files and W&B's tags


@dataclass(frozen=True)
class Backend:
    """What a backend says of itself. Raises ValueError for what cannot be.

    `label` is its name in reports, `words` what it is in one line; `dtypes` are the `precision.dtype` that it
    takes, the first its own; `scales` whether it scales the loss, `bounded_scale` whether that scale has a
    floor and a ceiling, `half_weights` whether the model's weights are in half precision,
    `keeps_batchnorm` whether BatchNorm's are then in fp32 by default, `updates_half` whether the optimizer
    updates those weights themselves, no fp32 masters of them; `is_fp32` whether it is plain fp32, to which
    nothing of `precision.*` matters. `run_word` begins a run's name (the label if empty); `also` are
    names that people from elsewhere write for it. `run_words` and `words_in` are word and words in a type
    that is not its own, by type.
    """

    label: str
    words: str
    dtypes: tuple[str, ...] = ("float32",)
    scales: bool = False
    bounded_scale: bool = False
    half_weights: bool = False
    keeps_batchnorm: bool | None = None
    updates_half: bool = False
    is_fp32: bool = False
    run_word: str = ""
    also: tuple[str, ...] = ()
    run_words: tuple[tuple[str, str], ...] = ()
    words_in: tuple[tuple[str, str], ...] = ()
    target: str = ""  # module:class, imported on use
    source: str = ""  # of a plug-in: the hash of its file

    def __post_init__(self) -> None:
        for name, text in (("label", self.label), ("run_word", self.run_word or self.label)):
            if not isinstance(text, str) or not _LABEL.fullmatch(text):
                raise ValueError(f"{name}={text!r}: expected 1 to 40 letters, digits or any of _ . + -")
        words = self.words
        if not isinstance(words, str) or not 0 < len(words) <= _MOST_WORDS or not words.isprintable():
            raise ValueError(f"words={words!r}: expected a line of at most {_MOST_WORDS} characters")
        if not isinstance(self.dtypes, tuple) or not self.dtypes or not set(self.dtypes) <= set(TYPES):
            raise ValueError(f"dtypes={self.dtypes!r}: expected a tuple of some of {', '.join(TYPES)}")

    def begins_name(self, dtype: str) -> str:
        """What the name of a run in this type begins with."""
        return dict(self.run_words).get(dtype) or self.run_word or self.label

    def record(self) -> dict[str, str]:
        """What a run's record has to say of it for those who do not have it; of a built-in one, nothing."""
        said = {"label": self.label, "words": self.words, "type": self.dtypes[0], "source": self.source}
        return {f"backend_{key}": value for key, value in said.items()} if self.source else {}


HERE = "ampcompare.precision"
APEX_FP16: dict[str, Any] = {"dtypes": ("float16",), "scales": True, "bounded_scale": True}
BF16_WEIGHTS: dict[str, Any] = {
    "dtypes": ("bfloat16",),
    "half_weights": True,
    "keeps_batchnorm": False,
    "updates_half": True,
}
REGISTRY: dict[str, Backend] = {
    backend.label: backend
    for backend in (
        Backend(
            "none",
            "fp32",
            ("float16", "bfloat16"),  # the first is what its records have always said
            is_fp32=True,
            run_word="standard",
            also=("o0", "fp32", "float32", "32", "32-true", "full", "standard", "no", "off", "tf32"),
            target=f"{HERE}.base:Precision",
        ),
        Backend(
            "native",
            "torch.amp",
            ("float16", "bfloat16"),
            scales=True,
            run_word="torch-amp",
            run_words=(("bfloat16", "torch-amp-bf16"),),
            also=tuple(
                "amp torch.amp torch_amp torch-amp autocast 16-mixed fp16-mixed mixed mixed_float16".split()
            ),
            target=f"{HERE}.native:Native",
        ),
        Backend(
            "native_bf16",
            "torch.amp bf16",
            ("bfloat16",),
            run_word="torch-amp-bf16",
            also=("bf16-mixed", "bf16_mixed", "mixed_bfloat16", "amp_bf16", "amp-bf16", "native-bf16"),
            target=f"{HERE}.native:Native",
        ),
        Backend(
            "apex_o1",
            "apex O1",
            ("float16", "bfloat16"),
            scales=True,
            bounded_scale=True,
            run_word="nvidia-apex-amp",
            also=("o1", "apex", "apex-o1", "apex.amp", "apexo1", "nvidia-apex-amp"),
            run_words=(("bfloat16", "apex-o1-bf16"),),  # NVIDIA's had no such thing
            words_in=(("bfloat16", "apex O1 lists in bf16"),),
            target=f"{HERE}.apex.o1:ApexO1",
        ),
        Backend(
            "apex_o2",
            "apex O2",
            **APEX_FP16,
            half_weights=True,
            keeps_batchnorm=True,
            run_word="nvidia-apex-amp-o2",
            also=("o2", "apex-o2", "apexo2"),
            target=f"{HERE}.apex.o2:ApexO2",
        ),
        Backend(
            "fp16",
            "pure fp16",
            **APEX_FP16,
            half_weights=True,
            keeps_batchnorm=False,
            updates_half=True,
            run_word="pure-fp16",
            also=("o3", "half", "float16", "16", "16-true", "fp16-true", "pure_fp16"),
            target=f"{HERE}.half:Half",
        ),
        Backend(
            "bf16",
            "bf16 (weights too)",
            **BF16_WEIGHTS,
            run_word="pure-bf16",
            also=("bfloat16", "bf16-true", "bf16_true", "pure_bf16", "pure-bf16"),
            target=f"{HERE}.bfloat16:BFloat16",
        ),
        Backend(
            "bf16_sr",
            "bf16, stochastic rounding",
            **BF16_WEIGHTS,
            run_word="pure-bf16-sr",
            also=("sr", "bf16-sr", "stochastic_rounding", "stochastic-rounding"),
            target=f"{HERE}.stochastic:StochasticBFloat16",
        ),
    )
}
# What people who come from other libraries write for a backend, and the one that is meant.
HINTS = {word: backend.label for backend in REGISTRY.values() for word in backend.also}


def in_type(name: str, dtype: object) -> str:
    """The built-in backend that `name` is with this `precision.dtype`: the one of the same class whose own
    type it is, else itself.

    >>> in_type("native", "bfloat16"), in_type("apex_o1", "bfloat16")
    ('native_bf16', 'apex_o1')
    """
    known = REGISTRY.get(name)
    if known is None or dtype not in known.dtypes[1:]:
        return name
    return next(
        (b.label for b in REGISTRY.values() if b.target == known.target and b.dtypes[0] == dtype), name
    )


def family(name: str) -> str:
    """The first built-in backend of the same class: `native` for `native_bf16`."""
    known = REGISTRY.get(name)
    return next((b.label for b in REGISTRY.values() if known and b.target == known.target), name)
