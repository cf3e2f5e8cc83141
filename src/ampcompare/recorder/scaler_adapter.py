"""Loss scale and skipped steps of a user's loop, read through public calls without a wait for the device.

`get_scale()` and `state_dict()` of `torch.amp.GradScaler` wait for the device, and no public call tells
whether a step was skipped (pytorch issue 67590). `scaler.scale(x)` does not wait: it queues x times the
scale. So the reader scales a 1 after each step, and the result is copied to the host with the row.

`update()` lowers the scale by the backoff factor after an overflow and at no other time. Each such drop from
one step to the next therefore is a skipped step. The count is exact if `update()` is called once per step,
until the scale reaches 0. If it is called more often in a step, one call may undo the other's change of the
scale, and `update(new_scale)` replaces it: whether that step was skipped is then unknown, and so is the
count. Calls are counted by a method on the scaler itself, while the record is open.

A backend of AMP Compare counts its skipped steps itself.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ampcompare.errors import UserError
from ampcompare.precision.base import Precision
from ampcompare.system.device import is_host, widest_float


class Observation(NamedTuple):
    """What a scaler tells of a step.

    Attributes:
        before: The scale, or the number of skipped steps, before the step: a number on a CPU, else a tensor.
        after: The same after the step.
        is_known: Whether the two tell of a skip.
    """

    before: Any
    after: Any
    is_known: bool


class ScalerReader:
    """Reads loss scale and skipped steps of what scales the loss in a user's loop.

    Args:
        scaler: A GradScaler or an object with its methods, a `Precision`, an object with a `scaler`
            (Lightning's precision plug-in, an Accelerator), or None for no loss scaling.
        device: The device of the training.

    Raises:
        UserError: The scaler is anything else.
    """

    def __init__(self, scaler: Any, device: torch.device) -> None:
        self.device = device
        self._on_host = is_host(device)
        self._backend, self._scaler = _find_scaler(scaler, device)
        self._one = torch.ones((), dtype=torch.float32, device=device)
        get_factor = getattr(self._scaler, "get_backoff_factor", None)
        self._factor = get_factor() if get_factor else None
        self._now: Any = None  # the scale or the number of skipped steps after the last step
        self._own_update: Any = None
        self._counted_update: Any = None
        self._updates: list[bool] = []  # calls of `update` since the last step: whether of `update()`

    def begin(self) -> None:
        """Read the scale, and count calls of the scaler's `update()` from now on."""
        self.resume()
        update: Any = getattr(self._scaler, "update", None)

        def counted_update(*args: Any, **options: Any) -> Any:
            self._updates.append(all(value is None for value in (*args, *options.values())))
            return update(*args, **options)

        if callable(update):
            self._own_update, self._counted_update = update, counted_update
            with suppress(AttributeError):  # an object without attributes of its own
                self._scaler.update = counted_update

    def end(self) -> None:
        """Give the scaler its own `update()` back, unless another Recorder counts its calls meanwhile."""
        if self._counted_update is not None and getattr(self._scaler, "update", None) is self._counted_update:
            self._scaler.update = self._own_update

    def resume(self) -> None:
        """Take the scale as it is now: one that was loaded from a checkpoint is no skip of the next step."""
        self._now = self._read()

    def observe(self) -> Observation:
        """Return what the scaler tells of the step that was taken last. At most one launch on a device."""
        before, self._now = self._now, self._read()
        is_known = not self._updates or sum(self._updates) == 1
        self._updates = []
        return Observation(before, self._now, is_known)

    def _read(self) -> Any:
        if self._scaler is not None:
            return float(self._scaler.get_scale()) if self._on_host else self._scaler.scale(self._one)
        skipped = self._backend.skipped_steps()
        return skipped.item() if self._on_host else skipped.clone()  # counted in place

    def read_skips(self, observations: Sequence[Observation], device: torch.device) -> Tensor:
        """Return 1 for each skipped step, 0 for the others, and NaN where it is unknown, [steps]."""
        before, after = (
            torch.tensor(values, dtype=torch.float32) if self._on_host else torch.stack(values)
            for values in zip(*((one.before, one.after) for one in observations), strict=True)
        )
        if self._scaler is None:
            return after - before
        is_lower = after < before
        if self._factor is not None:
            # A drop by another factor is a checkpoint that was loaded. PyTorch computes the product in fp64.
            is_lower &= after == (before.to(widest_float(device)) * self._factor).float()
        skips = is_lower.float()
        for position, one in enumerate(observations):
            if not one.is_known:
                skips[position].fill_(torch.nan)
        return skips

    def scale_factor(self) -> Tensor:
        """Return the scale after the last observed step, 0-d fp32."""
        if self._scaler is None:
            return self._backend.scale_factor()
        return torch.tensor(self._now, dtype=torch.float32) if self._on_host else self._now

    def scales_dynamically(self) -> bool:
        """Return whether the scale is lowered after an overflow. A GradScaler may always."""
        return self._scaler is not None or self._backend.scales_dynamically()


def _find_scaler(scaler: Any, device: torch.device) -> tuple[Precision, Any]:
    """Return the backend that tells scale and skips, and the GradScaler that tells them in its place."""
    if isinstance(scaler, Precision):
        return scaler, None
    if not is_scaler(scaler):
        scaler = getattr(scaler, "scaler", scaler)
    if scaler is None or (is_scaler(scaler) and not scaler.is_enabled()):
        return Precision(device), None
    if not is_scaler(scaler):
        raise UserError(
            f"scaler={type(scaler).__name__}: expected a torch.amp.GradScaler, a backend of AMP Compare, "
            "an object with an attribute `scaler`, or None"
        )
    return Precision(device), scaler


def is_scaler(value: Any) -> bool:
    """Return whether a value has the methods of a GradScaler that are read."""
    return all(callable(getattr(value, name, None)) for name in ("scale", "get_scale", "is_enabled"))
