"""A line for each module: its errors under each backend beside each other."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ampcompare.train.step import Trainer
from ampcompare.why.diff.alone import Own, coarsest, own_errors, worst
from ampcompare.why.diff.calls import Call, Recorder
from ampcompare.why.diff.look import Look
from ampcompare.why.diff.measures import Measure, measure
from ampcompare.why.diff.trees import breaks, floats_of, is_number, tensors_of

NETWORK = "(network)"  # what is called "" by PyTorch
LOSS = "the loss"


@dataclass(frozen=True)
class Errors:
    """What a module's errors are under one backend: of its own, and in the step, of its worst call each."""

    type: str  # of its output
    own: Own
    call: int  # the worst by its own error, from 0
    output: Measure | None = None
    gradient: Measure | None = None  # with respect to its output
    parameters: Measure | None = None  # the gradients of its own parameters
    update: Measure | None = None


@dataclass(frozen=True)
class Line:
    """A module, or the arithmetic of a container between the modules that it calls."""

    name: str
    kind: str  # its class
    calls: int
    errors: dict[str, Errors] = field(default_factory=dict)  # by backend

    @property
    def title(self) -> str:
        return self.name or NETWORK


@dataclass(frozen=True)
class Side:
    """A step under one backend as a whole."""

    label: str
    loss: float
    scale: float
    skipped: bool
    update: Measure | None
    first_output: str | None  # the first module whose output is not finite, in the order of the forward
    first_gradient: str | None  # and in that of the backward
    only_here: tuple[str, ...]  # modules that fp64 did not call
    differs: tuple[str, ...]  # ops whose random numbers are others than fp64's


def own_of_all(
    truth: Look, reference: Trainer, trainer: Trainer, recorder: Recorder, seed: int
) -> dict[tuple[str, int], Own]:
    """The own errors of every call that both made."""
    seen = {call.key: call for call in recorder.calls}
    found = {}
    for number, (key, call) in enumerate(truth.calls.items()):
        if key not in seen:
            continue
        inner: list[tuple[Call, Call]] = []
        if [c.name for c in call.inner] == [c.name for c in seen[key].inner]:
            inner = list(zip(call.inner, seen[key].inner, strict=True))
        try:
            found[key] = own_errors(call, seen[key], inner, reference, trainer, seed + number)
        except ValueError:
            found[key] = Own(why="it is given other tensors than in fp64")
    return found


def lines_of(truth: Look, looks: Sequence[tuple[Look, dict[tuple[str, int], Own]]]) -> list[Line]:
    """A line for each module that fp64 called, in the order in which they ended first."""
    calls: dict[str, list[Call]] = defaultdict(list)
    for call in truth.calls.values():
        calls[call.name].append(call)
    found = []
    for name, theirs in calls.items():
        line = Line(name, truth.modules[name], len(theirs))
        for look, own in looks:
            if any(call.key in look.calls for call in theirs):
                line.errors[look.label] = _errors(theirs, truth, look, own)
        found.append(line)
    return found


def _errors(calls: Sequence[Call], truth: Look, look: Look, own: dict[tuple[str, int], Own]) -> Errors:
    both = [(call, look.calls[call.key]) for call in calls if call.key in look.calls]
    worst_call = max(both, key=lambda pair: own.get(pair[0].key, Own()).size)[0]
    types = [t.dtype for _, ours in both for t in floats_of(ours.output)]
    kind = coarsest(types)
    name = worst_call.name
    names = [p for p in look.gradients if p in truth.gradients and p.rpartition(".")[0] == name]
    lowest = [coarsest([look.gradients[p].dtype, look.types[p], kind]) for p in names]
    parameters = update = None
    if names:
        # Times the scale, as they were in the type: which numbers it can hold goes by that.
        found = [look.gradients[p].double() * look.scale for p in names]
        wanted = [truth.gradients[p] for p in names]
        parameters = measure(found, wanted, coarsest(lowest), scale=look.scale)
        update = update_error(names, truth, look)
    return Errors(
        str(kind).removeprefix("torch.") if types else "",
        own.get(worst_call.key, Own()),
        worst_call.number,
        worst(_of_output(ours, call) for call, ours in both),
        worst(_of_gradient(ours, call, look.scale, kind) for call, ours in both),
        parameters,
        update,
    )


def _of_output(ours: Call, truth: Call) -> Measure | None:
    pairs = zip(tensors_of(ours.output), tensors_of(truth.output), strict=False)
    return worst(measure([a], [b], a.dtype) for a, b in pairs if is_number(a))


def _of_gradient(ours: Call, truth: Call, scale: float, kind: torch.dtype) -> Measure | None:
    both = [place for place in ours.output_gradients if place in truth.output_gradients]
    pairs = [(ours.output_gradients[place], truth.output_gradients[place]) for place in both]
    return worst(measure([a], [b], coarsest([a.dtype, kind]), scale=scale) for a, b in pairs)


def update_error(names: Iterable[str], truth: Look, look: Look) -> Measure | None:
    """The error of what the step added to the parameters, in the type in which the model keeps them; flushed
    are those that did not move and should have.
    """
    known = [name for name in names if name in truth.updates]
    pairs = [look.updates[name] for name in known], [truth.updates[name] for name in known]
    kind = coarsest([look.types[name] for name in known])
    return measure(*pairs, kind, flushed_below=math.inf) if known else None


def side_of(truth: Look, look: Look) -> Side:
    """A step as a whole."""
    known = {name for name, _ in truth.calls}
    return Side(
        look.label,
        look.loss,
        look.scale,
        look.skipped,
        update_error(look.updates, truth, look),
        first_output(truth, look),
        first_gradient(look),
        tuple(dict.fromkeys(call.name or NETWORK for call in look.calls.values() if call.name not in known)),
        tuple(sorted(look.differs)),
    )


def first_output(truth: Look, look: Look) -> str | None:
    """The first module, in the order of the forward, that gave what is not finite and is in fp64."""
    both = ((ours, truth.calls[key]) for key, ours in look.calls.items() if key in truth.calls)
    return next((ours.name or NETWORK for ours, exact in both if breaks(ours.output, exact.output)), None)


def first_gradient(look: Look) -> str | None:
    """The module from whose backward the first gradient came that is not finite; `loss` for the loss.

    Of calls in the order of the backward, the first that was given finite gradients and passed on others, or
    had others of its own parameters; else who stands between it and its gradient: the code of a container.
    """
    outer = {inner.key: call for call in look.calls.values() for inner in call.inner}
    for call in (call for call in look.backward if not call.inner):  # a container only passes on
        if not _finite(call.output_gradients.values()):
            while (holder := outer.get(call.key)) and not _finite(holder.output_gradients.values()):
                call = holder
            return (holder.name or NETWORK) if holder else LOSS
        own = [g for name, g in look.gradients.items() if name.rpartition(".")[0] == call.name]
        if not _finite(own) or not _finite(call.given_gradients.values()):
            return call.name or NETWORK
    names = [name for name, g in look.gradients.items() if not _finite([g])]
    return (names[0].rpartition(".")[0] or NETWORK) if names else None


def _finite(found: Iterable[Tensor]) -> bool:
    return all(bool(t.isfinite().all()) for t in found)  # sync: a look waits wherever it looks
