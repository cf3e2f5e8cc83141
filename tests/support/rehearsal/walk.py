"""A walk over autograd's own nodes, in place of its engine.

The engine hands work for CUDA tensors to threads, streams and guards of its own, which need a driver. The
nodes themselves are ordinary callables: called from Python, in the engine's order, they do what the engine
has them do, also on tensors without data. What lies between nodes is done here as
`torch/csrc/autograd/engine.cpp`, `input_buffer.cpp` and `functions/accumulate_grad.h` do it: sums, casts to
the type of a node's input, and whether a parameter takes a gradient over or copies it.

Left out: hooks, `autograd.Function`s, gradients of tensors that are no leaves, the freeing of saved tensors.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from support.outside import Outside


def walk(roots: Sequence[Tensor], *, create_graph: bool = False) -> list[tuple[Tensor, Tensor]]:
    """One backward from scalar roots: the leaves and their gradients."""
    nodes = _reachable([root.grad_fn for root in roots])
    inputs: dict[Any, list[Tensor | None]] = {}
    found: list[tuple[Tensor, Tensor]] = []
    with torch.set_grad_enabled(create_graph):
        for root in roots:
            _give(inputs, root.grad_fn, root.output_nr, torch.ones_like(root))
        # What was made later was made of what was there before; leaves have the highest numbers of all.
        for node in sorted(nodes, key=lambda node: (hasattr(node, "variable"), -node._sequence_nr())):
            if (given := inputs.pop(node, None)) is None:  # no gradient has come this way
                continue
            if hasattr(node, "variable"):
                found.append((node.variable, given[0]))  # type: ignore[arg-type]
                continue
            outputs = node(*given)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            for (following, number), gradient in zip(node.next_functions, outputs, strict=False):
                if following is not None and gradient is not None:
                    _give(inputs, following, number, gradient)
    return found


def _reachable(starts: Sequence[Any]) -> list[Any]:
    """Every node from `starts` on, held: a node's Python object is the same only while it is referenced."""
    found: dict[Any, None] = {}
    stack = list(starts)
    while stack:
        node = stack.pop()
        if node not in found:
            found[node] = None
            stack.extend(following for following, _ in node.next_functions if following is not None)
    return list(found)


def _give(inputs: dict[Any, list[Tensor | None]], node: Any, number: int, gradient: Tensor) -> None:
    """Add a gradient to an input of a node, in the shape, type and place that the node expects."""
    expected = node._input_metadata[number]
    if tuple(gradient.shape) != tuple(expected.shape):
        gradient = gradient.sum_to_size(expected.shape)
    if (gradient.dtype, gradient.device) != (expected.dtype, expected.device):
        gradient = gradient.to(expected.device, expected.dtype)
    own = inputs.setdefault(node, [None] * len(node._input_metadata))
    before = own[number]
    own[number] = gradient if before is None else before + gradient


def _accumulate(found: Sequence[tuple[Tensor, Tensor]]) -> None:
    taken: set[int] = set()  # storages that leaves took over
    for leaf, gradient in found:
        storage = gradient.untyped_storage()._cdata
        if leaf.grad is not None:
            leaf.grad.add_(gradient)
        elif are_strides_alike(leaf, gradient) and storage not in taken:
            taken.add(storage)
            leaf.grad = gradient.detach()
        else:
            how = {"dtype": gradient.dtype, "device": gradient.device}
            leaf.grad = torch.empty_strided(leaf.shape, leaf.stride(), **how).copy_(gradient)


def are_strides_alike(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of a shape lie in memory in the same way; dimensions of size 1 do not count."""
    pairs = zip(one.shape, one.stride(), other.stride(), strict=True)
    return all(a == b for size, a, b in pairs if size != 1)


@contextmanager
def walking() -> Iterator[None]:
    """`torch.autograd.backward` (so `Tensor.backward`) and `torch.autograd.grad` of a loss by this walk."""

    @torch.no_grad()
    def backward(tensors: Any, *args: Any, **how: Any) -> None:
        _accumulate(walk([tensors] if isinstance(tensors, Tensor) else tensors))

    def grad(
        outputs: Tensor, inputs: Sequence[Tensor], create_graph: bool = False, allow_unused: bool = False
    ) -> tuple[Tensor | None, ...]:
        found = {id(leaf): gradient for leaf, gradient in walk([outputs], create_graph=create_graph)}
        return tuple(found.get(id(leaf)) if allow_unused else found[id(leaf)] for leaf in inputs)

    with pytest.MonkeyPatch.context() as monkeypatch:
        outside = Outside(monkeypatch)
        outside.replace(torch.autograd, "backward", backward)
        outside.replace(torch.autograd, "grad", grad)
        yield
