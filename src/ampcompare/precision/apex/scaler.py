"""apex's loss scaler: its schedule and its state, kept on the device so that a step need not wait.

Source: `apex/amp/scaler.py`. Against `torch.amp.GradScaler` it has a ceiling and an optional floor, and it
moves once per backward (each exit of `scale_loss`), not once per optimizer step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ampcompare.precision.options import PrecisionOptions

MAX_SCALE = 2.0**24


class LossScaler:
    """A loss scale, dynamic or static.

    Dynamic: on overflow times `backoff_factor`, not below `min_scale`; after `growth_interval` backwards
    without one times `growth_factor`, not above `max_scale`. Static (a number): never checks, never skips.
    """

    def __init__(
        self,
        loss_scale: float | str = "dynamic",
        *,
        device: torch.device | str = "cpu",
        init_scale: float = PrecisionOptions.init_scale,
        growth_factor: float = PrecisionOptions.growth_factor,
        backoff_factor: float = PrecisionOptions.backoff_factor,
        growth_interval: int = PrecisionOptions.growth_interval,
        min_scale: float | None = None,
        max_scale: float | None = MAX_SCALE,
    ) -> None:
        self.dynamic = loss_scale == "dynamic"
        self.max_scale = MAX_SCALE if max_scale is None else float(max_scale)
        self.min_scale = None if min_scale is None else float(min_scale)
        self.growth_factor, self.backoff_factor = growth_factor, backoff_factor
        self.growth_interval = growth_interval
        first = min(init_scale, self.max_scale) if self.dynamic else float(loss_scale)
        self.scale = torch.full((), first, dtype=torch.float32, device=device)
        self.unskipped = torch.zeros((), dtype=torch.int32, device=device)
        self.found_inf = torch.zeros((), dtype=torch.float32, device=device)
        # Known on the host for a static scale: 1 means that there is nothing to do at all.
        self.does_nothing = not self.dynamic and first == 1.0

    def unscale_(self, gradients: Sequence[Tensor]) -> None:
        """Divide gradients by the scale in place, one launch per type; note any inf or nan in `found_inf`."""
        if self.does_nothing:
            return
        is_mps = self.scale.device.type == "mps"  # which has no float64
        inverse = 1 / self.scale if is_mps else self.scale.double().reciprocal().float()
        by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
        for gradient in gradients:
            dense = gradient._values() if gradient.is_sparse else gradient
            by_kind[dense.device, dense.dtype].append(dense)
        for (device, _), group in by_kind.items():
            factor = inverse.to(device, non_blocking=True)
            if self.dynamic:
                found = self.found_inf.to(device, non_blocking=True)
                torch._amp_foreach_non_finite_check_and_unscale_(group, found, factor)
                if found is not self.found_inf:  # gradients on a second device
                    self.found_inf.copy_(torch.maximum(self.found_inf, found.to(self.found_inf.device)))
            else:
                torch._foreach_mul_(group, factor)

    def update(self) -> None:
        """Move the schedule once, after a backward; leaves `found_inf` for the caller to read and clear."""
        if not self.dynamic:
            self.unskipped += 1
            return
        schedule = (self.growth_factor, self.backoff_factor, self.growth_interval)
        torch._amp_update_scale_(self.scale, self.unskipped, self.found_inf, *schedule)
        self.scale.clamp_(max=self.max_scale)
        if self.min_scale is not None:
            # Only an overflow is held at the floor: a first scale below it stays, as in the original.
            floor = torch.where(self.found_inf > 0, self.min_scale, self.scale)
            torch.maximum(self.scale, floor, out=self.scale)

    def state_dict(self) -> dict[str, Any]:
        """{"loss_scale": float, "unskipped": int}, as apex. Waits for the device."""
        # sync: numbers for a checkpoint
        return {"loss_scale": self.scale.item(), "unskipped": int(self.unskipped)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scale.fill_(state["loss_scale"])
        self.unskipped.fill_(state["unskipped"])
        self.does_nothing = not self.dynamic and state["loss_scale"] == 1.0
