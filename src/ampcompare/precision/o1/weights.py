"""Which casts are in force in this thread, and the half copies of fp32 weights that they made: a weight that
is used twice is cast once, and its gradient adds up in fp32.

The original kept copies until `scale_loss` exited and so served stale ones to a forward after an edit. Here
they go whenever an outermost context opens or closes and after a step; between those, a changed `_version`
(any in-place edit that autograd sees) makes a new copy.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

Entry = tuple[Tensor, int, Tensor]  # the weight, which so keeps its id; its version then; the copy


class CastState(threading.local):
    """The casts of the current thread.

    A thread that never entered a context follows the class's own values, which is what `amp.initialize` sets
    for functions outside a model's forward, as the original did.
    """

    on = False
    half = torch.float16
    device_type = "cpu"
    allow_banned = False

    def __init__(self) -> None:
        # One for each thread: copies belong to the graph that the thread builds.
        self.copies: dict[Any, list[Entry]] = {}


STATE = CastState()


def half_weight(weight: Tensor) -> Tensor:
    """The copy of an fp32 parameter in half precision, part of the graph where the graph needs it."""
    if torch.is_inference_mode_enabled() or weight.is_inference():
        return weight.to(STATE.half)  # an inference tensor has no version and may not enter a graph
    found = STATE.copies.get(id(weight))
    if found is None or not _is_valid(found[0]):
        found = STATE.copies[id(weight)] = [(weight, weight._version, weight.to(STATE.half))]
    return found[0][2]


def flat_weights(weights: Sequence[Tensor]) -> list[Tensor] | None:
    """The copies of a recurrent network's weights: one buffer, in which they lie as the weights do.

    So cuDNN takes the buffer as it is, if the network keeps its fp32 weights flat, as it does on a GPU.
    None where weights are to be cast one by one: tensor subclasses, mixed types, `torch.func`.
    """
    kinds = {(type(w), w.dtype, w.device, w.layout) for w in weights}
    is_plain = len(kinds) == 1 and type(weights[0]) in (Tensor, nn.Parameter)
    if not is_plain or weights[0].layout != torch.strided or torch._C._are_functorch_transforms_active():
        return None
    if torch.is_inference_mode_enabled() or any(w.is_inference() for w in weights):
        return copy_flat(weights, STATE.half)
    key = tuple(map(id, weights))
    found = STATE.copies.get(key)
    if not found or not all(map(_is_valid, found)):
        copies = CastFlat.apply(STATE.half, *weights)
        versions = [w._version for w in weights]
        found = STATE.copies[key] = list(zip(weights, versions, copies, strict=True))
    return [copy for _, _, copy in found]


def _is_valid(entry: Entry) -> bool:
    """Whether the weight is as it was, and the copy of the type and in the graph if the weight is.

    A copy made under no_grad or before requires_grad changed would cut the weight off from its gradient.
    """
    weight, version, copy = entry
    is_in_graph = copy.requires_grad == weight.requires_grad or not torch.is_grad_enabled()
    return version == weight._version and copy.dtype is STATE.half and is_in_graph


class CastFlat(torch.autograd.Function):
    """`apply(dtype, *weights)`: fp32 tensors as a lower type in one buffer; each gradient back to fp32."""

    @staticmethod
    def forward(dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        return tuple(copy_flat(weights, dtype))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)
        ctx.wide = inputs[1].dtype

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        return (None, *(None if g is None else g.to(ctx.wide) for g in gradients))


def copy_flat(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The tensors as `dtype` in one new buffer, in one launch: laid out as they are, if they share a storage.

    Else they lie one after another. cuDNN wants the weights of a recurrent network in an order of its own,
    in which `flatten_parameters` put the fp32 ones; counted in elements it is the same for each type.
    """
    count = sum(x.numel() for x in tensors)
    storage = tensors[0].untyped_storage()
    size = storage.nbytes() // tensors[0].element_size()
    shared = all(x.untyped_storage().data_ptr() == storage.data_ptr() and x.is_contiguous() for x in tensors)
    if shared and size <= 2 * count:  # one that holds a whole model is not theirs
        starts = [int(x.storage_offset()) for x in tensors]
    else:
        size = count
        starts = [sum(x.numel() for x in tensors[:index]) for index in range(len(tensors))]
    buffer = torch.empty(size, dtype=dtype, device=tensors[0].device)
    copies = [
        # `set_` and not a view: to autograd the copies are independent of each other.
        torch.empty(0, dtype=dtype, device=x.device).set_(
            buffer.untyped_storage(), start, x.shape, torch.empty(x.shape, device="meta").stride()
        )
        for x, start in zip(tensors, starts, strict=True)
    ]
    torch._foreach_copy_(copies, list(tensors))
    return copies
