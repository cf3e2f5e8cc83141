"""Skipping an optimizer step after an overflow, without waiting for the device where PyTorch allows it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer


def decides_on_device(optimizer: Optimizer) -> bool:
    """Whether the optimizer's kernel takes `found_inf` and does nothing when it is set (fused optimizers)."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def step_unless(optimizer: Optimizer, found_inf: Tensor) -> None:
    """Step the optimizer unless `found_inf` (0-d, on the device) is non-zero.

    A skipped step counts as a call for learning-rate schedulers, which otherwise warn that they were stepped first.
    """
    if decides_on_device(optimizer):
        # PyTorch's own hand-over to fused kernels, as torch.amp.GradScaler uses it.
        vars(optimizer).update(grad_scale=None, found_inf=found_inf.to(torch.float32))
        try:
            optimizer.step()
        finally:
            del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
    elif found_inf.item():  # sync: other optimizers step from Python, so the host must know
        mark_stepped(optimizer)
    else:
        optimizer.step()


def mark_stepped(optimizer: Optimizer) -> None:
    """Tell learning-rate schedulers that this optimizer had its turn although the step was skipped."""
    optimizer._opt_called = True  # type: ignore[attr-defined]


def create_momentum_buffers(optimizer: Optimizer) -> None:
    """Give SGD with momentum its zero buffers before the first step.

    Fused SGD allocates them uninitialised in its first step; if that step overflows and is skipped, the garbage
    stays (seen with torch 2.14.1). From zero buffers the first step computes 0 * momentum + gradient, the same.
    """
    for group in optimizer.param_groups:
        if not (group.get("fused") and group.get("momentum")):
            continue
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            if parameter.requires_grad and state.get("momentum_buffer") is None:
                state["momentum_buffer"] = torch.zeros_like(parameter)
