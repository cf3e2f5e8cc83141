"""Loss scale and skipped steps of a user's loop, read through public calls without a wait for the device.

`get_scale()` and `state_dict()` of `torch.amp.GradScaler` wait for the device, and no public call tells
whether a step was skipped (pytorch issue 67590). `scaler.scale(x)` does not wait: it queues x times the
scale. So the reader scales a 1 after each step, and the result is copied to the host with the row.

`update()` lowers the scale by the backoff factor after an overflow and at no other time. Each such drop from
one step to the next therefore is a skipped step. The count is exact if `update()` is called once per step,
until the scale reaches 0. If it is called more often in a step, one call may undo the other's change of the
scale, and `update(new_scale)` replaces it: whether that step was skipped is then unknown, and so is the
count. Calls are counted by a method on the scaler itself, while the record is open.
"""

from contextlib import suppress
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
        self._updates: list[bool] = []  # calls of `update` since the last observation: whether of `update()`

    def begin(self) -> None:
        """Count calls of the scaler's `update()` from now on."""
        update: Any = getattr(self._scaler, "update", None)

        def counted_update(*args: Any, **options: Any) -> Any:
            self._updates.append(all(value is None for value in (*args, *options.values())))
            return update(*args, **options)

        if callable(update):
            with suppress(AttributeError):  # an object without attributes of its own
                self._scaler.update = counted_update

    def end(self) -> None:
        """Give the scaler its own `update()` back."""
        with suppress(AttributeError):
            del self._scaler.update

    def observe(self) -> tuple[Any, bool]:
        """Return the scale, and whether its change since the last observation does not tell of a skip.

        On a device this is at most one launch. On a CPU the scale is read as a number.
        """
        self._now = float(self._scaler.get_scale()) if self._on_host else self._scaler.scale(self._one)
        is_ambiguous = bool(self._updates) and sum(self._updates) != 1
        self._updates = []
        return self._now, is_ambiguous

    def scale_factor(self) -> Tensor:
        """Return the scale after the last observed step, 0-d fp32."""
        return torch.tensor(self._now, dtype=torch.float32) if self._on_host else self._now

    def skips(self, observations: list[Any]) -> Tensor:
        """Return which steps were skipped, as `LossScaleReader.skips` does; NaN where it is unknown."""
        scales_list = [scale for scale, _ in observations]
        is_unknown = torch.tensor([ambiguous for _, ambiguous in observations[1:]], device=self.device)
        scales = torch.tensor(scales_list, dtype=torch.float32) if self._on_host else torch.stack(scales_list)
        before, now = scales[:-1], scales[1:]
        is_lower = now < before
        if self._factor is not None:
            # A drop by another factor is a checkpoint that was loaded. PyTorch computes the product in fp64.
            is_lower &= now == (before.to(widest_float(self.device)) * self._factor).float()
        return torch.where(is_unknown, torch.nan, is_lower.float())

    def scales_dynamically(self) -> bool:
        """Return True: GradScaler has no public attribute that tells."""
        return True
