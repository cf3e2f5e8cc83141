"""Precision backends: everything that differs between fp32, native AMP, apex O1, O2 and pure fp16.

A new backend is one new file and one line in REGISTRY. The registry is plain data and loads no torch, so that
the command line can list backends at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

    from ampcompare.precision.base import Precision


class Backend(NamedTuple):
    """Where a backend lives and what its options may be."""

    target: str  # module:class, imported on use
    label: str  # first word of a run's name
    dtypes: tuple[str, ...]  # allowed precision.dtype; the first is what the backend is
    bounded_scale: bool  # whether the loss scale has a floor and a ceiling
    half_weights: bool = False  # whether the model's weights are fp16
    keeps_batchnorm: bool | None = (
        None  # of a model with fp16 weights: whether BatchNorm's are fp32 by default
    )


REGISTRY: dict[str, Backend] = {
    "none": Backend("ampcompare.precision.base:Precision", "standard", ("float16", "bfloat16"), True),
    "native": Backend("ampcompare.precision.native:Native", "torch-amp", ("float16", "bfloat16"), False),
    "apex_o1": Backend("ampcompare.precision.apex.o1:ApexO1", "nvidia-apex-amp", ("float16",), True),
    "apex_o2": Backend(
        "ampcompare.precision.apex.o2:ApexO2", "nvidia-apex-amp-o2", ("float16",), True, True, True
    ),
    "fp16": Backend("ampcompare.precision.half:Half", "pure-fp16", ("float16",), True, True, False),
}


def build_precision(name: str, device: torch.device | str = "cpu", **options: Any) -> Precision:
    """The backend `name` for tensors on `device`.

    `options` are those of `PrecisionOptions` (enabled, dtype, loss_scale, init_scale, ...). With
    `enabled=False` any backend is plain fp32. Raises ValueError for an unknown name.
    """
    import torch

    from ampcompare.precision.base import Precision
    from ampcompare.precision.options import PrecisionOptions

    if name not in REGISTRY:
        raise ValueError(f"backend={name!r}: expected one of {', '.join(REGISTRY)}")
    settings = PrecisionOptions(**options)
    module, _, cls = REGISTRY[name].target.partition(":")
    backend = getattr(import_module(module), cls) if settings.enabled else Precision
    precision = backend(torch.device(device), settings)
    precision.name = name
    return precision
