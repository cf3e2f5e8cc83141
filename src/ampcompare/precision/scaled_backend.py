"""Loss scaling as apex did it, for every backend that has apex's scaler."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ampcompare.precision.base import Precision
from ampcompare.precision.loss_scaler import LossScaler
from ampcompare.precision.registry import PrecisionOptions
from ampcompare.precision.unscaling import OptimizerGradients, scaled_backward, unscale


class ScaledPrecision(Precision):
    """Loss scaling as apex did it. After a `backward` with sync=True gradients are true gradients already;
    the scale that they were made with is in force until `step`.
    """

    input_dtype = torch.float16

    def __init__(self, device: torch.device | None = None, options: PrecisionOptions | None = None) -> None:
        super().__init__(device, options)
        self.scaler = LossScaler(self.options, self.device)
        self.gradients: OptimizerGradients
        self._update_pending = False  # whether the schedule has still to move for the last backward

    def convert(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        has_masters = self.metadata.half_weights and not self.metadata.updates_half
        self.gradients = OptimizerGradients(optimizer, self.device, has_masters=has_masters)
        return model, optimizer

    def scale(self, loss: Tensor) -> Tensor:
        return self.scaler.scale_loss(loss)

    def backward(self, loss: Tensor, *, sync: bool = True) -> None:
        """With sync=False gradients stay scaled (`delay_unscale`): DDP may then reduce the sum at the end."""
        self._update_scale()  # once for each that made true gradients, where a step has several
        with scaled_backward(self.scaler, [self.gradients], delay=not sync) as moves:
            self.scale(loss).backward()
        self._update_pending = moves

    def unscale_(self, optimizer: Optimizer) -> None:
        if self.gradients.scaled:  # every backward was with sync=False
            unscale(self.scaler, [self.gradients])
            self._update_pending = True

    def _update_scale(self) -> None:
        if self._update_pending:
            self.scaler.update()
        self._update_pending = False

    def step(self, optimizer: Optimizer) -> None:
        self.unscale_(optimizer)
        self._skipped += self.gradients.skip.to(torch.int64)
        self.gradients.step(optimizer.step, dynamic=self.scaler.dynamic)
        self._update_scale()

    def scale_factor(self) -> Tensor:
        return self.scaler.scale

    def scales_dynamically(self) -> bool:
        return self.scaler.dynamic

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"loss_scaler0": self.scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.scaler.load_state_dict(state["loss_scaler0"])
