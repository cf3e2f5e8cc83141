"""The base class of the backends with apex's loss scaling."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ampcompare.precision.base import Precision
from ampcompare.precision.loss_scaler import LossScaler
from ampcompare.precision.registry import PrecisionOptions
from ampcompare.precision.unscaling import OptimizerGradients, scaled_backward, unscale


class ScaledPrecision(Precision):
    """A backend with apex's loss scaling.

    `backward` with sync=True leaves unscaled gradients. The loss scale changes in `step`, or in the next
    `backward` if no step came between.
    """

    input_dtype = torch.float16

    def __init__(self, device: torch.device | None = None, options: PrecisionOptions | None = None) -> None:
        super().__init__(device, options)
        self.scaler = LossScaler(self.options, self.device)
        self.gradients: OptimizerGradients
        self._update_pending = False  # whether the scale is not yet updated for the last backward

    def convert(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Create fp32 masters for 16-bit weights if the backend has them."""
        has_masters = self.metadata.half_weights and not self.metadata.updates_half
        self.gradients = OptimizerGradients(optimizer, self.device, has_masters=has_masters)
        return model, optimizer

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss times the loss scale, in fp32."""
        return self.scaler.scale_loss(loss)

    def backward(self, loss: Tensor, *, sync: bool = True) -> None:
        """Backpropagate the scaled loss and unscale the gradients.

        With sync=False gradients stay scaled (apex's `delay_unscale`), so that DDP may reduce their sum with
        the last micro-batch.
        """
        self._update_scale()  # for an earlier backward of the same step, if it unscaled gradients
        with scaled_backward(self.scaler, [self.gradients], delay=not sync) as needs_update:
            self.scale(loss).backward()
        self._update_pending = needs_update

    def unscale_(self, optimizer: Optimizer) -> None:
        """Unscale gradients that `backward` left scaled."""
        if self.gradients.scaled:  # every backward was with sync=False
            unscale(self.scaler, [self.gradients])
            self._update_pending = True

    def _update_scale(self) -> None:
        if self._update_pending:
            self.scaler.update()
        self._update_pending = False

    def step(self, optimizer: Optimizer) -> Tensor:
        """Step, or skip the step after an overflow; update the loss scale; return whether it was skipped."""
        self.unscale_(optimizer)
        skipped = self.gradients.skip.to(torch.int64)
        self._skipped += skipped
        self.gradients.step(optimizer.step, dynamic=self.scaler.dynamic)
        self._update_scale()
        return skipped

    def scale_factor(self) -> Tensor:
        """Return the loss scale, 0-d fp32 on the device."""
        return self.scaler.scale

    def scales_dynamically(self) -> bool:
        """Return whether the loss scale is dynamic."""
        return self.scaler.dynamic

    def state_dict(self) -> dict[str, Any]:
        """Return the state with that of the loss scaler; waits for the device."""
        return super().state_dict() | {"loss_scaler0": self.scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        super().load_state_dict(state)
        self.scaler.load_state_dict(state["loss_scaler0"])
