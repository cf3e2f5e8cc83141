"""apex's loss scaler: its schedule and its state, kept on the device so that a step need not wait.

Source: `apex/amp/scaler.py` at the last commit of NVIDIA/apex that had it. Against `torch.amp.GradScaler` it
has a ceiling and an optional floor, and one overflow skips the step of every optimizer.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ampcompare.precision.casting import view_as_real
from ampcompare.precision.registry import PrecisionOptions

MAX_SCALE = 2.0**24
GROWTH, BACKOFF = 2.0, 0.5


class LossScaler:
    """A loss scale, dynamic or static.

    Dynamic: on overflow it is halved, not below `min_loss_scale`; after `growth_interval` updates without one
    it is doubled, not above `max_loss_scale`. Static (a number): never checks, never skips.
    """

    def __init__(self, options: PrecisionOptions, device: torch.device | str = "cpu") -> None:
        self.dynamic = options.loss_scale == "dynamic"
        self.growth_interval, self.floor = options.growth_interval, options.min_loss_scale
        self.ceiling = MAX_SCALE if options.max_loss_scale is None else options.max_loss_scale
        first = min(options.init_scale, self.ceiling) if self.dynamic else float(options.loss_scale)
        self.scale = torch.full((), first, dtype=torch.float32, device=device)
        self.unskipped = torch.zeros((), dtype=torch.int32, device=device)
        self.found_inf = torch.zeros((), dtype=torch.float32, device=device)
        # Known on the host for a static scale: 1 means that there is nothing to do at all.
        self.is_identity = not self.dynamic and first == 1.0

    def scale_loss(self, loss: Tensor) -> Tensor:
        """The loss times the scale, in fp32: of a copy, since autograd keeps it and the schedule moves it."""
        return loss.float() if self.is_identity else loss.float() * self.scale.clone()

    def unscale_(self, gradients: Sequence[Tensor]) -> None:
        """Divide gradients by the scale in place, one launch per type; note any inf or nan in `found_inf`."""
        inverse = self.scale.reciprocal()
        by_type: dict[torch.dtype, list[Tensor]] = defaultdict(list)
        for gradient in gradients:
            # The check has no kernel for complex numbers.
            dense = view_as_real(gradient._values() if gradient.is_sparse else gradient)
            by_type[dense.dtype].append(dense)
        for group in by_type.values():
            if self.dynamic:
                torch._amp_foreach_non_finite_check_and_unscale_(group, self.found_inf, inverse)
            else:
                torch._foreach_mul_(group, inverse)

    def update(self) -> None:
        """Move the schedule once by what was found since the last time."""
        if not self.dynamic:
            self.unskipped += 1
            return
        schedule = (GROWTH, BACKOFF, self.growth_interval)
        torch._amp_update_scale_(self.scale, self.unskipped, self.found_inf, *schedule)
        self.scale.clamp_(max=self.ceiling)
        if self.floor is not None:
            # Only an overflow is held at the floor: a first scale below it stays, as in the original.
            floor = torch.where(self.found_inf > 0, self.floor, self.scale)
            torch.maximum(self.scale, floor, out=self.scale)
        self.found_inf.zero_()

    def state_dict(self) -> dict[str, Any]:
        """{"loss_scale": float, "unskipped": int}, as apex. Waits for the device."""
        # sync: numbers for a checkpoint
        return {"loss_scale": self.scale.item(), "unskipped": int(self.unskipped)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scale.fill_(state["loss_scale"])
        self.unskipped.fill_(state["unskipped"])
        self.is_identity = not self.dynamic and state["loss_scale"] == 1.0
