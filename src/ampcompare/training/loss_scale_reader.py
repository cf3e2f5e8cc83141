"""Reads the loss scale and the skipped steps for the rows."""

from typing import Any

import torch
from torch import Tensor

from ampcompare.precision.base import Precision
from ampcompare.system.device import is_host


class LossScaleReader:
    """Reads loss scale and skipped steps of a built-in backend, without waiting for the device.

    `recorder/scaler_adapter.py` does the same for a user's GradScaler.
    """

    def __init__(self, precision: Precision) -> None:
        self.device = precision.device
        self._precision = precision
        self._never_skips = type(precision).step is Precision.step
        self._on_host = is_host(self.device)

    def begin(self) -> None:
        """Begin to observe."""

    def end(self) -> None:
        """End what `begin` began."""

    def scale_factor(self) -> Tensor:
        """Return the loss scale after the last step, 0-d fp32."""
        return self._precision.scale_factor()

    def scales_dynamically(self) -> bool:
        """Return whether the scaler lowers the loss scale after an overflow."""
        return self._precision.scales_dynamically()

    def observe(self) -> Any:
        """Return the number of skipped steps so far, an int on the host or a 0-d tensor.

        Call it before the first step and after each step.
        """
        if self._never_skips:
            return 0
        skipped = self._precision.skipped_steps()
        return skipped.item() if self._on_host else skipped.clone()

    def skips(self, observations: list[Any]) -> Tensor:
        """Return 1 for each skipped step and 0 for the others, [steps]; NaN where it is unknown.

        Args:
            observations: What `observe` returned before the first and after each of the steps.
        """
        if self._never_skips:
            return torch.zeros(len(observations) - 1, device=self.device)
        counts = torch.tensor(observations) if self._on_host else torch.stack(observations)
        return counts.diff()
