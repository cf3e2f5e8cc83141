"""Ops of our own, each one piece of Inductor's code for the arguments that come by, looked up."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from ampcompare.machine.device import is_cuda, make_current

Compiled = Callable[..., Any]

# The compiler writes a value to memory that takes so many ops or reads to make, rather than make it again in
# a second pass. What is made here takes two tensors and a few numbers a channel: never worth it.
INDUCTOR = {
    "realize_reads_threshold": 64,
    "realize_acc_reads_threshold": 64,
    "realize_opcount_threshold": 1000,
}

_compiled: dict[Any, Compiled] = {}
# Compiled in a thread of its own: what is in force in this one (autocast, O1's casts, modes) is not to be
# compiled in. Always the same one: PyTorch 2.11 crashes when a second thread traces after a first has ended.
_apart = ThreadPoolExecutor(1, "compile")
_rehearsed: set[Any] = set()  # what fake tensors came by with
_library = torch.library.Library("ampcompare", "DEF")


def _after_fork() -> None:
    """A child has the executor, but not its thread."""
    global _apart
    _apart = ThreadPoolExecutor(1, "compile")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def define(name: str, schema: str, function: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Make `torch.ops.ampcompare.NAME` of a function of tensors; `fake` gives only its results' shapes.

    An op of PyTorch's, so that who looks on (tracing, counting, FakeTensorMode) sees one op and not what it
    is made of.
    """
    _library.define(f"{name}{schema}")

    def fake_run(*args: Any) -> Any:
        key = _key(function, args)
        if key not in _rehearsed:
            _refuse_in_capture(name)
            _rehearsed.add(key)
        return fake(*args)

    _library.impl(name, lambda *args: _run(name, function, *args), "CompositeExplicitAutograd")
    torch.library.register_fake(f"ampcompare::{name}", fake_run, lib=_library)


def compiled_count() -> int:
    """How many pieces of code were made so far: a step in which it grows took longer than a step."""
    return len(_compiled)


def _run(name: str, function: Callable[..., Any], *args: Any) -> Any:
    """`function` by code compiled for such arguments."""
    key = _key(function, args)
    code = _compiled.get(key)
    tensors = [a for a in args if isinstance(a, Tensor)]
    if code is None:
        if is_cuda(tensors[0].device):
            _refuse_in_capture(name)
        code = _compiled[key] = _apart.submit(_compile, function, args, tensors).result()
    return code(*tensors)


def _key(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """What code is made for: shapes, strides, types, devices, and numbers as they are."""
    return function, *((a.shape, a.stride(), a.dtype, a.device) if isinstance(a, Tensor) else a for a in args)


def _refuse_in_capture(name: str) -> None:
    """New code tries its variants and waits for them, which no capture survives. Rehearsals find it so."""
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(f"{name}: arguments that it has not had yet, within the capture of a CUDA graph")


@torch.no_grad()
def _compile(function: Callable[..., Any], args: tuple[Any, ...], tensors: list[Tensor]) -> Compiled:
    import torch._inductor
    from torch.fx.experimental.proxy_tensor import make_fx

    make_current(tensors[0].device)

    def of_tensors(*given: Tensor) -> Any:
        left = iter(given)
        return function(*(next(left) if isinstance(a, Tensor) else a for a in args))

    graph = make_fx(of_tensors, tracing_mode="fake")(*tensors)
    return torch._inductor.compile(graph, list(tensors), options=INDUCTOR)
