"""What O1, O2 and pure fp16 share: backward and step under apex's loss scale."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ampcompare.precision.apex.scaler import LossScaler
from ampcompare.precision.apex.scaling import ScaledGradients, finish_backward, scaled_backward
from ampcompare.precision.base import Precision, PrecisionOptions
from ampcompare.precision.skipping import step_unless


class ApexScaling(Precision):
    """Loss scaling as apex did it. After a `backward` with sync=True gradients are true gradients already."""

    input_dtype = torch.float16

    def __init__(self, device: torch.device | None = None, options: PrecisionOptions | None = None) -> None:
        super().__init__(device, options)
        o = self.options
        self.scaler = LossScaler(
            o.loss_scale,
            device=self.device,
            init_scale=o.init_scale,
            growth_factor=o.growth_factor,
            backoff_factor=o.backoff_factor,
            growth_interval=o.growth_interval,
            min_scale=o.min_loss_scale,
            max_scale=o.max_loss_scale,
        )
        self.gradients: ScaledGradients | None = None

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        self.gradients = ScaledGradients(optimizer, self.device)
        return model, optimizer

    def scale(self, loss: Tensor) -> Tensor:
        # A copy of the scale, since autograd keeps it and the schedule moves it in place.
        return loss.float() if self.scaler.does_nothing else loss.float() * self.scaler.scale.clone()

    def backward(self, loss: Tensor, *, sync: bool = True) -> None:
        """With sync=False gradients stay scaled (`delay_unscale`): DDP may then reduce the sum at the end."""
        scaled_backward(self.scaler, self._prepared(), self.scale(loss).backward, delay=not sync)

    def unscale_(self, optimizer: Optimizer) -> None:
        (gradients,) = self._prepared()
        if gradients.scaled:  # every backward was with sync=False
            finish_backward(self.scaler, [gradients], delay=False)

    def step(self, optimizer: Optimizer) -> None:
        (gradients,) = self._prepared()
        self.unscale_(optimizer)
        if self.scaler.dynamic:
            step_unless(optimizer, gradients.skip)
            self._skipped += gradients.skip.to(torch.int64)
            gradients.skip.zero_()
        else:
            optimizer.step()

    def _prepared(self) -> list[ScaledGradients]:
        if self.gradients is None:
            raise RuntimeError(f"{self.name}: call prepare(model, optimizer) before backward and step")
        return [self.gradients]

    def scale_factor(self) -> Tensor:
        return self.scaler.scale

    def scales_dynamically(self) -> bool:
        return self.scaler.dynamic

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"loss_scaler0": self.scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.scaler.load_state_dict(state["loss_scaler0"])
