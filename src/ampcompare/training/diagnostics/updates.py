"""Updates of 16-bit weights that are lost to rounding.

A weight in bf16 has 8 significant bits, in fp16 11. An update below half a unit in the last place of its
weight (2**-9 to 2**-8 of the weight in bf16, 2**-12 to 2**-11 in fp16) leaves the weight unchanged, at every
step again. For that reason Micikevicius et al. 2018, "Mixed Precision Training", keep fp32 master weights.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ampcompare import metrics
from ampcompare.precision.casting import SIXTEEN_BIT_DTYPES
from ampcompare.system.device import widest_float
from ampcompare.training.diagnostics.gradients import SAMPLE

# The stride of the sample, and for each tensor: the weights, their sample before the step, and which of the
# sampled weights have a gradient.
WeightSample = tuple[int, list[tuple[Tensor, Tensor, Tensor]]]


@torch.no_grad()
def sample_weights(parameters: Sequence[Tensor]) -> WeightSample:
    """Return a sample of the 16-bit weights that have a gradient, before a step.

    Up to `SAMPLE` elements all are taken, beyond that every n-th.
    """
    weights = [(p, p.grad) for p in parameters if p.grad is not None and p.dtype in SIXTEEN_BIT_DTYPES]
    stride = even_stride(sum(p.numel() for p, _ in weights) // SAMPLE)
    return stride, [(p, _sample(p, stride).clone(), _sample(g, stride) != 0) for p, g in weights]


@torch.no_grad()
def lost_updates(groups: Mapping[str, WeightSample], skipped: Tensor) -> dict[str, Tensor]:
    """Return the fraction of weights with a gradient that the optimizer left unchanged.

    Does not wait for the device.

    Args:
        groups: The weights before the step by layer group, as `sample_weights` returns them.
        skipped: Whether the step was skipped, 0-d bool.

    Returns:
        `update/lost_fraction` by metric key, for each layer group and over all, 0-d on the device. A group
        counts by the number of its elements. The value is nan where no weight has a gradient, and for a
        skipped step.
    """
    counts: dict[str, Tensor] = {}
    for name, (stride, group) in groups.items():
        if group:
            lost = [(had & (_sample(p, stride) == before)).sum() for p, before, had in group]
            moved = [had.sum() for _, _, had in group]
            counts[name] = stride * torch.stack([torch.stack(lost).sum(), torch.stack(moved).sum()])
    if not counts:
        return {}
    fractions = {}
    wide = widest_float(skipped.device)
    for name, row in [("", torch.stack(list(counts.values())).sum(0)), *counts.items()]:
        lost_count, moved_count = row.to(wide).unbind()
        key = f"{metrics.LOST_UPDATES}/{name}" if name else metrics.LOST_UPDATES
        fractions[key] = torch.where(skipped, torch.nan, lost_count / moved_count)
    return fractions


def _sample(x: Tensor, stride: int) -> Tensor:
    # Not kept between calls: for a tensor in another order of memory, such as channels_last, it is a copy.
    return x.detach().to_dense().flatten()[::stride]


def even_stride(times: int) -> int:
    """Return the stride of an even sample from `times` as many elements too many.

    It is not a multiple of 2 or 3, since numbers of channels and sides of kernels are.
    """
    stride = 1 + times
    while stride > 1 and (stride % 2 == 0 or stride % 3 == 0):
        stride += 1
    return stride
