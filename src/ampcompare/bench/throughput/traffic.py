"""What a training step of a model must move and compute, counted op by op while it is traced without data.

Three counts of bytes, each a floor for a way to run the step:

- `eager`: every op reads its inputs and writes its outputs once, as eager PyTorch runs them; batch norms read
  theirs twice (sums first), and the two gradients of a convolution each read the gradient that comes in. With
  `fuse` a batch norm, ReLU and residual are one op, which reads a residual once, but in the backward the
  output with it twice.
- `merged`: pointwise ops ride along in the kernel before them (BN, ReLU and add in one): of their inputs the
  largest costs nothing, another one, such as the other branch of a residual, is still read, and nothing is
  written.
- `ideal`: pointwise ops for nothing, and the sums of batch norms taken in the kernel before.

Weights and the optimizer, which a step moves once whatever the batch, are shared out over its images.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from ampcompare.fusion.modules import fuse_model
from ampcompare.models import build_model
from ampcompare.precision import build_precision
from ampcompare.precision.base import Precision
from ampcompare.precision.native import Native

KINDS = ("eager", "merged", "ideal")
FREE = ("empty", "empty_like", "empty_strided", "detach", "new_empty")  # beside views


@dataclass(frozen=True)
class Op:
    """An op's bytes under each of KINDS, its FLOP, and its name."""

    sizes: tuple[float, float, float]
    flop: float = 0
    name: str = ""


class Traffic(TorchDispatchMode):
    """Notes each op inside."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Op] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not _is_free(func):
            self.ops.append(replace(_count(func, args, kwargs, result), name=func.overloadpacket.__name__))
        return result


def _count(func: Any, args: Any, kwargs: Any, result: Any) -> Op:
    name = func.overloadpacket.__name__
    count = flop_registry.get(func.overloadpacket)
    inputs, outputs = _sizes(tree_leaves((args, kwargs))), _sizes(tree_leaves(result))
    if not func._schema.returns:  # an op on lists, in place
        outputs = _sizes(tree_leaves(_written(func, args, kwargs)))
    once = sum(inputs) + sum(outputs)
    if count:
        # The gradient of the output is an input of both gradients, the weights' and the inputs'.
        size = once + (sum(_sizes(args[:1])) if name == "convolution_backward" else 0)
        return Op((size, size, size), count(*args, **kwargs, out_val=result))
    if func.namespace == "ampcompare":
        return _count_fused(name, args, once, result)
    if "batch_norm" in name:
        twice = once + sum(_sizes(args[:2] if "backward" in name else args[:1]))
        return Op((twice, twice, once))
    if "pool" in name:
        return Op((once, once, once))
    if name == "_foreach_copy_":  # casts, of which none has a second input
        return Op((once, 0, 0))
    return Op((once, sum(inputs) - max(inputs, default=0), 0))


def _count_fused(name: str, args: Any, once: int, result: Any) -> Op:
    """Our own ops. Where pointwise ops are merged, what they save is counted as if they were ops apart."""
    if name == "norm_relu":
        twice = once + sum(_sizes(args[:1]))
        return Op((twice, twice, once - sum(_sizes(args[1:2]))))
    if name == "norm_relu_backward":
        # Its gradient rides along; so does the mask, but for the output to make it.
        residual = sum(_sizes(result[3:]))
        twice = once + sum(_sizes(args[:2])) - residual
        return Op((once + sum(_sizes(args[:3])), twice, once - 2 * residual))
    return Op((once, once, once))


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that an op writes into. Fused optimizers write gradients only where they unscale them."""
    arguments = func._schema.arguments
    pairs = list(zip(arguments, args, strict=False))
    pairs += [(a, kwargs[a.name]) for a in arguments if a.name in kwargs]
    kept = "grads" if "_fused_" in func.overloadpacket.__name__ and kwargs.get("grad_scale") is None else ""
    return [x for a, x in pairs if a.alias_info is not None and a.alias_info.is_write and a.name != kept]


def _is_free(func: Any) -> bool:
    """Views, what allocates without writing, and questions that move nothing."""
    if func.namespace == "ampcompare":
        return False
    if func.namespace != "aten":
        return True
    is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
    return is_view or func.overloadpacket.__name__ in FREE


def _sizes(leaves: Iterable[Any]) -> list[int]:
    # Each tensor once, also where an op has it twice; a broadcast scalar as the one number that it is.
    tensors = {id(x): x for x in leaves if isinstance(x, Tensor)}
    return [x.numel() * x.element_size() for x in tensors.values()]


def count_ops(
    backend: str, model_name: str, stem: str, dtype: str, batch_size: int, *, fuse: bool = False
) -> list[Op]:
    """Each op of forward and backward at a batch size, in order. No arithmetic is done."""
    model = build_model(model_name, stem, 10)
    if fuse:
        fuse_model(model)
    precision = build_precision(backend, dtype=dtype, fuse=fuse)
    model, optimizer = precision.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with FakeTensorMode(allow_non_fake_inputs=True):
        images, labels = torch.randn(batch_size, 3, 32, 32), torch.zeros(batch_size, dtype=torch.int64)
        with precision.session(), Traffic() as traffic:
            with precision.forward_context():
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            torch.autograd.grad(precision.scale(loss), list(model.parameters()))
    return [*traffic.ops, *_optimizer_ops(optimizer, precision)]


def _optimizer_ops(optimizer: torch.optim.Optimizer, precision: Precision) -> list[Op]:
    """A fused step of SGD with momentum: weights and momentum read and written, gradients read.

    PyTorch's GradScaler leaves unscaling to it, so that it writes gradients not yet unscaled, too.
    """
    size = sum(p.numel() * p.element_size() for group in optimizer.param_groups for p in group["params"])
    scales = precision.scales_dynamically()
    unscale = [Op((2.0 * size, 0, 0))] if scales else []
    unscales_itself = scales and isinstance(precision, Native) and not precision.options.fuse
    return [*unscale, Op(((6.0 if unscales_itself else 5.0) * size, 5.0 * size, 5.0 * size))]


def per_image(
    backend: str,
    model_name: str,
    stem: str,
    dtype: str = "float16",
    batch_size: int = 128,
    fuse: bool = False,
) -> dict[str, list[list[float]]]:
    """For each of KINDS the (bytes, FLOP) of one image of a batch in every op that moves or computes."""
    small, large = (count_ops(backend, model_name, stem, dtype, size, fuse=fuse) for size in (2, 4))
    found: dict[str, list[list[float]]] = {}
    for number, kind in enumerate(KINDS):
        of_both = [
            [_share(a.sizes[number], b.sizes[number], batch_size), _share(a.flop, b.flop, batch_size)]
            for a, b in zip(small, large, strict=True)
        ]
        found[kind] = [pair for pair in of_both if any(pair)]
    return found


def _share(at_two: float, at_four: float, batch_size: int) -> float:
    """One image's share of a batch of what is linear in the batch size, from batches of two and of four."""
    each = (at_four - at_two) / 2
    return each + (at_two - 2 * each) / batch_size


def megabytes(ops: Sequence[Sequence[float]]) -> float:
    """Their bytes in all, in MB."""
    return sum(size for size, _ in ops) / 1e6
