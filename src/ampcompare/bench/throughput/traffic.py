"""What a training step of a model must move and compute, counted op by op while it is traced without data.

The counts of bytes are those of `ampcompare.measure.traffic`: eager, merged, ideal.

Weights and the optimizer, which a step moves once whatever the batch, are shared out over its images.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ampcompare.measure.traffic import KINDS, Op, Traffic
from ampcompare.models import build_model
from ampcompare.precision import build_precision
from ampcompare.precision.base import Precision
from ampcompare.precision.native import Native


def count_ops(backend: str, model_name: str, stem: str, batch_size: int) -> list[Op]:
    """Each op of forward and backward at a batch size, in order. No arithmetic is done."""
    model = build_model(model_name, stem, 10)
    precision = build_precision(backend)
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
    unscales_itself = scales and isinstance(precision, Native)
    return [*unscale, Op(((6.0 if unscales_itself else 5.0) * size, 5.0 * size, 5.0 * size))]


def per_image(
    backend: str,
    model_name: str,
    stem: str,
    batch_size: int = 128,
) -> dict[str, list[list[float]]]:
    """For each of KINDS the (bytes, FLOP) of one image of a batch in every op that moves or computes."""
    small, large = (count_ops(backend, model_name, stem, size) for size in (2, 4))
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
