"""What a Recorder is given, checked: each refusal is a line."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from ampcompare.errors import UserError


def check_count(key: str, value: Any, least: int | None) -> int:
    """The whole number, also out of NumPy's. Raises UserError unless it is one, from `least` on."""
    if isinstance(value, bool) or not isinstance(value, Integral) or (least is not None and value < least):
        wanted = "expected a whole number" + ("" if least is None else f" from {least} on")
        raise UserError(f"{key}={short(value)}: {wanted}")
    return int(value)


def check_parts(optimizer: Any, model: Any) -> None:
    """Raise UserError unless the bare optimizer has groups of parameters and the model is a module."""
    if optimizer is not None and not isinstance(getattr(optimizer, "param_groups", None), list):
        what = f"optimizer={short(optimizer)}: expected a torch.optim.Optimizer"
        raise UserError(f"{what}; give one object, of several the first")
    if model is not None and not isinstance(model, nn.Module):
        raise UserError(f"model={short(model)}: expected a torch.nn.Module; give the network itself")


def check_loss(loss: Any, device: torch.device) -> None:
    """Raise UserError for what no row can have: no number, one that is complex, one on another device."""
    if isinstance(loss, Tensor):
        if loss.dtype.is_complex or not loss.numel():
            raise _no_loss(loss)
        if loss.device.type != device.type:
            what = f"device={str(device)!r}: the loss is on {loss.device}"
            raise UserError(f"{what}; give the recorder device={str(loss.device)!r}")
    elif loss is not None:
        number_of(loss)


def number_of(loss: Any) -> float:
    """A loss that is no tensor. Raises UserError."""
    if isinstance(loss, str):
        raise _no_loss(loss)
    try:
        return float(loss)
    except (TypeError, ValueError):
        raise _no_loss(loss) from None


def _no_loss(loss: Any) -> UserError:
    what = f"{loss.dtype} {[*loss.shape]}" if isinstance(loss, Tensor) else short(loss)
    return UserError(f"Recorder.step: loss={what}; expected the step's mean loss, a 0-d tensor or a number")


def differ(one: Any, other: Any) -> bool:
    """Whether two values are not the same; what cannot be compared is not."""
    try:
        return bool(one != other)
    except (TypeError, ValueError, RuntimeError):  # of several elements, on two devices
        return True


def short(value: Any) -> str:
    """A value in a line."""
    words = " ".join(repr(value).split())
    return words if len(words) <= 80 else f"{words[:77]}..."
