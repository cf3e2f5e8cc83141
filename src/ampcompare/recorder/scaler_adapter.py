"""The loss scale of somebody's loop and the steps that it skipped, read by public calls, without a wait.

`torch.amp.GradScaler` tells neither without one: `get_scale()` and `state_dict()` read the device, and
nothing public says whether a step was skipped (pytorch 67590). But `scaler.scale(x)` is x times the scale,
queued on the device; asked for a 1 behind each step it gives the scale as it then was, read with the row.
`update()` lowers the scale by its factor after an overflow and at no other time, so each such drop from one
step to the next is a step that was skipped: exact where `update()` is called once a step and moves the scale
by itself, too few where it is called more often, or where the scale has come to 0.
"""

from typing import Any

import torch
from torch import Tensor

from ampcompare.errors import UserError
from ampcompare.precision.base import Precision
from ampcompare.system.device import is_host, widest_float
from ampcompare.training.loss_scale_reader import LossScaleReader


def make_scale_reader(scaler: Any, device: torch.device) -> LossScaleReader:
    """What reads a scaler: a GradScaler or one like it, a backend of ours, what has one as its `scaler`
    (Lightning's precision plug-in, an Accelerator), or None.

    Raises UserError for anything else.
    """
    if isinstance(scaler, Precision):
        return LossScaleReader(scaler)
    if not _is_scaler(scaler):
        scaler = getattr(scaler, "scaler", scaler)
    if scaler is None or (_is_scaler(scaler) and not scaler.is_enabled()):
        return LossScaleReader(Precision(device))
    if not _is_scaler(scaler):
        what = f"scaler={type(scaler).__name__}: expected a torch.amp.GradScaler, a backend of ours"
        raise UserError(f"{what}, something with a `scaler`, or None; give what scales the loss")
    return GradScalerReader(scaler, device)


def _is_scaler(thing: Any) -> bool:
    return all(callable(getattr(thing, name, None)) for name in ("scale", "get_scale", "is_enabled"))


class GradScalerReader(LossScaleReader):
    """That of a GradScaler: its scale is looked at behind each step, when it has been updated."""

    def __init__(self, scaler: Any, device: torch.device) -> None:
        self._scaler, self.device = scaler, device
        self._on_host, self._one = is_host(device), torch.ones((), dtype=torch.float32, device=device)
        factor = getattr(scaler, "get_backoff_factor", None)
        self._factor = factor() if factor else None
        self._now: Any = None

    def observe(self) -> Any:
        """The scale: at most one launch. On the host it is read at once: cheaper, and no wait."""
        self._now = float(self._scaler.get_scale()) if self._on_host else self._scaler.scale(self._one)
        return self._now

    def scale_factor(self) -> Tensor:
        """The scale behind the last step that was looked at, 0-d fp32."""
        return torch.tensor(self._now, dtype=torch.float32) if self._on_host else self._now

    def skips(self, observations: list[Any]) -> Tensor:
        """As `LossScaleReader.skips`."""
        scales = (
            torch.tensor(observations, dtype=torch.float32) if self._on_host else torch.stack(observations)
        )
        before, now = scales[:-1], scales[1:]
        if self._factor is None:
            return now < before
        # Whoever loads a checkpoint in between lowers it by anything. PyTorch rounds the product in fp64.
        lowered = (before.to(widest_float(self.device)) * self._factor).float()
        return (now < before) & (now == lowered)

    def scales_dynamically(self) -> bool:
        """As far as can be told: it moves, or would."""
        return True
