"""The optimization levels O0 to O3: which options each is, and which it forbids.

Source: `apex/amp/frontend.py`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Properties:
    """What a level comes to. `loss_scale` is "dynamic" or a number."""

    enabled: bool = True
    opt_level: str = ""
    cast_model_type: torch.dtype | None = None
    patch_torch_functions: bool = False
    keep_batchnorm_fp32: bool | None = None
    master_weights: bool | None = None
    loss_scale: float | str = "dynamic"


LEVELS = {
    "O0": Properties(True, "O0", torch.float32, False, None, False, 1.0),
    "O1": Properties(True, "O1", None, True, None, None, "dynamic"),
    "O2": Properties(True, "O2", torch.float16, False, True, True, "dynamic"),
    "O3": Properties(True, "O3", torch.float16, False, False, False, 1.0),
}


def properties(opt_level: str, **overrides: Any) -> Properties:
    """The level with the caller's overrides (None: the level's own).

    Raises RuntimeError as apex did; ValueError for a loss scale that is none.
    """
    if opt_level not in LEVELS:
        raise RuntimeError(
            f"Unexpected optimization level {opt_level!r}. Options are 'O0', 'O1', 'O2', 'O3'. "
            "Note that in `O0`, `O1`, etc., the prefix O is the letter O, not the number zero."
        )
    given = {name: value for name, value in overrides.items() if value is not None}
    if "cast_model_type" in given:
        given["cast_model_type"] = _model_type(given["cast_model_type"])
    if opt_level == "O1":
        _refuse_for_o1(given)
    elif given.get("patch_torch_functions"):
        raise RuntimeError("patch_torch_functions=True can only be set by selecting opt_level O1.")
    if "loss_scale" in given:
        given["loss_scale"] = _loss_scale(given["loss_scale"])
    if "keep_batchnorm_fp32" in given:
        given["keep_batchnorm_fp32"] = _keep_batchnorm(given["keep_batchnorm_fp32"])
    return dataclasses.replace(LEVELS[opt_level], **given)


def _refuse_for_o1(given: dict[str, Any]) -> None:
    if given.get("cast_model_type") not in (None, torch.float32):
        raise RuntimeError(
            "O1 inserts casts around Torch functions rather than model weights, so with O1, the model "
            "weights themselves should remain FP32. If you wish to cast the model to a different type, use "
            "opt_level='O2' or 'O3'."
        )
    if "keep_batchnorm_fp32" in given:
        raise RuntimeError(
            "With opt_level O1, batchnorm functions are automatically handled: keep_batchnorm_fp32 should be "
            "None."
        )
    if "master_weights" in given:
        raise RuntimeError(
            "It doesn't make sense to use master_weights with O1. With O1, your model weights themselves "
            "should be FP32."
        )


def _model_type(value: Any) -> torch.dtype | None:
    if value is False:  # apex's way to say: leave the model as it is
        return None
    if value not in (torch.float16, torch.bfloat16, torch.float32):
        expected = "torch.float16, torch.bfloat16, torch.float32 or False"
        raise RuntimeError(f"cast_model_type={value!r}: expected {expected}")
    return value


def _keep_batchnorm(value: Any) -> bool:
    words = {"true": True, "false": False}
    found = words.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(found, bool):
        expected = "a boolean, the string 'True' or 'False', or None"
        raise RuntimeError(f"keep_batchnorm_fp32={value!r}: expected {expected}")
    return found


def _loss_scale(value: Any) -> float | str:
    if value == "dynamic":
        return "dynamic"
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number < float("inf"):
        raise ValueError(f"loss_scale={value!r}: expected 'dynamic' or a positive number")
    return number
