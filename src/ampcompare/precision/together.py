"""Casts of many tensors in few launches: low-precision copies of weights, their gradients back to fp32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ampcompare.precision.keep import is_kept

# Weights cast in one launch. Their gradients wait for each other, so it is not the whole model: several
# processes add gradients up while the backward of earlier layers still runs.
TOGETHER = 16


def casting_modules(model: nn.Module) -> list[nn.Module]:
    """Convolutions and linear layers: those whose weights are wanted in low precision."""
    found = (module for module in model.modules() if isinstance(module, _ConvNd | nn.Linear))
    return [module for module in found if not is_kept(module)]


@contextmanager
def weights_together(modules: Sequence[nn.Module], dtype: torch.dtype) -> Iterator[None]:
    """The fp32 weights of `modules` as `dtype`, cast TOGETHER a launch: who reads one inside gets the copy.

    Frozen ones stay, or they would get gradients.
    """
    places: dict[int, list[tuple[nn.Module, str]]] = {}  # where each weight is: several modules may share one
    weights: dict[int, Tensor] = {}
    for module in modules:
        for name in ("weight", "bias"):
            weight = module._parameters.get(name)
            if weight is not None and weight.requires_grad and weight.dtype is torch.float32:
                weights[id(weight)] = weight
                places.setdefault(id(weight), []).append((module, name))
    keys = list(weights)
    try:
        for start in range(0, len(keys), TOGETHER):
            group = keys[start : start + TOGETHER]
            copies = CastTogether.apply(dtype, *(weights[key] for key in group))
            for key, copy in zip(group, copies, strict=True):
                for module, name in places[key]:
                    vars(module)[name] = copy  # found before the parameter, which stays where it is
        yield
    finally:
        for found in places.values():
            for module, name in found:
                vars(module).pop(name, None)


class CastTogether(torch.autograd.Function):
    """`apply(dtype, *weights)`: fp32 tensors as a lower type in one launch; back likewise.

    A gradient that is missing stays missing.
    """

    @staticmethod
    def forward(dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        return tuple(copy_together(weights, dtype))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)
        ctx.dtype, ctx.wide = inputs[0], inputs[1].dtype

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        present = [g for g in gradients if g is not None]
        # A gradient of which the gradient is wanted goes by ops that have one.
        # Likewise a batch of gradients (`is_grads_batched`).
        are_plain = all(g.layout == torch.strided and not _is_batch(g) for g in present)
        together = are_plain and not torch.is_grad_enabled()
        wide = iter(copy_together(present, ctx.wide) if together else [g.to(ctx.wide) for g in present])
        return (None, *(None if g is None else next(wide) for g in gradients))

    @staticmethod
    def jvp(ctx: Any, dtype: None, *tangents: Tensor | None) -> Any:
        return tuple(None if t is None else t.to(ctx.dtype) for t in tangents)


class CastFlat(CastTogether):
    """As CastTogether, with the copies in one buffer (`copy_flat`)."""

    @staticmethod
    def forward(dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        return tuple(copy_flat(weights, dtype))


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
            buffer.untyped_storage(), start, x.shape, _contiguous(x)
        )
        for x, start in zip(tensors, starts, strict=True)
    ]
    torch._foreach_copy_(copies, list(tensors))
    return copies


def _contiguous(x: Tensor) -> tuple[int, ...]:
    """The strides of x, laid out without gaps."""
    return torch.empty(x.shape, device="meta").stride()


def copy_together(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The tensors as `dtype`, in new memory, in one launch."""
    copies = [torch.empty_like(x, dtype=dtype) for x in tensors]
    if copies:
        torch._foreach_copy_(copies, list(tensors))
    return copies


def _is_batch(x: Tensor) -> bool:
    functorch = torch._C._functorch
    return functorch.is_legacy_batchedtensor(x) or functorch.is_functorch_wrapped_tensor(x)
