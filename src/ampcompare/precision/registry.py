"""The metadata of backends, built-in and plug-in, and the options of a backend; does not import torch."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

DTYPES = ("float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2")
KEEP_WEIGHTS = "keep"  # the value of `precision.weights` that leaves the dtype of the weights
MAX_DESCRIPTION = 100  # of a description, which is shown in legends
_LABEL = r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,39}"  # used in names of runs and files and in W&B's tags


@dataclass(frozen=True)
class BackendInfo:
    """The metadata of a backend.

    Attributes:
        label: Its name in records, reports and file names: 1 to 40 letters, digits or any of _ . + -.
        description: A description in one printable line.
        dtype: The dtype that it computes in, one of DTYPES.
        scales: Whether it scales the loss.
        bounded_scale: Whether the loss scale has a minimum and a maximum.
        half_weights: Whether the model's weights have a 16-bit dtype.
        keeps_batchnorm: Whether BatchNorm's weights stay in fp32 by default, with `half_weights`.
        updates_half: Whether the optimizer updates the 16-bit weights directly, without fp32 masters.
        is_fp32: Whether all its tensors are fp32. Then no option of `precision` has an effect.
        uses_tf32: Whether fp32 convolutions and matrix products use TF32, in evaluations too.
        target: For a built-in backend, module:class in this package; imported on use.
        source: For a plug-in, the hash of its file.

    Raises:
        ValueError: The label, the description or the dtype is not allowed.
    """

    label: str
    description: str
    dtype: str = "float32"
    scales: bool = False
    bounded_scale: bool = False
    half_weights: bool = False
    keeps_batchnorm: bool | None = None
    updates_half: bool = False
    is_fp32: bool = False
    uses_tf32: bool = False
    target: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.label, str) or not re.fullmatch(_LABEL, self.label):
            raise ValueError(f"label={self.label!r}: expected 1 to 40 letters, digits or any of _ . + -")
        if not _is_description(self.description):
            raise ValueError(
                f"description={self.description!r}: expected a line of at most {MAX_DESCRIPTION} characters"
            )
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype={self.dtype!r}: expected one of {', '.join(DTYPES)}")

    @property
    def weight_dtype(self) -> str:
        """Return the dtype in which the backend keeps trainable weights."""
        return self.dtype if self.half_weights else "float32"

    @property
    def is_strict_fp32(self) -> bool:
        """Return whether all its tensors are fp32 and TF32 is off."""
        return self.is_fp32 and not self.uses_tf32

    def record(self) -> dict[str, str]:
        """Return a plug-in's metadata for a run's record, so that readers do not need the plug-in.

        Empty for a built-in backend.
        """
        if not self.source:
            return {}
        return {
            "backend_label": self.label,
            "backend_words": self.description,
            "backend_type": self.dtype,
            "backend_source": self.source,
        }


def _is_description(value: Any) -> bool:
    """Return whether a plug-in's description is a printable line that is not too long."""
    return isinstance(value, str) and 0 < len(value) <= MAX_DESCRIPTION and value.isprintable()


@dataclass(frozen=True)
class PrecisionOptions:
    """The options of a backend. A backend ignores options that do not apply to it.

    Attributes:
        loss_scale: "dynamic", or a static number.
        init_scale: The first dynamic scale.
        growth_interval: The number of steps without an overflow after which a dynamic scale doubles.
        min_loss_scale: The minimum of a bounded dynamic scale; None for the backend's default (apex: none).
        max_loss_scale: The maximum of a bounded dynamic scale; None for the backend's default (apex: 2**24).
        keep_batchnorm_fp32: Whether BatchNorm stays in fp32 in a network with 16-bit weights; None for the
            backend's default.
        keep_fp32: Names of modules that compute in fp32; "*" matches any part of a name (`keep_fp32.py`).
        tf32: Whether fp32 products use TF32 in training; None leaves PyTorch's switches as they are.
        seed: The seed of a backend that draws random numbers.
        weights: "float32" to convert the network's trainable weights to fp32 before the backend prepares
            them, "keep" to leave the dtype in which they arrive.
    """

    loss_scale: float | str = "dynamic"
    init_scale: float = 2.0**16
    growth_interval: int = 2000
    min_loss_scale: float | None = None
    max_loss_scale: float | None = None
    keep_batchnorm_fp32: bool | None = None
    keep_fp32: Sequence[str] | str | None = None
    tf32: bool | None = None
    seed: int = 0
    weights: str = "float32"


