"""The loss scale of somebody's loop and the steps that it skipped, read by public calls, without a wait.

`torch.amp.GradScaler` tells neither without one: `get_scale()` and `state_dict()` read the device, and
nothing public says whether a step was skipped (pytorch 67590). But `scaler.scale(x)` is x times the scale,
queued on the device; asked for a 1 behind each step it gives the scale as it then was, read with the row.
`update()` lowers the scale after an overflow and at no other time, so each drop from one step to the next is
a step that was skipped.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from ampcompare.errors import UserError
from ampcompare.machine.device import is_host
from ampcompare.precision.base import Precision

CALLS = ("scale", "get_scale", "is_enabled")  # what a scaler must have

# What the record says of where its skipped steps are from.
COUNTED = "counted by the backend"
NO_SCALE = "none: there is no loss scale"
DROPS = (
    "drops of the loss scale from one step to the next: exact where update() is called once a step and moves "
    "the scale by itself, too few where it is called more often, or where the scale has come to 0; behind an "
    "evaluation only drops by the scaler's own factor, since others may be of a checkpoint that was loaded"
)


class Scaling(Protocol):
    """The loss scaling of a loop: what rows ask of it, a look behind each step, a new beginning."""

    device: torch.device
    skips_are: str

    def look(self, *, cold: bool = False) -> None: ...
    def restart(self) -> None: ...
    def scale_factor(self) -> Tensor: ...
    def skipped_steps(self) -> Tensor: ...
    def scales_dynamically(self) -> bool: ...


def scaling_of(scaler: Any, device: torch.device) -> Scaling:
    """What reads a scaler: a GradScaler or one like it, a backend of ours, what has one as its `scaler`
    (Lightning's precision plug-in, an Accelerator), or None.

    Raises UserError for anything else.
    """
    if isinstance(scaler, Precision):
        return OfBackend(scaler, COUNTED)
    if not all(callable(getattr(scaler, name, None)) for name in CALLS) and hasattr(scaler, "scaler"):
        scaler = scaler.scaler
    if scaler is None:
        return OfBackend(Precision(device), NO_SCALE)
    if not all(callable(getattr(scaler, name, None)) for name in CALLS):
        what = f"scaler={type(scaler).__name__}: expected a torch.amp.GradScaler, a backend of ours"
        raise UserError(f"{what}, something with a `scaler`, or None; give what scales the loss")
    if not scaler.is_enabled():
        return OfBackend(Precision(device), NO_SCALE)
    return OfScaler(scaler, device)


class OfBackend:
    """That of a backend of ours, which says it all by itself; the base of all is fp32, without one."""

    def __init__(self, precision: Precision, skips_are: str) -> None:
        self.precision, self.device, self.skips_are = precision, precision.device, skips_are
        self.scale_factor, self.skipped_steps = precision.scale_factor, precision.skipped_steps
        self.scales_dynamically = precision.scales_dynamically

    def look(self, *, cold: bool = False) -> None:
        """Nothing to do."""

    def restart(self) -> None:
        """Nothing to do."""


class OfScaler:
    """That of a GradScaler. `look` behind each step, when it has been updated."""

    skips_are = DROPS

    def __init__(self, scaler: Any, device: torch.device, *, waits: bool | None = None) -> None:
        """With `waits` it is read at once: cheaper, and on a CPU no wait. None: as the device is."""
        self._scaler, self.device = scaler, device
        self._skipped = torch.zeros((), dtype=torch.int64, device=device)
        self._seen: list[Any] = []  # the scale behind each step, and one before the first
        waits = is_host(device) if waits is None else waits
        self._see = scaler.get_scale if waits else partial(scaler.scale, torch.ones((), device=device))
        self.restart()

    def look(self, *, cold: bool = False) -> None:
        """See the scale behind a step: at most one launch. Before a `cold` one the program may have loaded
        another scale: what is no drop by the scaler's own factor is no skip.
        """
        if cold:
            self._count()
        self._seen.append(self._see())
        if cold and (factor := getattr(self._scaler, "get_backoff_factor", None)):
            before, now = self._tensors(self._seen)
            self._skipped = self._skipped + ((now < before) & (now == before * factor()))
            self._seen = self._seen[-1:]

    def restart(self) -> None:
        """The next step begins with the scale as it is now, whatever was done to it since the last one."""
        self._count()
        # sync: before the first step, and where the user's loop has paused
        self._seen = [self._scaler.get_scale()]

    def scale_factor(self) -> Tensor:
        """The scale behind the last step that was looked at, 0-d fp32."""
        return self._tensors(self._seen[-1:])[0]

    def skipped_steps(self) -> Tensor:
        """Steps skipped up to the last look, 0-d int64."""
        self._count()
        return self._skipped

    def scales_dynamically(self) -> bool:
        """As far as can be told: it moves, or would."""
        return True

    def _count(self) -> None:
        if len(self._seen) > 1:
            seen = self._tensors(self._seen)
            self._skipped = self._skipped + (seen[1:] < seen[:-1]).sum()
            self._seen = self._seen[-1:]

    def _tensors(self, seen: list[Any]) -> Tensor:
        """The scales as one tensor; numbers are written by the device, which is no copy to wait for."""
        if is_host(self.device) and not any(isinstance(x, Tensor) for x in seen):
            return torch.tensor(seen)
        whole = (torch.full((), x, device=self.device) if isinstance(x, float) else x for x in seen)
        return torch.stack([*whole])
