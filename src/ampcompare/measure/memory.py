"""Peak memory: what PyTorch allocated on the device, or the resident set of the process on a CPU."""

from __future__ import annotations

import sys

import torch

MIB = 2**20


def reset_peak(device: torch.device) -> None:
    """Forget the peak so far (start-up, warm-up). A CPU's peak is the process's and cannot be reset."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_mib(device: torch.device) -> float:
    """Peak memory in MiB: allocated by tensors on a GPU, resident set of the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / MIB
    if device.type == "mps":
        return torch.mps.current_allocated_memory() / MIB
    try:
        # Not ru_maxrss: on Linux a process starts with that of the one that launched it.
        with open("/proc/self/status", "rb") as status:
            _, found, rest = status.read().partition(b"VmHWM:")
        if found:
            return int(rest.split(maxsplit=1)[0]) / 1024
    except OSError:
        pass  # not Linux
    import resource

    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is bytes on macOS, KiB on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MIB
