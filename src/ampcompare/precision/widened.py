"""An optimizer's step in fp32 arithmetic on weights, gradients and states that are kept in half precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ampcompare.precision.together import copy_together

HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Widened:
    """The half weights of an optimizer beside their fp32 copies, which lie in one flat tensor, in order."""

    flat: Tensor  # [all weights], fp32
    wide: list[Tensor]  # views of `flat`, each with its weight's shape and layout
    narrow: list[Tensor]  # the weights as they are kept, bit for bit those from before the step

    @property
    def dtype(self) -> torch.dtype:
        return self.narrow[0].dtype


@contextmanager
@torch.no_grad()
def widened(optimizer: Optimizer) -> Iterator[Widened | None]:
    """Inside: in the place of the optimizer's half weights with a gradient it has fp32 copies, with fp32
    copies of their gradients and states.

    The weights and gradients themselves are left alone: who wants the step copies `Widened.wide` into
    `Widened.narrow`. (A parameter that took fp32 data for a while would lose the node that adds up its
    gradient, and with it DDP's hook: `VariableHooks::set_data`. Processes then drift apart in silence.)
    States are rounded to nearest as they go back, which is how a step in the half type keeps them. None where
    no half weight has a gradient. Launches go by the number of types, not of weights; nothing waits for the
    device.
    """
    places = [
        (group["params"], index)
        for group in optimizer.param_groups
        for index, p in enumerate(group["params"])
        if p.grad is not None and p.dtype in HALF
    ]
    if not places:
        yield None
        return
    parameters = [params[index] for params, index in places]
    narrow = [p.data for p in parameters]
    gradients = copy_together([p.grad for p in parameters], torch.float32)
    flat = torch.empty(sum(p.numel() for p in parameters), dtype=torch.float32, device=parameters[0].device)
    wide = _views(flat, narrow)
    torch._foreach_copy_(wide, narrow)
    standing_in = [nn.Parameter(weight) for weight in wide]
    for p, gradient in zip(standing_in, gradients, strict=True):
        p.grad = gradient
    kept = _widen_states(optimizer, parameters)
    _put(optimizer, places, parameters, standing_in)
    try:
        yield Widened(flat, wide, narrow)
    finally:
        _put(optimizer, places, standing_in, parameters)
        _narrow_states(optimizer, parameters, kept)


def _put(
    optimizer: Optimizer, places: list[tuple[list[Tensor], int]], old: list[Any], new: list[Any]
) -> None:
    """Have the optimizer update `new` where it has `old`, with the states of those."""
    for (params, index), before, after in zip(places, old, new, strict=True):
        params[index] = after
        if before in optimizer.state:
            optimizer.state[after] = optimizer.state.pop(before)


def _views(flat: Tensor, like: list[Tensor]) -> list[Tensor]:
    """Pieces of `flat` with the shapes of `like`, and their layout where that has no holes."""
    pieces = flat.split([x.numel() for x in like])
    return [
        piece.as_strided(x.shape, torch.empty_like(x, device="meta").stride(), piece.storage_offset())
        for piece, x in zip(pieces, like, strict=True)
    ]


def _is_state_of(parameter: Tensor, key: str, value: Any) -> bool:
    """Whether a state is one number a weight; `step` counts, as torch.optim knows it by its name, too."""
    return isinstance(value, Tensor) and key != "step" and value.shape == parameter.shape


_Kept = dict[tuple[int, str], Tensor]


def _states(optimizer: Optimizer, parameters: list[Tensor], dtypes: tuple[torch.dtype, ...]) -> _Kept:
    """The states of one number a weight in one of `dtypes`, by number of parameter and name."""
    return {
        (number, key): value
        for number, p in enumerate(parameters)
        for key, value in (optimizer.state[p].items() if p in optimizer.state else ())
        if _is_state_of(p, key, value) and value.dtype in dtypes
    }


def _widen_states(optimizer: Optimizer, parameters: list[Tensor]) -> _Kept:
    """The half states; fp32 copies stand in their place."""
    kept = _states(optimizer, parameters, HALF)
    for (number, key), copy in zip(kept, copy_together(list(kept.values()), torch.float32), strict=True):
        optimizer.state[parameters[number]][key] = copy
    return kept


def _narrow_states(optimizer: Optimizer, parameters: list[Tensor], kept: _Kept) -> None:
    """fp32 states as their weight's type, in the memory of those that were there."""
    wide = _states(optimizer, parameters, (torch.float32,))
    narrow = [
        kept[place] if place in kept else torch.empty_like(value, dtype=parameters[place[0]].dtype)
        for place, value in wide.items()
    ]
    for (number, key), value in zip(wide, narrow, strict=True):
        optimizer.state[parameters[number]][key] = value
    if narrow:
        torch._foreach_copy_(narrow, list(wide.values()))
