"""Energy that the GPU drew, by NVML's own counter; absent where there is none."""

from __future__ import annotations

import torch


class EnergyMeter:
    """Joules since `start`, from the total energy counter of one NVIDIA GPU (Volta and later)."""

    def __init__(self, device: torch.device) -> None:
        self._handle = None
        self._start_mj = 0
        if device.type != "cuda":
            return
        import pynvml

        try:
            pynvml.nvmlInit()
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
        except pynvml.NVMLError:
            self._handle = None  # no such counter (older GPU, MIG slice, no driver library): the metric is absent

    def start(self) -> None:
        self._start_mj = self._read_mj() or 0

    def joules(self) -> float | None:
        """Joules since `start`, None where the GPU does not say."""
        now = self._read_mj()
        return None if now is None else (now - self._start_mj) / 1e3

    def _read_mj(self) -> int | None:
        if self._handle is None:
            return None
        import pynvml

        return pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
