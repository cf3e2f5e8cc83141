"""apex's loss scaler, with its state on the device so that a step does not wait.

Source: `apex/amp/scaler.py` at the last commit of NVIDIA/apex that had it. Differences from
`torch.amp.GradScaler`: the scale has a maximum and an optional minimum, and an overflow skips the step of
every optimizer.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ampcompare.precision.registry import PrecisionOptions

MAX_SCALE = 2.0**24
GROWTH = 2.0
BACKOFF = 0.5


class LossScaler:
    """A dynamic or static loss scale.

    A dynamic scale is halved after an overflow, down to `min_loss_scale`, and doubled after
    `growth_interval` updates without one, up to `max_loss_scale`. A static scale checks no gradients and
    skips no step.

    Attributes:
        scale: The scale, 0-d fp32 on the device.
        unskipped: The number of updates since the last change of the scale, 0-d int32 on the device.
        found_inf: Above 0 after an overflow since the last update, 0-d fp32 on the device.
        is_identity: Whether the scale is static and 1, so that nothing has to be done.
    """

    def __init__(self, options: PrecisionOptions, device: torch.device | str = "cpu") -> None:
        self.dynamic = options.loss_scale == "dynamic"
        self.growth_interval = options.growth_interval
        self.floor = options.min_loss_scale
        self.ceiling = MAX_SCALE if options.max_loss_scale is None else options.max_loss_scale
        first = min(options.init_scale, self.ceiling) if self.dynamic else float(options.loss_scale)
        self.scale = torch.full((), first, dtype=torch.float32, device=device)
        self.unskipped = torch.zeros((), dtype=torch.int32, device=device)
        self.found_inf = torch.zeros((), dtype=torch.float32, device=device)
        # Computed from the option, because to read the scale would wait for the device.
        self.is_identity = not self.dynamic and first == 1.0

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Return the loss times the scale, in fp32."""
        if self.is_identity:
            return loss.float()
        # A copy of the scale: autograd saves it for the backward, and `update` changes it in place.
        return loss.float() * self.scale.clone()

    def unscale_(self, gradients: Sequence[Tensor]) -> None:
        """Divide gradients by the scale in place, with one launch per dtype; inf and nan set `found_inf`."""
        inverse = self.scale.reciprocal()
        by_dtype: dict[torch.dtype, list[Tensor]] = defaultdict(list)
        for gradient in gradients:
            dense = gradient._values() if gradient.is_sparse else gradient
            by_dtype[dense.dtype].append(dense)
        for group in by_dtype.values():
            if self.dynamic:
                torch._amp_foreach_non_finite_check_and_unscale_(group, self.found_inf, inverse)
            else:
                torch._foreach_mul_(group, inverse)

    def update(self) -> None:
        """Update the scale once, from the overflows since the last update."""
        if not self.dynamic:
            self.unskipped += 1
            return
        torch._amp_update_scale_(
            self.scale, self.unskipped, self.found_inf, GROWTH, BACKOFF, self.growth_interval
        )
        self.scale.clamp_(max=self.ceiling)
        if self.floor is not None:
            # The minimum applies after an overflow only. An initial scale below it stays, as in apex.
            floor = torch.where(self.found_inf > 0, self.floor, self.scale)
            torch.maximum(self.scale, floor, out=self.scale)
        self.found_inf.zero_()

    def state_dict(self) -> dict[str, Any]:
        """Return {"loss_scale": float, "unskipped": int} as apex does; waits for the device."""
        # sync: numbers for a checkpoint
        return {"loss_scale": self.scale.item(), "unskipped": int(self.unskipped)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self.scale.fill_(state["loss_scale"])
        self.unskipped.fill_(state["unskipped"])
        self.is_identity = not self.dynamic and state["loss_scale"] == 1.0
