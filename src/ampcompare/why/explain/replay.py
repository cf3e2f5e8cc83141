"""An op called again with tensors of the same shapes, types and layouts, and timed by itself."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from ampcompare.machine.device import wait_for
from ampcompare.why.explain.trace import Call, Tensors

REPEATS = 3  # after one that is not timed; the median counts, as the step's own times are medians
LONG = 0.5  # seconds after which once is enough
SKIPPED = ("_fused_",)  # write into weights, states and counts of an optimizer


class Replay:
    """Seconds of calls, each measured once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._known: dict[Any, float] = {}

    def key(self, call: Call) -> Any:
        """What calls have in common that take as long; None of one that is not to be called again."""
        if any(call.func.overloadpacket.__name__.startswith(word) for word in SKIPPED):
            return None
        leaves, spec = tree_flatten((call.args, call.kwargs))
        return call.func, tuple(map(_hashable, leaves)), str(spec)

    def seconds(self, call: Call) -> float | None:
        """What was measured of such a call, if it was."""
        return self._known.get(self.key(call))

    def measure(self, call: Call) -> None:
        """Call it and take the time. One that cannot be called with made-up values is left out."""
        try:
            args, kwargs = tree_map(self._made, (call.args, call.kwargs))
            with torch.no_grad():
                times = [self._timed(call.func, args, kwargs)]  # the first prepares the kernel
                if times[0] < LONG:
                    times = sorted(self._timed(call.func, args, kwargs) for _ in range(REPEATS))
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
            return
        self._known[self.key(call)] = times[len(times) // 2]

    def _timed(self, func: Any, args: Any, kwargs: Any) -> float:
        wait_for(self.device)  # sync: the clock starts on an idle device
        began = time.perf_counter()
        func(*args, **kwargs)
        wait_for(self.device)  # sync: the clock stops when the work is done
        return time.perf_counter() - began

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
