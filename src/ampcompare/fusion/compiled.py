"""Ops of our own, each one piece of Inductor's code for the arguments that come by, looked up in a dictionary."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

Compiled = Callable[..., Any]

# The compiler writes a value to memory that takes so many ops or reads to make, rather than make it again in a second
# pass. What is made here takes two tensors and a few numbers a channel: never worth it.
INDUCTOR = {"realize_reads_threshold": 64, "realize_acc_reads_threshold": 64, "realize_opcount_threshold": 1000}

_compiled: dict[Any, Compiled] = {}
# Compiled in a thread of its own: what is in force in this one (autocast, O1's casts, modes) is not to be compiled in.
# Always the same one: PyTorch 2.11 crashes when a second thread traces after a first one has ended.
_apart = ThreadPoolExecutor(1, "compile")
_library = torch.library.Library("ampcompare", "DEF")


def define(name: str, schema: str, function: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Make `torch.ops.ampcompare.NAME` of a function of tensors; `fake` gives its results' shapes, without arithmetic.

    An op of PyTorch's, so that who looks on (tracing, counting, FakeTensorMode) sees one op and not what it is made of.
    """
    _library.define(f"{name}{schema}")
    _library.impl(name, lambda *args: _run(function, *args), "CompositeExplicitAutograd")
    torch.library.register_fake(f"ampcompare::{name}", fake, lib=_library)


def compiled_count() -> int:
    """How many pieces of code were made so far: a step in which it grows took longer than a step."""
    return len(_compiled)


def _run(function: Callable[..., Any], *args: Any) -> Any:
    """`function` by code compiled for such arguments: shapes, strides, types, devices, and numbers as they are."""
    key = (function, *((a.shape, a.stride(), a.dtype, a.device) if isinstance(a, Tensor) else a for a in args))
    tensors = [a for a in args if isinstance(a, Tensor)]
    code = _compiled.get(key)
    if code is None:
        code = _compiled[key] = _apart.submit(_compile, function, args, tensors).result()
    return code(*tensors)


@torch.no_grad()
def _compile(function: Callable[..., Any], args: tuple[Any, ...], tensors: list[Tensor]) -> Compiled:
    import torch._inductor
    from torch.fx.experimental.proxy_tensor import make_fx

    if tensors[0].device.type == "cuda":
        torch.cuda.set_device(tensors[0].device)

    def of_tensors(*given: Tensor) -> Any:
        left = iter(given)
        return function(*(next(left) if isinstance(a, Tensor) else a for a in args))

    graph = make_fx(of_tensors, tracing_mode="fake")(*tensors)
    return torch._inductor.compile(graph, list(tensors), options=INDUCTOR)
