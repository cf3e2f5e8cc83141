"""Readers of memory and energy, which `Timing` asks."""

import logging

import torch

from ampcompare import metrics
from ampcompare.system.device import is_host, nvml_name, peak_mib, reserved_mib, reset_peak

log = logging.getLogger(__name__)


class PeakMemory:
    """Reads the peak memory of training steps, without that of evaluations.

    An evaluation allocates its own batch, in fp32 under most backends. Without the pauses its peak would be
    the peak of every backend.

    Args:
        is_first_in_process: Whether the process has trained no run before. On a CPU the peak is that of the
            whole process, so only the first run has one.
    """

    def __init__(self, device: torch.device, *, is_first_in_process: bool = True) -> None:
        self._device = device
        self._is_readable = is_first_in_process or not is_host(device)
        self._before_pause = 0.0  # MiB

    def restart(self) -> None:
        """Forget the peak so far."""
        reset_peak(self._device)
        self._before_pause = 0.0

    def pause(self) -> None:
        """Stop counting until `resume`."""
        self._before_pause = self._peak() or 0.0

    def resume(self) -> None:
        """Count again from here on."""
        reset_peak(self._device)

    def read(self) -> dict[str, float]:
        """Return peak and reserved memory in MiB by metric key, without what the device does not tell."""
        values = {metrics.PEAK_MEMORY: self._peak(), metrics.RESERVED_MEMORY: reserved_mib(self._device)}
        return {key: mib for key, mib in values.items() if mib is not None}

    def _peak(self) -> float | None:
        peak = peak_mib(self._device) if self._is_readable else None
        if peak is None:
            return None
        return max(peak, self._before_pause)


class EnergyCounter:
    """Reads the total energy counter of one NVIDIA GPU (Volta and later) through NVML.

    A counter that fails later is given up: a warning says so once, and there are no joules any more.

    Attributes:
        is_available: Whether the GPU has a counter that can be read.
    """

    def __init__(self, device: torch.device) -> None:
        self._handle = None
        self._start_mj: int | None = None
        name = nvml_name(device)
        if name is None:
            return
        import pynvml

        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(name)
            pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
        except pynvml.NVMLError:
            self._handle = None  # no counter (older GPU, MIG slice, no driver library): no metric

    @property
    def is_available(self) -> bool:
        """Return whether the GPU has a counter that can be read."""
        return self._handle is not None

    def start(self) -> None:
        """Start counting here."""
        self._start_mj = self._read_mj()

    def joules(self) -> float | None:
        """Return the joules since `start`, or None if the GPU does not tell or `start` was not called."""
        now = self._read_mj()
        if self._start_mj is None or now is None:
            return None
        return (now - self._start_mj) / 1e3

    def _read_mj(self) -> int | None:
        if self._handle is None:
            return None
        import pynvml

        try:
            return pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
        except pynvml.NVMLError as problem:
            self._handle = None
            log.warning(
                f"energy/joules_per_image is no longer recorded: the GPU's energy counter failed ({problem})"
            )
            return None
