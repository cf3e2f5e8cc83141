"""Loss scale and skipped steps of a user's loop, read through public calls without a wait for the device.

`get_scale()` and `state_dict()` of `torch.amp.GradScaler` wait for the device, and no public call tells
whether a step was skipped (pytorch issue 67590). `scaler.scale(x)` does not wait: it queues x times the
scale. So the reader scales a 1 after each step, and the result is copied to the host with the row.

`update()` lowers the scale by the backoff factor after an overflow and at no other time. Each such drop from
one step to the next therefore is a skipped step. The count is exact if `update()` is called once per step. It
is too low if `update()` is called more often, or when the scale has reached 0.
"""

from typing import Any

import torch
from torch import Tensor

from ampcompare.errors import UserError
from ampcompare.precision.base import Precision
from ampcompare.system.device import is_host, widest_float
from ampcompare.training.loss_scale_reader import LossScaleReader


def make_scale_reader(scaler: Any, device: torch.device) -> LossScaleReader:
    """Return a reader for the object that scales the loss.

    Args:
        scaler: A GradScaler or an object with its methods, a `Precision`, an object with a `scaler`
            (Lightning's precision plug-in, an Accelerator), or None for no loss scaling.
        device: The device of the training.

    Raises:
        UserError: It is anything else.
    """
    if isinstance(scaler, Precision):
        return LossScaleReader(scaler)
    if not is_scaler(scaler):
        scaler = getattr(scaler, "scaler", scaler)
    if scaler is None or (is_scaler(scaler) and not scaler.is_enabled()):
        return LossScaleReader(Precision(device))
    if not is_scaler(scaler):
        raise UserError(
            f"scaler={type(scaler).__name__}: expected a torch.amp.GradScaler, a backend of AMP Compare, "
            "an object with an attribute `scaler`, or None"
        )
    return GradScalerReader(scaler, device)


def is_scaler(value: Any) -> bool:
    """Return whether a value has the methods of a GradScaler that are read."""
    return all(callable(getattr(value, name, None)) for name in ("scale", "get_scale", "is_enabled"))


class GradScalerReader(LossScaleReader):
    """Reads a GradScaler's scale after each step, when `update()` has been called."""

    def __init__(self, scaler: Any, device: torch.device) -> None:
        self.device = device
        self._scaler = scaler
        self._on_host = is_host(device)
        self._one = torch.ones((), dtype=torch.float32, device=device)
        get_factor = getattr(scaler, "get_backoff_factor", None)
        self._factor = get_factor() if get_factor else None
        self._now: Any = None  # the scale after the last step: a number on a CPU, else a tensor

    def observe(self) -> Any:
        """Return the scale, with at most one launch on a device. On a CPU it is read as a number."""
        self._now = float(self._scaler.get_scale()) if self._on_host else self._scaler.scale(self._one)
        return self._now

    def scale_factor(self) -> Tensor:
        """Return the scale after the last observed step, 0-d fp32."""
        return torch.tensor(self._now, dtype=torch.float32) if self._on_host else self._now

    def skips(self, observations: list[Any]) -> Tensor:
        """Return which steps were skipped, as `LossScaleReader.skips` does."""
        if self._on_host:
            scales = torch.tensor(observations, dtype=torch.float32)
        else:
            scales = torch.stack(observations)
        before, now = scales[:-1], scales[1:]
        if self._factor is None:
            return now < before
        # A drop by another factor is a checkpoint that was loaded. PyTorch computes the product in fp64.
        lowered = (before.to(widest_float(self.device)) * self._factor).float()
        return (now < before) & (now == lowered)

    def scales_dynamically(self) -> bool:
        """Return True: GradScaler has no public attribute that tells."""
        return True
