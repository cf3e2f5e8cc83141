"""Which casts are in force in this thread, and the half copies of fp32 weights that they made: a weight that
is used twice is cast once, and its gradient adds up in fp32.

Copies go whenever an outermost context opens or closes and after a step (in apex when `scale_loss` exited);
between those, a changed `_version` (any in-place edit that autograd sees) makes a new one.
"""

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class CastState(threading.local):
    """The casts of the current thread; outside any context the class's own, which `amp.initialize` sets."""

    on = False
    half = torch.float16
    device_type = "cpu"
    allow_banned = False

    def __init__(self) -> None:
        # By the weight's id: the weight, which so stays alive; its version then; the copy. Copies belong to
        # the graph that the thread builds.
        self.copies: dict[int, tuple[Tensor, int, Tensor]] = {}


STATE = CastState()


def cast_weight(weight: Tensor) -> Tensor:
    """The copy of an fp32 weight in half precision, part of the graph where the graph needs it."""
    found = _find_valid_copy(weight)
    return _remember(weight, weight.to(STATE.half)) if found is None else found


def copy_to_flat_buffer(weights: Sequence[Tensor]) -> Sequence[Tensor]:
    """The copies of a recurrent network's weights in one buffer, laid out as the weights are in theirs.

    cuDNN wants them so, or it warns and copies them at each call; counted in elements its layout is the same
    for each type. On a GPU `flatten_parameters` put the fp32 ones there. Weights that do not share a storage
    are given back as they are.
    """
    storage = weights[0].untyped_storage()
    if any(w.dtype is not torch.float32 or w.untyped_storage()._cdata != storage._cdata for w in weights):
        return weights
    copies = [_find_valid_copy(w) for w in weights]
    if any(copy is None for copy in copies):
        how: dict[str, Any] = {"dtype": STATE.half, "device": weights[0].device}
        buffer = torch.empty(storage.nbytes() // 4, **how).untyped_storage()
        for index, w in enumerate(weights):
            # `set_` and not a view: to autograd the copies are independent of each other.
            place = torch.empty(0, **how).set_(buffer, w.storage_offset(), w.shape, w.stride())
            copies[index] = _remember(w, place.copy_(w))
    return [copy for copy in copies if copy is not None]


def _find_valid_copy(weight: Tensor) -> Tensor | None:
    """The remembered copy, if the weight is as it was, and the copy of the type and in the graph if that is.

    One made under no_grad or before requires_grad changed would cut the weight off from its gradient.
    """
    found = STATE.copies.get(id(weight))
    if found is None or found[1] != weight._version or found[2].dtype is not STATE.half:
        return None
    copy = found[2]
    return copy if copy.requires_grad == weight.requires_grad or not torch.is_grad_enabled() else None


def _remember(weight: Tensor, copy: Tensor) -> Tensor:
    """The copy; an inference tensor, copy or weight, has no version or may not enter a graph later."""
    if not (copy.is_inference() or weight.is_inference()):
        STATE.copies[id(weight)] = (weight, weight._version, copy)
    return copy