APEX: dict[str, Any] = {"scales": True, "bounded_scale": True}
PURE_16_BIT: dict[str, Any] = {"half_weights": True, "keeps_batchnorm": False, "updates_half": True}
O2: dict[str, Any] = {"half_weights": True, "keeps_batchnorm": True}
FP16 = "float16"
BF16 = "bfloat16"
BUILT_IN = (
    BackendInfo("none", "fp32", is_fp32=True, target="base:Precision"),
    BackendInfo("tf32", "fp32 on TF32 tensor cores", is_fp32=True, uses_tf32=True, target="base:TF32"),
    BackendInfo("native", "torch.amp", FP16, scales=True, target="native:Native"),
    BackendInfo("native_bf16", "torch.amp bf16", BF16, target="native:NativeBFloat16"),
    BackendInfo("apex_o1", "apex O1", FP16, **APEX, target="o1.backend:ApexO1"),
    BackendInfo("apex_o1_bf16", "apex O1 in bf16", BF16, **APEX, target="o1.backend:ApexO1BFloat16"),
    BackendInfo("apex_o2", "apex O2", FP16, **APEX, **O2, target="half_weights:ApexO2"),
    BackendInfo("fp16", "everything in fp16", FP16, **APEX, **PURE_16_BIT, target="half_weights:Float16"),
    BackendInfo("bf16", "everything in bf16", BF16, **PURE_16_BIT, target="half_weights:BFloat16"),
    BackendInfo(
        "bf16_sr",
        "bf16 with stochastic rounding",
        BF16,
        **PURE_16_BIT,
        target="stochastic_rounding:StochasticBFloat16",
    ),
)
REGISTRY = {backend.label: backend for backend in BUILT_IN}
PLAIN = BUILT_IN[0].label  # strict fp32
# The reason why the backend tf32 has no `precision.keep_fp32`.
NO_KEEP_FP32_UNDER_TF32 = (
    "backend={} uses TF32 in every module, because PyTorch has one switch for all of them; leave it out"
)
# Names that other libraries use for a backend.
ALIASES = {
    "none": "o0 fp32 float32 32 32-true full standard no off",
    "tf32": "tf-32 tf32-true tensorfloat32 tensorfloat-32 tensorfloat",
    "native": "amp torch.amp torch_amp torch-amp autocast 16-mixed fp16-mixed mixed mixed_float16",
    "native_bf16": "bf16-mixed bf16_mixed mixed_bfloat16 amp_bf16 amp-bf16 native-bf16 torch-amp-bf16",
    "apex_o1": "o1 apex apex-o1 apex.amp apexo1 nvidia-apex-amp",
    "apex_o1_bf16": "o1-bf16 o1_bf16 apex-o1-bf16 apex_bf16",
    "apex_o2": "o2 apex-o2 apexo2",
    "fp16": "o3 half float16 16 16-true fp16-true pure_fp16 pure-fp16",
    "bf16": "bfloat16 bf16-true bf16_true pure_bf16 pure-bf16",
    "bf16_sr": "sr bf16-sr stochastic_rounding stochastic-rounding",
}
LABELS_BY_ALIAS = {alias: label for label, aliases in ALIASES.items() for alias in aliases.split()}
_SOURCES: dict[type, str] = {}  # class of a plug-in: hash of its file


def note_source(cls: type, source: str) -> None:
    """Note the hash of the file that a plug-in's class was loaded from."""
    _SOURCES[cls] = source


def complete_metadata(cls: Any, base: Any) -> BackendInfo:
    """Return the metadata of a backend's class.

    Without metadata of its own, a class has its name as label, the first line of its docstring as description
    and `input_dtype` as dtype. All else comes from the built-in class that it inherits from. For a plug-in,
    the hash of its file is added.

    Args:
        base: `Precision`, which this module cannot import because it imports torch.

    Raises:
        ValueError: The class's name is not allowed as label, or its docstring as description.
    """
    metadata: BackendInfo = cls.metadata
    if "metadata" not in vars(cls) and metadata in REGISTRY.values():
        metadata = _default_metadata(cls, base)
    source = _SOURCES.get(cls)
    return replace(metadata, source=source) if source else metadata


def _default_metadata(cls: Any, base: Any) -> BackendInfo:
    description = (cls.__doc__ or "").strip().partition("\n")[0].strip()
    if len(description) > MAX_DESCRIPTION:
        description = f"{description[: MAX_DESCRIPTION - 3].rstrip()}..."
    dtype = str(cls.input_dtype).removeprefix("torch.")
    own: dict[str, Any] = {"label": cls.__name__, "description": description or cls.__name__}
    if cls.metadata is base.metadata:  # it may compute in any dtype, so `is_fp32` is not inherited
        return BackendInfo(**own, dtype=dtype, scales=cls.scale is not base.scale)
    return replace(cls.metadata, **own, dtype=dtype, target="")
