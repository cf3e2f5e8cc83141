"""Replacements for the parts of `torch.cuda` that need a driver, and for NVML.

They are streams, events, graphs, memory and properties. A replacement that would let the host wait for the
device records a wait. Events know whether the host has waited for them: like CUDA's events they raise if they
are asked for a time before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _foreach_utils

from support.outside import Outside
from support.rehearsal.watch import LATE_WAIT, WAIT, Watch, number

NAME = "no GPU: a rehearsal"
MEMORY = 80 * 2**30
MIB = 2**20

# Of `torch.cuda`: what always gives the same answer.
ANSWERS: dict[str, Any] = {
    **dict.fromkeys(("is_available", "is_initialized", "is_bf16_supported"), True),
    **dict.fromkeys(
        ("_lazy_init", "_lazy_call", "init", "set_device", "manual_seed", "manual_seed_all"), None
    ),
    **dict.fromkeys(("empty_cache", "reset_peak_memory_stats"), None),
    **dict.fromkeys(("memory_allocated", "max_memory_allocated"), MIB),
    **dict.fromkeys(("memory_reserved", "max_memory_reserved"), 2 * MIB),
    "mem_get_info": (MEMORY, MEMORY),
    "device_count": 1,
    "current_device": 0,
    "device": nullcontext(),
    "graph_pool_handle": (0, 0),
    "get_device_name": NAME,
    "get_device_capability": (9, 0),
    "get_device_properties": SimpleNamespace(
        name=NAME, uuid="0", total_memory=MEMORY, major=9, minor=0, multi_processor_count=132
    ),
}


class FakeCuda:
    """One GPU, `cuda:0`, that does nothing. `captures` of graphs and `launches` are counted."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.captures = self.launches = 0
        self.streams = [_Stream(self)]

    def wait(self, what: str, until: int | None = None) -> None:
        """Let the host wait for what was queued when `until` ops had been queued; None: for everything."""
        watch = self.watch
        until = watch.queued if until is None else until
        if until > watch.known or watch.capturing:
            watch.known, behind = max(until, watch.known), watch.queued - until
            watch.note(LATE_WAIT if behind else WAIT, what, behind)

    @contextmanager
    def capture(self, graph: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
        """`torch.cuda.graph`: plays the capture, by running what is inside once, strictly."""
        self.wait("torch.cuda.graph")
        stream = kwargs.get("stream")
        before = self.watch.queued
        with self.on_stream(stream or _Stream(self)), self.watch.capture():
            yield
        graph.ops = self.watch.queued - before
        self.captures += 1

    @contextmanager
    def on_stream(self, stream: Any) -> Iterator[None]:
        self.streams.append(stream)
        try:
            yield
        finally:
            self.streams.pop()

    def replacements(self) -> Iterator[tuple[Any, str, Any]]:
        """Yield what is replaced: owner, name, new value."""
        yield from ((torch.cuda, name, _answer(value)) for name, value in ANSWERS.items())
        yield from ((torch.cuda, name, value) for name, value in self._acting().items())
        yield pynvml, "nvmlInit", _answer(None)
        yield pynvml, "nvmlDeviceGetHandleByUUID", _answer(object())
        yield pynvml, "nvmlDeviceGetTotalEnergyConsumption", lambda handle: 500 * self.watch.queued
        yield FakeTensor, "tolist", lambda tensor: self._tolist(tensor)
        yield fake_tensor, "init_gpu_context", _answer(None)
        yield torch._C, "_select_conv_backend", _convolution_kernel
        # PyTorch's optimizers and norms take lists of plain tensors only; here a fake one is the plain one.
        kinds = [*_foreach_utils._foreach_supported_types, FakeTensor]
        yield _foreach_utils, "_foreach_supported_types", kinds
        # Converting a module swaps its fake parameters; PyTorch refuses, as its fake mode holds weak
        # references.
        yield torch.utils, "weakref", SimpleNamespace(getweakrefs=_answer([]))

    def _acting(self) -> dict[str, Any]:
        """Of `torch.cuda`: what knows of streams, captures and waits."""
        return {
            "synchronize": lambda *args: self.wait("torch.cuda.synchronize"),
            "current_stream": lambda *args: self.streams[-1],
            "default_stream": lambda *args: self.streams[0],
            "Stream": lambda *args, **kwargs: _Stream(self),
            "Event": lambda *args, **kwargs: _Event(self),
            "stream": self.on_stream,
            "CUDAGraph": lambda *args, **kwargs: _Graph(self),
            "graph": self.capture,
            "is_current_stream_capturing": lambda: self.watch.capturing,
        }

    def _tolist(self, tensor: Any) -> Any:
        """Return the values of a tensor in one copy; PyTorch's fake tensor reads them one by one."""
        self.watch.look_at_read(tensor, "tolist")
        value = number(tensor)
        for size in reversed(tensor.shape):
            value = [value] * size
        return value

    @contextmanager
    def installed(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as monkeypatch:
            outside = Outside(monkeypatch)
            for owner, name, value in self.replacements():
                outside.replace(owner, name, value)
            yield


def _answer(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def _convolution_kernel(
    input: Tensor, weight: Tensor, *args: Any, _choose: Any = torch._C._select_conv_backend, **kwargs: Any
) -> Any:
    """Return PyTorch's choice of a convolution kernel for float16, also for bfloat16.

    Otherwise PyTorch would ask the device whether it has bfloat16 convolutions.
    """
    if input.dtype is torch.bfloat16:
        input, weight = input.to(torch.float16), weight.to(torch.float16)
        kwargs["bias"] = None if kwargs.get("bias") is None else kwargs["bias"].to(torch.float16)
    return _choose(input, weight, *args, **kwargs)


class _Event:
    """Each op takes a microsecond."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda, self._done = cuda, 0

    def record(self, stream: Any = None) -> None:
        self._done = self._cuda.watch.queued

    def synchronize(self) -> None:
        self._cuda.wait("Event.synchronize", self._done)

    def query(self) -> bool:
        return self._done <= self._cuda.watch.known

    def wait(self, stream: Any = None) -> None:
        """Let a stream wait, not the host."""

    def elapsed_time(self, end: _Event) -> float:
        if not (self.query() and end.query()):
            raise RuntimeError("device not ready: the host has not waited for this event")
        return (end._done - self._done) / 1e3


class _Stream:
    device_index, cuda_stream, stream_id = 0, 0, 0
    device = torch.device("cuda", 0)

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda

    def synchronize(self) -> None:
        self._cuda.wait("Stream.synchronize")

    def wait_stream(self, stream: Any) -> None:
        """Let a stream wait, not the host."""


class _Graph:
    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda
        self.ops = 0

    def replay(self) -> None:
        self._cuda.launches += 1
        self._cuda.watch.queued += self.ops
