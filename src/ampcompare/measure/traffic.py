"""What an op of a step must move and compute, counted while it is traced, with or without data.

Three counts of bytes, each a floor for a way to run the step:

- `eager`: every op reads its inputs and writes its outputs once, as eager PyTorch runs them; batch norms read
  theirs twice (sums first), and the two gradients of a convolution each read the gradient that comes in.
- `merged`: pointwise ops ride along in the kernel before them (BN, ReLU and add in one): of their inputs the
  largest costs nothing, another one, such as the other branch of a residual, is still read, and nothing is
  written.
- `ideal`: pointwise ops for nothing, and the sums of batch norms taken in the kernel before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

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
        if not is_free(func):
            self.ops.append(replace(count(func, args, kwargs, result), name=func.overloadpacket.__name__))
        return result


def count(func: Any, args: Any, kwargs: Any, result: Any) -> Op:
    """Bytes under each of KINDS and FLOP of one call of an op, with what it gave."""
    name = func.overloadpacket.__name__
    arithmetic = flop_registry.get(func.overloadpacket)
    inputs, outputs = _sizes(tree_leaves((args, kwargs))), _sizes(tree_leaves(result))
    if not func._schema.returns:  # an op on lists, in place
        outputs = _sizes(tree_leaves(_written(func, args, kwargs)))
    once = sum(inputs) + sum(outputs)
    if arithmetic:
        # The gradient of the output is an input of both gradients, the weights' and the inputs'.
        size = once + (sum(_sizes(args[:1])) if name == "convolution_backward" else 0)
        return Op((size, size, size), arithmetic(*args, **kwargs, out_val=result))
    if "batch_norm" in name:
        twice = once + sum(_sizes(args[:2] if "backward" in name else args[:1]))
        return Op((twice, twice, once))
    if "pool" in name:
        return Op((once, once, once))
    if name == "_foreach_copy_":  # casts, of which none has a second input
        return Op((once, 0, 0))
    return Op((once, sum(inputs) - max(inputs, default=0), 0))


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that an op writes into. Fused optimizers write gradients only where they unscale them."""
    arguments = func._schema.arguments
    pairs = list(zip(arguments, args, strict=False))
    pairs += [(a, kwargs[a.name]) for a in arguments if a.name in kwargs]
    kept = "grads" if "_fused_" in func.overloadpacket.__name__ and kwargs.get("grad_scale") is None else ""
    return [x for a, x in pairs if a.alias_info is not None and a.alias_info.is_write and a.name != kept]


def is_free(func: Any) -> bool:
    """Views, what allocates without writing, and questions that move nothing."""
    if func.namespace != "aten":
        return True
    is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
    return is_view or func.overloadpacket.__name__ in FREE


def _sizes(leaves: Iterable[Any]) -> list[int]:
    # Each tensor once, also where an op has it twice; a broadcast scalar as the one number that it is.
    tensors = {id(x): x for x in leaves if isinstance(x, Tensor)}
    return [x.numel() * x.element_size() for x in tensors.values()]
