"""apex's optimization levels O0 to O3, and checks of the arguments of `initialize`.

Source: `apex/amp/{frontend,_initialize}.py` at the last commit that had them.
"""

from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import nn

from ampcompare.precision.casting import SIXTEEN_BIT_DTYPES, name_dtype
from ampcompare.precision.weight_dtypes import find_complex_weights


@dataclass(frozen=True)
class Properties:
    """The properties of an optimization level.

    Attributes:
        cast_model_type: The dtype of the model's weights; None leaves it.
        patch_torch_functions: Whether functions are cast by the O1 lists.
        keep_batchnorm_fp32: Whether BatchNorm stays in fp32; None where it does not apply.
        master_weights: Whether the optimizer updates fp32 masters; None where it does not apply.
        loss_scale: "dynamic" or a number.
    """

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
# Values that an option accepts as text. False for `cast_model_type` leaves the model's dtype.
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
    """Return the properties of a level with the caller's overrides.

    Args:
        opt_level: "O0", "O1", "O2" or "O3".
        *overrides: A value for each property, in order; None keeps the level's value.

    Raises:
        RuntimeError: As in apex, an unknown level or an override that contradicts it.
        ValueError: A loss scale that is not allowed.
    """
    if opt_level not in LEVELS:
        known = ", ".join(map(repr, LEVELS))
        raise RuntimeError(
            f"Unexpected optimization level {opt_level!r}. Options are {known}. "
            "Note that in `O0`, `O1`, etc., the prefix O is the letter O, not the number zero."
        )
    names = [field.name for field in fields(Properties)]
    named = zip(names, overrides, strict=True)
    overridden = {name: value for name, value in named if value is not None}
    for name in overridden.keys() & OPTION_VALUES.keys():
        value = overridden[name]
        allowed = OPTION_VALUES[name]
        if str(value) not in allowed:
            raise RuntimeError(f"{name}={value!r}: expected {', '.join(allowed)} or None")
        overridden[name] = allowed[str(value)]
    if opt_level == "O1":
        for name, why in REFUSED_BY_O1.items():
            if overridden.get(name) not in (None, torch.float32):
                raise RuntimeError(f"With opt_level O1 {why}.")
    elif overridden.get("patch_torch_functions"):
        raise RuntimeError("patch_torch_functions=True can only be set by selecting opt_level O1.")
    if "loss_scale" in overridden:
        overridden["loss_scale"] = _parse_loss_scale(overridden["loss_scale"])
    return replace(LEVELS[opt_level], **overridden)


def _parse_loss_scale(value: Any) -> float | str:
    if value == "dynamic":
        return "dynamic"
    with suppress(TypeError, ValueError):
        if 0 < float(value) < float("inf"):
            return float(value)
    raise ValueError(f"loss_scale={value!r}: expected 'dynamic' or a positive number")


def check_model(model: nn.Module, *, scales_loss: bool) -> None:
    """Check a model as apex did.

    Raises:
        RuntimeError: The model is wrapped for parallel training, not in fp32, or has complex weights, whose
            gradients cannot be unscaled.
    """
    parallel = (nn.parallel.DistributedDataParallel, nn.DataParallel)
    if isinstance(model, parallel):
        raise RuntimeError(
            f"Incoming model is an instance of {type(model).__name__}. Parallel wrappers should only be "
            "applied to the model(s) AFTER the model(s) have been returned from amp.initialize."
        )
    for kind, tensors in (("param", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, tensor in tensors:
            if tensor.is_floating_point() and tensor.dtype is not torch.float32:
                raise RuntimeError(
                    f"Found {kind} {name} with type {name_dtype(tensor.dtype)}, expected float32. "
                    "When using amp.initialize, you do not need to call .half() on your model before "
                    "passing it."
                )
    complex_weights = find_complex_weights(model)
    if scales_loss and complex_weights:
        raise RuntimeError(
            f"PyTorch cannot unscale gradients of complex weights, as {complex_weights[0]} has; "
            "use loss_scale=1.0"
        )


def to_list(values: Any, kind: type, name: str, type_name: str) -> list[Any]:
    """Return one object or several of a type as a list.

    Raises:
        TypeError: There is an object of another type.
    """
    items = [values] if isinstance(values, kind) else values
    if not isinstance(items, list | tuple) or not all(isinstance(item, kind) for item in items):
        raise TypeError(
            f"{name} must be either a single {type_name} or a list of them, not {type(values).__name__}"
        )
    return list(items)
