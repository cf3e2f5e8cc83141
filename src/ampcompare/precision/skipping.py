"""Skipping an optimizer step after an overflow, without waiting for the device where PyTorch allows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


def decides_on_device(optimizer: Optimizer) -> bool:
    """Whether the optimizer's kernel takes `found_inf` and does nothing when it is set (fused optimizers)."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def step_unless(optimizer: Optimizer, found_inf: Tensor, step: Callable[[], Any] | None = None) -> Any:
    """Step the optimizer (by `step`, if its own was replaced) unless `found_inf`, 0-d on the device, is set.

    For learning-rate schedulers a skipped step is a call: else they would warn that they were stepped first.
    """
    step = step or optimizer.step
    create_momentum_buffers(optimizer)
    if decides_on_device(optimizer):
        # PyTorch's own hand-over to fused kernels, as torch.amp.GradScaler uses it.
        vars(optimizer).update(grad_scale=None, found_inf=found_inf.to(torch.float32))
        try:
            return step()
        finally:
            del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
    if found_inf.item():  # sync: other optimizers step from Python, so the host must know
        mark_stepped(optimizer)
        return None
    return step()


def mark_stepped(optimizer: Optimizer) -> None:
    """Tell learning-rate schedulers that this optimizer had its turn although the step was skipped."""
    optimizer._opt_called = True  # type: ignore[attr-defined]


def create_momentum_buffers(optimizer: Optimizer) -> None:
    """Give fused SGD with momentum its zero buffers before a step that may be skipped.

    It allocates them uninitialised in its first step; if that step overflows and is skipped, the garbage
    stays (seen with torch 2.14.1). From zero buffers the first step computes 0 * momentum + gradient, the
    same; but not with dampening, which the first step leaves out: there the host has to decide. Looks at
    every step, since parameters may be added or unfrozen.
    """
    for group in optimizer.param_groups:
        if not (group.get("fused") and group.get("momentum")):
            continue
        if group["dampening"]:
            optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]
            continue
        for parameter in group["params"]:
            if parameter.requires_grad and optimizer.state[parameter].get("momentum_buffer") is None:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
