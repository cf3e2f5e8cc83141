"""Loss, accuracy and counters of one log interval: gathered on the device, read once at its end."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class IntervalValues:
    """What an interval came to, on the host. `nonfinite_steps` are positions (0-based) within the interval."""

    loss: float
    accuracy: float
    scale: float
    skipped: int
    nonfinite_steps: list[int]


class Interval:
    """Sums of up to `length` steps in a buffer on the device; one slot a step, one copy to read them all."""

    def __init__(self, length: int, device: torch.device) -> None:
        self._device = device
        self._images: list[int] = []
        self._buffer = torch.zeros((2, length), dtype=torch.float32, device=device)

    def __len__(self) -> int:
        return len(self._images)

    def add(self, loss: Tensor, correct: Tensor, images: int) -> None:
        """One step: its mean loss, its number of right answers (both 0-d, on the device) and its images."""
        slot = len(self._images)
        if slot == self._buffer.shape[1]:  # an interval that got longer than announced
            self._buffer = torch.cat([self._buffer, torch.zeros_like(self._buffer)], dim=1)
        self._buffer[0, slot] = loss
        self._buffer[1, slot] = correct
        self._images.append(images)

    def read(self, scale: Tensor, skipped: Tensor) -> IntervalValues:
        """End the interval. Waits for the device."""
        count = len(self._images)
        parts = [self._buffer[:, :count].reshape(-1), scale.reshape(1).float(), skipped.reshape(1).float()]
        *values, last_scale, last_skipped = torch.cat(parts).tolist()  # sync: one copy a log interval
        losses, correct = values[:count], values[count:]
        images = sum(self._images)
        loss = sum(n * x for n, x in zip(self._images, losses, strict=True)) / images
        bad = [i for i, x in enumerate(losses) if not math.isfinite(x)]
        self._images = []
        return IntervalValues(loss, sum(correct) / images, last_scale, round(last_skipped), bad)
