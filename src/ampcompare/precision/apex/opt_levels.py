"""What apex's levels O0 to O3 come to, and what `initialize` refuses, in errors of the types of apex.

Source: `apex/amp/{frontend,_initialize}.py` at the last commit that had them.
"""

from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import nn

from ampcompare.precision.casting import SIXTEEN_BIT_DTYPES


@dataclass(frozen=True)
class Properties:
    """What a level comes to. `loss_scale` is "dynamic" or a number."""

    cast_model_type: torch.dtype | None
    patch_torch_functions: bool
    keep_batchnorm_fp32: bool | None
    master_weights: bool | None
    loss_scale: float | str


LEVELS = {
    "O0": Properties(torch.float32, False, None, False, 1.0),
    "O1": Properties(None, True, None, None, "dynamic"),
    "O2": Properties(torch.float16, False, True, True, "dynamic"),
    "O3": Properties(torch.float16, False, False, False, 1.0),
}
# What the words for an option mean; False says to leave the model's type as it is.
OPTION_VALUES: dict[str, dict[str, Any]] = {
    "cast_model_type": {str(t): t for t in (*SIXTEEN_BIT_DTYPES, torch.float32)} | {"False": None},
    "keep_batchnorm_fp32": {"True": True, "False": False},
}
REFUSED_BY_O1 = {
    "cast_model_type": "the model weights themselves should remain FP32; to cast them there are O2 and O3",
    "keep_batchnorm_fp32": "batchnorm is handled automatically: keep_batchnorm_fp32 should be None",
    "master_weights": "it doesn't make sense to use master_weights: the model weights themselves are FP32",
}


def resolve_properties(opt_level: str, *overrides: Any) -> Properties:
    """The level with the caller's overrides, one for each property (None: the level's own).

    Raises RuntimeError as apex did; ValueError for a loss scale that is none.
    """
    if opt_level not in LEVELS:
        note = "Note that in `O0`, `O1`, etc., the prefix O is the letter O, not the number zero."
        known = ", ".join(map(repr, LEVELS))
        raise RuntimeError(f"Unexpected optimization level {opt_level!r}. Options are {known}. {note}")
    named = zip((property.name for property in fields(Properties)), overrides, strict=True)
    given = {name: value for name, value in named if value is not None}
    for name in given.keys() & OPTION_VALUES.keys():
        if str(given[name]) not in OPTION_VALUES[name]:
            raise RuntimeError(f"{name}={given[name]!r}: expected {', '.join(OPTION_VALUES[name])} or None")
        given[name] = OPTION_VALUES[name][str(given[name])]
    if opt_level == "O1":
        for name, why in REFUSED_BY_O1.items():
            if given.get(name) not in (None, torch.float32):
                raise RuntimeError(f"With opt_level O1 {why}.")
    elif given.get("patch_torch_functions"):
        raise RuntimeError("patch_torch_functions=True can only be set by selecting opt_level O1.")
    if "loss_scale" in given:
        given["loss_scale"] = _parse_loss_scale(given["loss_scale"])
    return replace(LEVELS[opt_level], **given)


def _parse_loss_scale(value: Any) -> float | str:
    if value == "dynamic":
        return "dynamic"
    with suppress(TypeError, ValueError):
        if 0 < float(value) < float("inf"):
            return float(value)
    raise ValueError(f"loss_scale={value!r}: expected 'dynamic' or a positive number")


def check_model(model: nn.Module) -> None:
    """Raise RuntimeError for a model that is wrapped or not in fp32, as apex did."""
    parallel = (nn.parallel.DistributedDataParallel, nn.DataParallel)
    if isinstance(model, parallel):
        raise RuntimeError(
            f"Incoming model is an instance of {type(model).__name__}. Parallel wrappers should only be "
            "applied to the model(s) AFTER the model(s) have been returned from amp.initialize."
        )
    parameters = dict(model.named_parameters())
    for name, tensor in (parameters | dict(model.named_buffers())).items():
        if tensor.is_floating_point() and tensor.dtype is not torch.float32:
            what = f"Found {'param' if name in parameters else 'buffer'} {name} with type"
            raise RuntimeError(
                f"{what} {str(tensor.dtype).removeprefix('torch.')}, expected float32. "
                "When using amp.initialize, you do not need to call .half() on your model before passing it."
            )


def to_list(things: Any, kind: type, name: str, type_name: str) -> list[Any]:
    """One of a kind, or several, as a list. Raises TypeError for anything else."""
    found = [things] if isinstance(things, kind) else things
    if not isinstance(found, list | tuple) or not all(isinstance(thing, kind) for thing in found):
        expected = f"either a single {type_name} or a list of them"
        raise TypeError(f"{name} must be {expected}, not {type(things).__name__}")
    return list(found)
