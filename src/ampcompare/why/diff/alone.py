"""A module by itself, on the inputs and gradients that fp64 had there: the error that it adds of its own.

In a step errors travel: whatever comes after a bad module looks bad, too. So each call is run once more with
fp64's inputs rounded to the types that it was given, and beside it fp64 on the very same numbers. What lies
between the two is the call's own. Modules that it calls are taken out, their outputs put in as fp64 had them:
what is left of a container is its own arithmetic, and of what it hands on and gets back.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ampcompare.precision.base import Precision
from ampcompare.train.step import Trainer
from ampcompare.why.diff.arithmetic import arithmetic
from ampcompare.why.diff.calls import Call
from ampcompare.why.diff.measures import Measure, measure
from ampcompare.why.diff.trees import breaks, changed, floats_of, is_number, refilled, tensors_of


@dataclass(frozen=True)
class Own:
    """The errors that a call adds: of what it gives, of the gradients that it passes back and of those of its
    parameters; None where there is none, or (`why`) it could not be run by itself.
    """

    output: Measure | None = None
    gradient: Measure | None = None
    parameters: Measure | None = None
    why: str = ""

    @property
    def size(self) -> float:
        """The largest of the relative errors, -1 where there is none."""
        found = [m.size for m in (self.output, self.gradient, self.parameters) if m is not None]
        return max(found, default=-1.0)


@dataclass
class _Ran:
    """What a call came to by itself. Gradients are by place; None where nothing flows."""

    given: list[Tensor]  # what it gave, and what it handed to the modules that it calls
    fed: list[Tensor | None]  # the gradients that were fed in there
    back: list[Tensor | None]  # those that came out: of its inputs, and of what it got back
    parameters: dict[str, Tensor | None]
    beyond: bool  # whether there were gradients beyond the range of their type, which are not fed in


def own_errors(
    truth: Call,
    seen: Call,
    inner: Sequence[tuple[Call, Call]],
    reference: Trainer,
    trainer: Trainer,
    seed: int,
) -> Own:
    """The errors of a call. `seen` is the same call in the backend's step, whose types are taken; `inner` are
    the pairs of calls inside it that are taken out, the truth's and the backend's.

    Weights have to be those that both steps were taken with.
    """
    precision = trainer.precision
    scale = float(precision.scale_factor())  # sync: a look waits wherever it looks
    given = _rounded(truth.given, seen.given)
    got = [_rounded(theirs.output, ours.output) for theirs, ours in inner]
    if breaks((given, got), (truth.given, [theirs.output for theirs, _ in inner])):
        return Own(why="its inputs are beyond the range of their type")
    out = [truth.output_gradients.get(place) for place in _places(truth.output)]
    out += [c.given_gradients.get(place) for c, _ in inner for place in _places(c.given)]
    calls = [theirs for theirs, _ in inner]
    try:
        ours = _run(trainer.model, truth.name, given, calls, got, out, scale, precision, seed)
        with arithmetic(double=True):
            given, got = _double(given), _double(got)
            exact = _run(
                reference.model,
                truth.name,
                given,
                calls,
                got,
                [None if g is None else g.double() for g in ours.fed],
                1.0,
                reference.precision,
                seed,
            )
    except Exception as problem:  # other people's modules, called as they did not expect
        return Own(why=f"it cannot be run by itself ({type(problem).__name__})")
    if len(ours.given) != len(exact.given):
        return Own(why="it gives other tensors by itself")
    return _compared(ours, exact)


def _compared(ours: _Ran, exact: _Ran) -> Own:
    coarse = coarsest([t.dtype for t in ours.given])
    output = worst(measure([a], [b], a.dtype) for a, b in zip(ours.given, exact.given, strict=True))
    if ours.beyond and not any(g is not None for g in ours.fed):
        return Own(output, why="the gradients that it is given are beyond the range of their type")
    pairs = [(a, b) for a, b in zip(ours.back, exact.back, strict=True) if a is not None and b is not None]
    gradient = worst(measure([a], [b], coarsest([a.dtype, coarse])) for a, b in pairs)
    names = [name for name, g in exact.parameters.items() if g is not None and name in ours.parameters]
    wanted = [g for name in names if (g := exact.parameters[name]) is not None]
    # Of all parameters as one: the gradient of a bias before a BatchNorm is zero but for rounding.
    found = [
        torch.zeros_like(w, dtype=coarse) if (g := ours.parameters[n]) is None else g
        for n, w in zip(names, wanted, strict=True)
    ]
    kind = coarsest([*(g.dtype for g in found), coarse])
    return Own(output, gradient, measure(found, wanted, kind) if found else None)


def _run(
    model: nn.Module,
    name: str,
    given: Any,
    calls: Sequence[Call],
    got: Sequence[Any],
    feed: Sequence[Tensor | None],
    scale: float,
    precision: Precision,
    seed: int,
) -> _Ran:
    """Forward and backward of one call, `got` in the place of what its inner `calls` give."""
    module = model.get_submodule(name)
    leaves = [_leaf(t) for t in floats_of(given)]
    returned = [[_leaf(t) for t in floats_of(tree)] for tree in got]
    handed: list[Tensor] = []

    def stand_in(tree: Any, values: list[Tensor]) -> Callable[[Any], Any]:
        def call(taken: Any) -> Any:
            handed.extend(t.clone() for t in floats_of(taken))
            # A copy, as what comes next may work in place.
            return refilled(changed(tree, torch.clone), [t.clone() for t in values])

        return call

    queues: dict[str, deque[Callable[[Any], Any]]] = defaultdict(deque)
    for call, tree, values in zip(calls, got, returned, strict=True):
        queues[call.name].append(stand_in(tree, values))
    parameters = {n: p for n, p in module.named_parameters() if p.requires_grad}
    torch.manual_seed(seed)
    # Put back after the backward: it asks whether what it saved is as it was.
    with _buffers_kept(module), torch.enable_grad():
        with _taken_out(model, queues):
            args, kwargs = refilled(changed(given, torch.clone), [t.clone() for t in leaves])
            with precision.forward_context():
                result = module(*args, **kwargs)
        outs = [*floats_of(result), *handed]
        wanted = [
            None if g is None or not out.requires_grad else (g * scale).to(out.dtype)
            for out, g in zip(outs, feed, strict=True)
        ]
        fed = [g if g is not None and bool(g.isfinite().all()) else None for g in wanted]
        beyond = sum(g is not None for g in wanted) > sum(g is not None for g in fed)
        roots = [(out, g) for out, g in zip(outs, fed, strict=True) if g is not None]
        into = [*leaves, *(t for values in returned for t in values), *parameters.values()]
        back: Sequence[Tensor | None] = [None] * len(into)
        if roots and into:
            outputs, gradients = ([pair[i] for pair in roots] for i in (0, 1))
            back = torch.autograd.grad(outputs, into, gradients, allow_unused=True)
    count = len(into) - len(parameters)
    named = dict(zip(parameters, back[count:], strict=True))
    return _Ran([out.detach() for out in outs], fed, list(back[:count]), named, beyond)


@contextmanager
def _taken_out(model: nn.Module, queues: dict[str, deque[Callable[[Any], Any]]]) -> Iterator[None]:
    """Inside, calls of the modules named are answered by the next in their queues, their hooks left out.

    `_compiled_call_impl` is what `Module.__call__` asks first (PyTorch 2.11 to 2.14).
    """
    modules = [(model.get_submodule(name), queue) for name, queue in queues.items()]
    before = [vars(module).get("_compiled_call_impl") for module, _ in modules]
    for module, queue in modules:

        def answer(*args: Any, _queue: deque[Callable[[Any], Any]] = queue, **kwargs: Any) -> Any:
            return _queue.popleft()((args, kwargs))

        vars(module)["_compiled_call_impl"] = answer
    try:
        yield
    finally:
        for (module, _), own in zip(modules, before, strict=True):
            vars(module).pop("_compiled_call_impl", None)
            if own is not None:
                vars(module)["_compiled_call_impl"] = own


@contextmanager
def _buffers_kept(module: nn.Module) -> Iterator[None]:
    """Buffers, such as running statistics, as they were before."""
    kept = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in kept:
                buffer.copy_(value)


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(True)


def _places(tree: Any) -> list[int]:
    """Where among the tensors of a tree the floating ones are."""
    return [place for place, tensor in enumerate(tensors_of(tree)) if is_number(tensor)]


def _rounded(truth: Any, like: Any) -> Any:
    """The truth in the types of another tree of the same form. Raises ValueError for one of another form."""
    values, types = floats_of(truth), [t.dtype for t in floats_of(like)]
    return refilled(truth, [value.to(dtype) for value, dtype in zip(values, types, strict=True)])


def _double(tree: Any) -> Any:
    return changed(tree, lambda t: t.double() if is_number(t) else t)


def coarsest(types: Sequence[torch.dtype]) -> torch.dtype:
    """The one with the fewest digits: in which a product of them was made, or rounded last."""
    return max(types, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)


def worst(found: Iterable[Measure | None]) -> Measure | None:
    """The one with the largest relative error."""
    return max((m for m in found if m is not None), key=lambda m: m.size, default=None)
