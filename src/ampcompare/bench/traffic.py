"""What a training step of a model must move and compute, counted op by op while it is traced without data.

Every op reads its inputs and writes its outputs once, some inputs twice where there is no other way; views are
free. From two batch sizes follow the figures of one
image: what is read once a step whatever the batch (weights) drops out. Three counts of bytes:

- `eager`: every op by itself, as eager PyTorch runs them.
- `merged`: convolutions, matrix products, batch norms and pooling; pointwise ops ride along in their kernels.
- `ideal`: convolutions and matrix products alone.

The optimizer is left out: it does not grow with the batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from ampcompare.models import build_model
from ampcompare.precision import build_precision

KINDS = ("eager", "merged", "ideal")


class Traffic(TorchDispatchMode):
    """Notes (kind, bytes, FLOP) of each op inside."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[tuple[str, int, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if _is_free(func):
            return result
        count = flop_registry.get(func.overloadpacket)
        flop = count(*args, **kwargs, out_val=result) if count else 0
        name = func.overloadpacket.__name__
        size = _bytes(tree_leaves((args, kwargs))) + _bytes(tree_leaves(result)) + _second_pass(name, args)
        kind = "ideal" if flop else "merged" if "batch_norm" in name or "pool" in name else "eager"
        self.ops.append((kind, size, flop))
        return result


def _second_pass(name: str, args: Any) -> int:
    """What an op has to read twice: batch norms need their sums first, the two gradients of a convolution are two."""
    if name == "convolution_backward":
        return _bytes(args[:1])  # the gradient of the output
    if "batch_norm" in name:
        return _bytes(args[:2] if "backward" in name else args[:1])
    return 0


def _is_free(func: Any) -> bool:
    """Views, what allocates without writing, and questions that move nothing."""
    if func.namespace != "aten":
        return True
    returns = func._schema.returns
    is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
    return is_view or func.overloadpacket.__name__ in ("empty", "empty_like", "empty_strided", "detach", "new_empty")


def _bytes(leaves: Iterable[Any]) -> int:
    # Each tensor once, also where an op has it twice; a broadcast scalar as the one number that it is.
    tensors = {id(x): x for x in leaves if isinstance(x, Tensor)}
    return sum(x.numel() * x.element_size() for x in tensors.values())


def count_ops(backend: str, model_name: str, stem: str, dtype: str, batch_size: int) -> list[tuple[str, int, int]]:
    """Each op of forward and backward at a batch size, in order. No arithmetic is done."""
    model = build_model(model_name, stem, 10)
    precision = build_precision(backend, dtype=dtype)
    model, _ = precision.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with FakeTensorMode(allow_non_fake_inputs=True):
        images, labels = torch.randn(batch_size, 3, 32, 32), torch.zeros(batch_size, dtype=torch.int64)
        with precision.session(), Traffic() as traffic:
            with precision.forward_context():
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            torch.autograd.grad(precision.scale(loss), list(model.parameters()))
    return traffic.ops


def per_image(backend: str, model_name: str, stem: str, dtype: str = "float16") -> dict[str, list[list[float]]]:
    """For each of KINDS the (bytes, FLOP) of one image in every op that counts there."""
    small, large = (count_ops(backend, model_name, stem, dtype, size) for size in (2, 4))
    pairs = [(kind, (b2 - b1) / 2, (f2 - f1) / 2) for (kind, b1, f1), (_, b2, f2) in zip(small, large, strict=True)]
    return {
        which: [[size, flop] for kind, size, flop in pairs if KINDS.index(kind) >= number]
        for number, which in enumerate(KINDS)
    }
