"""Energy a sample of somebody's loop: the GPU's own counter, read with the rows."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ampcompare.measure.energy import EnergyMeter


class StepEnergy:
    """Joules a sample between two rows.

    The counter is read where the host is, which is ahead of the device by what is queued; at both ends of a
    row by about as much. So what a row begins with has to be steps: the first row after a pause has no
    energy, and neither a wait nor an evaluation is in any.
    """

    def __init__(self, device: torch.device, on_note: Callable[[str], None]) -> None:
        self._meter = EnergyMeter(device, on_note)
        self._samples = 0
        self._begun = False

    def add(self, samples: int) -> None:
        """Steps on so many samples."""
        self._samples += samples

    def restart(self) -> None:
        """Something else was done since the last step."""
        self._begun = False

    def per_sample(self) -> float | None:
        """Joules a sample since the last call; None for the first one after a `restart`, and without a GPU
        that counts.
        """
        joules = self._meter.joules() if self._begun else None
        samples, self._samples = self._samples, 0
        self._meter.start()
        self._begun = True
        return joules / samples if joules is not None and samples else None
