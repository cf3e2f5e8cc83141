"""Move every trainable weight by one ulp, to show how much a training depends on its last bits.

Summers and Dinneen 2021, "Nondeterminism and Instability in Neural Network Optimization": a change of one
weight by one bit spreads the results of a training as much as another seed does. The baseline trained again
after this change therefore shows how much fp32 differs from itself.
"""

import hashlib

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampcompare.precision.base import Precision


@torch.no_grad()
def perturb_weights(optimizer: Optimizer, precision: Precision, seed: int) -> None:
    """Move every trainable weight one ulp up or down, in the dtype in which the optimizer updates it.

    Call it in every process, after `Precision.prepare` and before the first step. The signs depend on the
    seed alone, so they are the same in every process and on every device. Frozen parameters do not change,
    and no random number is taken from PyTorch's global generators.

    Args:
        optimizer: The prepared optimizer. Its parameters are the model's, or their fp32 masters.
    """
    # A stream of its own: the initial weights were drawn from a generator with the seed itself.
    digest = hashlib.sha256(f"perturb_weights {seed}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                parameter.copy_(move_one_ulp(parameter.cpu(), generator))
    # A backend with masters copies them into the model when it restores a state.
    precision.load_state_dict(precision.state_dict())


def move_one_ulp(weights: Tensor, generator: torch.Generator) -> Tensor:
    """Return the next greater or the next smaller number of each weight, as random signs decide.

    Zero becomes the smallest subnormal number of the dtype, with either sign. NaN, infinity, and a weight
    that would become infinite stay.

    Args:
        weights: Floating-point or complex numbers on the CPU. Of complex numbers both parts move.
        generator: Draws the signs.
    """
    if weights.is_complex():
        return torch.view_as_complex(move_one_ulp(torch.view_as_real(weights), generator))
    is_up = torch.randint(2, weights.shape, generator=generator, dtype=torch.bool)
    toward = torch.full_like(weights, -torch.inf).masked_fill_(is_up, torch.inf)
    moved = torch.nextafter(weights, toward)
    return torch.where(weights.isfinite() & moved.isfinite(), moved, weights)
