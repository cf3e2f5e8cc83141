"""What the device does in a step: how much of the time it is busy, in how many kernels, in which longest."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

LISTED = 15


@dataclass(frozen=True)
class Kernel:
    """A kernel, copy or fill on the device; times in microseconds."""

    name: str
    begin: float
    end: float


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length that spans cover together: kernels of several streams may overlap."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def summarise(kernels: Sequence[Kernel], steps: int) -> dict[str, Any]:
    """Per step: ms in which the device is busy, kernels, and the longest ones by name."""
    by_name: dict[str, list[float]] = {}
    for kernel in kernels:
        by_name.setdefault(kernel.name, []).append(kernel.end - kernel.begin)
    longest = sorted(by_name.items(), key=lambda item: -sum(item[1]))[:LISTED]
    listed = [{"name": n, "ms": sum(t) / steps / 1e3, "count": len(t) / steps} for n, t in longest]
    busy_ms = covered((k.begin, k.end) for k in kernels) / steps / 1e3
    return {"busy_ms": busy_ms, "kernels": len(kernels) / steps, "longest": listed}


def profile_steps(run: Callable[[], object], steps: int, device: torch.device) -> dict[str, Any] | None:
    """Call `run` so many times under PyTorch's profiler. None where it sees no kernels, as off a GPU.

    The profiler slows the host, not the kernels: their time is to be compared with that of a step without it.
    """
    if device.type != "cuda":
        return None
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(steps):
            run()
        torch.cuda.synchronize(device)  # sync: all kernels must be in the profile
    events = [e for e in found.events() or [] if e.device_type == DeviceType.CUDA]
    if not (spans := [(e.name, e.time_range) for e in events if not e.is_user_annotation]):
        print("PyTorch's profiler saw no kernel: how busy the GPU is stays unknown", file=sys.stderr)
        return None
    return summarise([Kernel(name, time.start, time.end) for name, time in spans], steps)
