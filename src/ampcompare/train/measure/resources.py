"""Energy that the GPU drew, by NVML's own counter; absent where there is none."""

import logging

import torch

from ampcompare.machine.device import nvml_name

log = logging.getLogger(__name__)


class EnergyMeter:
    """Joules since `start`, from the total energy counter of one NVIDIA GPU (Volta and later).

    A counter that fails later is given up: a warning says so once, and there are no joules any more.
    """

    def __init__(self, device: torch.device) -> None:
        self._handle = None
        self._start_mj: int | None = None
        if (name := nvml_name(device)) is None:
            return
        import pynvml

        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(name)
            pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
        except pynvml.NVMLError:
            self._handle = None  # no counter (older GPU, MIG slice, no driver library): no metric

    @property
    def counts(self) -> bool:
        """Whether the GPU says."""
        return self._handle is not None

    def start(self) -> None:
        self._start_mj = self._read_mj()

    def joules(self) -> float | None:
        """Joules since `start`, None where the GPU does not say or it has not been started."""
        began, now = self._start_mj, self._read_mj()
        return None if began is None or now is None else (now - began) / 1e3

    def _read_mj(self) -> int | None:
        if self._handle is None:
            return None
        import pynvml

        try:
            return pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
        except pynvml.NVMLError as problem:
            self._handle = None
            log.warning(f"energy/joules_per_image ends here: the GPU's energy counter fails ({problem})")
            return None
