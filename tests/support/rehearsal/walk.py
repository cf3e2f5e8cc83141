"""A walk over autograd's own nodes, in place of its engine.

The engine hands work for CUDA tensors to threads, streams and guards of its own, which need a driver. The
nodes themselves are ordinary callables: called from Python, in the engine's order, they give the engine's
gradients, also on tensors without data. What lies between nodes is done here as
`torch/csrc/autograd/engine.cpp`, `input_buffer.cpp` and `functions/accumulate_grad.h` do it: sums, casts to
the type of a node's input, hooks on parameters, and whether a parameter takes a gradient over or copies it.

Left out: hooks on tensors that are no leaves (Python cannot see them), and the freeing of saved tensors.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, FunctionCtx
from torch.utils._python_dispatch import TorchDispatchMode

OnCopy = Callable[[Tensor, Tensor], None]


class Walk:
    """One backward from `roots` with their `gradients`.

    With `wanted` their gradients are gathered and nothing is accumulated; else each leaf gets its `.grad`.
    `on_copy(leaf, gradient)` is told of a gradient that a leaf copies, as its strides are not those of the
    leaf. `node` is the one that runs, None outside: autograd's own note of it is the engine's.
    """

    node: Any = None

    def __init__(
        self,
        *,
        wanted: Sequence[Tensor] = (),
        create_graph: bool = False,
        keep_graph: bool = False,
        on_copy: OnCopy | None = None,
    ) -> None:
        self.wanted, self.create_graph, self.on_copy = wanted, create_graph, on_copy
        self.keep_graph = keep_graph or create_graph
        self.found: list[Tensor | None] = [None] * len(wanted)
        self._inputs: dict[Any, list[Tensor | None]] = {}  # of nodes that have been given something
        self._taken: set[int] = set()  # storages that leaves took over

    def run(self, roots: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Visit every node that is needed. Returns the gradients of `wanted`."""
        starts = [_edge(root) for root in roots]
        nodes = _reachable(node for node, _ in starts)
        captures = self._captures(nodes)
        needed = _leading_to(nodes, captures) if self.wanted else set(nodes)
        waits = dict.fromkeys(nodes, 0)
        for node in needed:
            for following, _ in node.next_functions:
                if following is not None:
                    waits[following] += 1
        with torch.set_grad_enabled(self.create_graph):
            for (node, number), root, gradient in zip(starts, roots, gradients, strict=True):
                self._give(node, number, torch.ones_like(root) if gradient is None else gradient)
            number_of = {node: number for number, node in enumerate(nodes)}  # nodes themselves have no order
            ready = [(-node._sequence_nr(), number_of[node], node) for node in nodes if not waits[node]]
            heapq.heapify(ready)
            while ready:
                _, _, node = heapq.heappop(ready)
                if node not in needed:
                    continue
                self._visit(node, captures.get(node, {}))
                for following, _ in node.next_functions:
                    if following is None:
                        continue
                    waits[following] -= 1
                    if not waits[following]:
                        heapq.heappush(ready, (-following._sequence_nr(), number_of[following], following))
        return self.found

    def _captures(self, nodes: Sequence[Any]) -> dict[Any, dict[int, list[int]]]:
        """Which input of which node is the gradient of which of `wanted`."""
        leaves = {id(node.variable): node for node in nodes if hasattr(node, "variable")}
        found: dict[Any, dict[int, list[int]]] = {}
        for index, tensor in enumerate(self.wanted):
            node = leaves.get(id(tensor)) if tensor.grad_fn is None else tensor.grad_fn
            if node is not None:
                found.setdefault(node, {}).setdefault(tensor.output_nr, []).append(index)
        return found

    def _visit(self, node: Any, captures: dict[int, list[int]]) -> None:
        inputs = self._inputs.pop(node, None)
        if inputs is None:  # no gradient has come this way
            return
        is_leaf = hasattr(node, "variable")
        if is_leaf:
            inputs[0] = _hooked(node.variable, inputs[0])
        for number, indices in captures.items():
            for index in indices:
                self.found[index] = inputs[number]
        if is_leaf:
            if not self.wanted and inputs[0] is not None:
                self._accumulate(node.variable, inputs[0])
            return
        reserves = node.name() == "CudnnBatchNormBackward0" and not self.keep_graph
        before, Walk.node = Walk.node, node
        try:
            with _Releasing(node._saved_result3) if reserves else nullcontext():
                outputs = _call(node, inputs)
        finally:
            Walk.node = before
        for (following, number), gradient in zip(node.next_functions, outputs, strict=False):
            if following is not None and gradient is not None:
                self._give(following, number, gradient)

    def _give(self, node: Any, number: int, gradient: Tensor) -> None:
        """Add a gradient to an input of a node, in the shape and type that the node expects."""
        expected = node._input_metadata[number]
        if tuple(gradient.shape) != tuple(expected.shape):
            gradient = gradient.sum_to_size(expected.shape)
        if gradient.dtype != expected.dtype:
            gradient = gradient.to(expected.dtype)
        if gradient.device != expected.device:
            if gradient.dim():
                raise RuntimeError(
                    f"{node.name()}: a gradient on {gradient.device}, not on {expected.device}"
                )
            gradient = gradient.to(expected.device)
        inputs = self._inputs.setdefault(node, [None] * len(node._input_metadata))
        before = inputs[number]
        inputs[number] = gradient if before is None else before + gradient

    def _accumulate(self, leaf: Tensor, gradient: Tensor) -> None:
        if leaf.grad is not None:
            if self.create_graph:
                leaf.grad = leaf.grad + gradient
            else:
                leaf.grad.add_(gradient)
        elif self.create_graph:
            leaf.grad = gradient.clone()
        else:
            storage = gradient.untyped_storage()._cdata
            fits = are_strides_alike(leaf, gradient)
            if not fits and self.on_copy is not None:
                self.on_copy(leaf, gradient)
            if fits and storage not in self._taken:
                self._taken.add(storage)
                leaf.grad = gradient.detach()
            else:
                leaf.grad = torch.empty_strided(
                    leaf.shape, leaf.stride(), dtype=gradient.dtype, device=gradient.device
                ).copy_(gradient)
        for hook in list((getattr(leaf, "_post_accumulate_grad_hooks", None) or {}).values()):
            hook(leaf)


