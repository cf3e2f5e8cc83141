"""What fp16 does to gradients: how many would be flushed to zero at the loss scale, and without one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# The smallest fp16 number is 2**-24; half of it and below rounds to zero (round to nearest, ties to even).
FLUSHED_TO_ZERO = 2.0**-25


def gradient_norm(gradients: Sequence[Tensor]) -> Tensor:
    """L2 norm over all gradients, 0-d fp32 on the device."""
    return torch.nn.utils.get_total_norm([g.float() if g.dtype != torch.float32 else g for g in gradients])


@torch.no_grad()
def underflow_fractions(gradients: Sequence[Tensor], scale: Tensor) -> tuple[Tensor, Tensor]:
    """Share of non-zero elements of the true gradients that fp16 would flush to zero.

    Returns two 0-d tensors on the device: at the loss scale `scale`, and at scale 1. No host sync.
    """
    nonzero = torch.zeros((), dtype=torch.float64, device=scale.device)
    scaled, unscaled = nonzero.clone(), nonzero.clone()
    for gradient in gradients:
        size = gradient.detach().float().abs()
        present = size > 0
        nonzero += present.sum()
        unscaled += (present & (size <= FLUSHED_TO_ZERO)).sum()
        scaled += (present & (size * scale <= FLUSHED_TO_ZERO)).sum()
    total = nonzero.clamp(min=1)
    return scaled / total, unscaled / total
