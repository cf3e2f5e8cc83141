"""The active casts of a thread, and its cache of 16-bit copies of fp32 weights.

A weight that is used twice is cast once, and its gradient accumulates in fp32. The cache is cleared when an
outermost context begins or ends and after a step (in apex: when `scale_loss` ends). In between, a weight is
cast again if its `_version` has changed, that is after an in-place edit that autograd sees, or if it shows
other memory (`weight.data = new`). An edit inside the memory of `weight.data` is not seen in between.
"""

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class CastState(threading.local):
    """The casts of the current thread.

    Contexts set attributes of the thread. Outside any context the attributes of the class apply, which
    `amp.initialize` sets.

    Attributes:
        on: Whether casts are active.
        half: The 16-bit dtype.
        device_type: The device type of the tensors that are cast.
        allow_banned: Whether banned functions run in fp32 rather than raise.
        copies: By the id of a weight: the weight, its version, an alias of its memory, and its 16-bit copy.
            The first and the third are kept alive, so that their place is not used again meanwhile.
    """

    on = False
    half = torch.float16
    device_type = "cpu"
    allow_banned = False

    def __init__(self) -> None:
        # Copies belong to the autograd graph of this thread.
        self.copies: dict[int, tuple[Tensor, int, Tensor, Tensor]] = {}


STATE = CastState()


def cast_weight(weight: Tensor) -> Tensor:
    """Return the 16-bit copy of an fp32 weight, from the cache if possible."""
    copy = _find_valid_copy(weight)
    return _remember(weight, weight.to(STATE.half)) if copy is None else copy


def copy_to_flat_buffer(weights: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return 16-bit copies of a recurrent network's weights, in one buffer with the same layout.

    cuDNN needs one buffer; otherwise it warns and copies the weights in each call. In elements, its layout is
    the same for each dtype. On a GPU `flatten_parameters` has put the fp32 weights into one storage. Weights
    that do not share a storage are returned as they are.
    """
    storage = weights[0].untyped_storage()
    for w in weights:
        if w.dtype is not torch.float32 or w.untyped_storage()._cdata != storage._cdata:
            return weights
    copies = [_find_valid_copy(w) for w in weights]
    if any(copy is None for copy in copies):
        options: dict[str, Any] = {"dtype": STATE.half, "device": weights[0].device}
        buffer = torch.empty(storage.nbytes() // 4, **options).untyped_storage()
        for index, w in enumerate(weights):
            # `set_` rather than a view, so that autograd treats the copies as independent.
            target = torch.empty(0, **options).set_(buffer, w.storage_offset(), w.shape, w.stride())
            copies[index] = _remember(w, target.copy_(w))
    return [copy for copy in copies if copy is not None]


def _find_valid_copy(weight: Tensor) -> Tensor | None:
    """Return the cached copy if the weight has not changed, and dtype and autograd history fit.

    A copy from under no_grad, or from before requires_grad changed, would not pass a gradient to the weight.
    """
    entry = STATE.copies.get(id(weight))
    if entry is None:
        return None
    _, version, memory, copy = entry
    if version != weight._version or not weight.is_set_to(memory) or copy.dtype is not STATE.half:
        return None
    if torch.is_grad_enabled() and copy.requires_grad != weight.requires_grad:
        return None
    return copy


def _remember(weight: Tensor, copy: Tensor) -> Tensor:
    """Cache the copy and return it.

    Inference tensors are not cached: they have no version and may not enter an autograd graph. Neither are
    sparse weights, whose memory cannot be compared.
    """
    if weight.layout is torch.strided and not (copy.is_inference() or weight.is_inference()):
        STATE.copies[id(weight)] = (weight, weight._version, weight.data, copy)
    return copy