def are_strides_alike(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of a shape lie in memory in the same way; dimensions of size 1 do not count."""
    pairs = zip(one.shape, one.stride(), other.stride(), strict=True)
    return all(a == b for size, a, b in pairs if size != 1)


def _edge(tensor: Tensor) -> tuple[Any, int]:
    node = tensor.grad_fn
    if node is None:
        if not tensor.requires_grad:
            raise RuntimeError("element 0 of tensors does not require grad and does not have a grad_fn")
        with torch.enable_grad():
            node = tensor.view_as(tensor).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    return node, tensor.output_nr


def _reachable(starts: Iterator[Any]) -> list[Any]:
    """Every node from `starts` on, held: a node's Python object is the same only while somebody holds it."""
    found: dict[Any, None] = {}
    stack = list(starts)
    while stack:
        node = stack.pop()
        if node not in found:
            found[node] = None
            stack.extend(following for following, _ in node.next_functions if following is not None)
    return list(found)


def _leading_to(nodes: Sequence[Any], goals: Any) -> set[Any]:
    """The nodes from which one of the goals can be reached, goals included."""
    before: dict[Any, list[Any]] = {}
    for node in nodes:
        for following, _ in node.next_functions:
            if following is not None:
                before.setdefault(following, []).append(node)
    found: set[Any] = set()
    stack = list(goals)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(before.get(node, []))
    return found


def _hooked(leaf: Tensor, gradient: Tensor | None) -> Tensor | None:
    hooks: dict[int, Callable[[Any], Any]] = leaf._backward_hooks or {}
    for hook in list(hooks.values()):
        result = hook(gradient)
        gradient = gradient if result is None else result
    return gradient


def _call(node: Any, inputs: list[Tensor | None]) -> Sequence[Tensor | None]:
    if isinstance(node, BackwardCFunction):  # of an autograd.Function: no callable, zeros for what is missing
        if vars(node).get("_fills_missing", True):
            pairs = zip(inputs, node._input_metadata, strict=True)  # type: ignore[attr-defined]
            inputs = [_zeros(like) if x is None else x for x, like in pairs]
        result = node.apply(*inputs)
        result = result if isinstance(result, tuple) else (result,)
        # `backward` answers for each argument of `apply`; the graph has edges for those that are tensors.
        wanted = iter([x for x, is_needed in zip(result, node.needs_input_grad, strict=False) if is_needed])
        return [None if following is None else next(wanted) for following, _ in node.next_functions]
    result = node(*inputs)
    return result if isinstance(result, tuple) else (result,)


def _zeros(like: Any) -> Tensor:
    return torch.zeros(like.shape, dtype=like.dtype, device=like.device)


class _Releasing(TorchDispatchMode):
    """While a node runs for the last time: its saved tensors are used as they are.

    The engine tells a node so; Python cannot, and a batch norm of cuDNN's would copy what it has reserved.
    """

    def __init__(self, reserved: Tensor) -> None:
        super().__init__()
        self._reserved = reserved

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.clone.default and args[0] is self._reserved:
            return args[0]
        return func(*args, **(kwargs or {}))


@contextmanager
def walking(on_copy: OnCopy | None = None) -> Iterator[None]:
    """`torch.autograd.backward` (so `Tensor.backward`) and `torch.autograd.grad` by this walk."""
    tell = FunctionCtx.set_materialize_grads

    def backward(
        tensors: Any,
        grad_tensors: Any = None,
        retain_graph: Any = None,
        create_graph: bool = False,
        **more: Any,
    ) -> None:
        if any(value for value in more.values()):
            raise NotImplementedError(f"the walk knows no {', '.join(more)}")
        roots, gradients = _listed(tensors), _listed(grad_tensors)
        Walk(create_graph=create_graph, keep_graph=bool(retain_graph), on_copy=on_copy).run(
            roots, gradients or [None] * len(roots)
        )

    def grad(
        outputs: Any,
        inputs: Any,
        grad_outputs: Any = None,
        retain_graph: Any = None,
        create_graph: bool = False,
        allow_unused: bool | None = None,
        **more: Any,
    ) -> tuple[Tensor | None, ...]:
        if any(value for value in more.values()):
            raise NotImplementedError(f"the walk knows no {', '.join(more)}")
        roots, gradients, wanted = _listed(outputs), _listed(grad_outputs), _listed(inputs)
        walk = Walk(wanted=wanted, create_graph=create_graph, keep_graph=bool(retain_graph))
        found = walk.run(roots, gradients or [None] * len(roots))
        if not allow_unused and any(x is None for x in found):
            raise RuntimeError("one of the differentiated tensors appears to not have been used in the graph")
        return tuple(found)

    def set_materialize_grads(self: Any, value: bool) -> None:
        self._fills_missing = value  # PyTorch's own note of it cannot be read
        tell(self, value)

    with (
        patch.object(torch.autograd, "backward", backward),
        patch.object(torch.autograd, "grad", grad),
        patch.object(FunctionCtx, "set_materialize_grads", set_materialize_grads),
    ):
        yield


def _listed(tensors: Any) -> list[Any]:
    if tensors is None:
        return []
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)
