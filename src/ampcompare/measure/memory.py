"""Peak memory of a training: allocated and reserved on a GPU, the resident set of the process on a CPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

from ampcompare.machine.device import allocated_bytes, peak_bytes, reserved_bytes, reset_peak

MIB = 2**20


class Memory:
    """The peak on one device since the last `reset`, with what captured graphs keep.

    PyTorch's allocator counts a block from its allocation to its release, whichever pool it is of. So the
    tensors of a captured step are counted within the capture alone; a launch allocates nothing, and yet their
    memory stays the graph's. What a capture took beyond the tensors that outlive it is therefore added to
    every count after it: a short batch or an evaluation between launches has its activations beside those of
    the graph. Source: c10/cuda/CUDACachingAllocator.cpp (`alloc_found_block`, `free`).
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = 0  # the peak when a later graph was captured, bytes
        self._kept = 0  # bytes that graphs keep and no tensor has

    def reset(self) -> None:
        """Forget the peak so far (start-up, warm-up). A CPU's peak is the process's and cannot be reset."""
        self._before = 0
        reset_peak(self._device)

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """What is inside captures a graph, which keeps what it takes."""
        before = self._peak() if self._kept else 0  # before the first one it was warm-up
        self.reset()
        yield
        self._kept += (peak_bytes(self._device) or 0) - allocated_bytes(self._device)
        self.reset()
        self._before = before

    def peak_mib(self) -> float:
        """MiB that tensors, workspaces and graphs had at most; on a CPU the resident set of the process."""
        return peak_of_process() if peak_bytes(self._device) is None else self._peak() / MIB

    def _peak(self) -> int:
        """Bytes on a GPU."""
        return max(self._before, (peak_bytes(self._device) or 0) + self._kept)

    def reserved_mib(self) -> float | None:
        """MiB that PyTorch had taken from the device at most, in use or not; None on a CPU."""
        reserved = reserved_bytes(self._device)
        return None if reserved is None else reserved / MIB


def peak_of_process() -> float:
    """The peak resident set of this process, MiB."""
    try:
        # Not ru_maxrss: on Linux a process starts with that of the one that launched it.
        _, found, rest = os.pread(_status_of(os.getpid()), 65_536, 0).partition(b"VmHWM:")
        if found:
            return int(rest.split(maxsplit=1)[0]) / 1024
    except OSError:
        pass  # not Linux
    import resource

    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is bytes on macOS, KiB on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MIB


@cache
def _status_of(pid: int) -> int:
    """What the kernel says of this process, kept open: to find it took two thirds of the time of a look."""
    return os.open("/proc/self/status", os.O_RDONLY)


def is_out_of_memory(problem: BaseException | None) -> bool:
    """Whether a device had no memory left: PyTorch's own error, a library's, or one of these behind another.

    Within a capture it is the end of the capture that fails then, and its error hides the first one.
    """
    seen: set[int] = set()
    while problem is not None and id(problem) not in seen:
        seen.add(id(problem))
        words = str(problem)
        if isinstance(problem, torch.OutOfMemoryError):
            return True
        if isinstance(problem, RuntimeError) and ("out of memory" in words or "STATUS_ALLOC_FAILED" in words):
            return True
        problem = problem.__cause__ or problem.__context__
    return False
