"""Unscaling of gradients around a backward, and steps that are skipped after an overflow.

As in apex's `amp.scale_loss`, each backward unscales its own gradients, so the scale may change in between:
earlier gradients are stashed during the backward and added afterwards. With `delay` gradients stay scaled,
and the next backward without `delay` unscales their sum.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ampcompare.precision.casting import SIXTEEN_BIT_DTYPES, copy_tensors, copy_to_fp32, replace_parameters
from ampcompare.precision.loss_scaler import LossScaler


class OptimizerGradients:
    """The gradients of one optimizer around scaled backwards.

    With masters the optimizer updates fp32 copies in place of the 16-bit parameters. Gradients accumulate in
    the masters, and the parameters get the masters' values after each step. Source:
    `apex/amp/_process_optimizer.py`.

    Attributes:
        has_masters: Whether 16-bit parameters have fp32 masters.
        skip: Above 0 after an overflow since the last step, 0-d fp32 on the device.
        scaled: Whether `.grad` is still scaled.
        masters: The fp32 master of each 16-bit parameter of the model.
    """

    def __init__(
        self, optimizer: Optimizer, device: torch.device | str, *, has_masters: bool = False
    ) -> None:
        self.optimizer = optimizer
        self.has_masters = has_masters
        self.skip = torch.zeros((), dtype=torch.float32, device=device)
        self.scaled = False
        self.masters: dict[Tensor, Tensor] = {}
        # The versions of the model's parameters when the masters last equalled them.
        self._versions: list[int] = []
        self._stashed: list[tuple[Tensor, Tensor]] = []
        self.synchronize()

    def list_parameters(self) -> list[Tensor]:
        """Return the optimizer's parameters, including those of `add_param_group`."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def has_new(self) -> bool:
        """Return whether there are gradients of a backward since `stash`."""
        return any(p.grad is not None for p in (*self.masters, *self.list_parameters()))

    def collect(self) -> list[Tensor]:
        """Return the new gradients of the optimizer's parameters; those of masters are moved to fp32 first.

        Before this call they are in the model, where DDP reduces the sum over a step's micro-batches.
        """
        self._collect()
        return [p.grad for p in self.list_parameters() if p.grad is not None]

    @torch.no_grad()
    def synchronize(self) -> None:
        """Update optimizer and masters after changes to the model between two steps.

        16-bit parameters in added groups get masters. Weights that were edited in the model (a loaded
        checkpoint, DDP's broadcast from rank 0) are copied to the masters, which apex did not do. Weights
        that were swapped out and in again (averaged weights in an evaluation) have not changed, and their
        masters keep their higher precision. Gradients that do not come from a scaled backward are unscaled.
        """
        if not self.has_masters:
            return
        for (half, master), version in zip(self.masters.items(), self._versions, strict=True):
            # sync: after an edit only
            if half._version != version and not torch.equal(half, master.to(half.dtype)):
                master.copy_(half)
        added = [p for p in self.list_parameters() if p.dtype in SIXTEEN_BIT_DTYPES]
        if added:
            masters = [nn.Parameter(p.detach().float(), p.requires_grad) for p in added]
            replace_parameters(self.optimizer, added, masters)
            self.masters |= zip(added, masters, strict=True)
        self._versions = [half._version for half in self.masters]
        if not self.scaled:
            self._collect()

    @torch.no_grad()
    def _collect(self) -> None:
        """Move the model's gradients to the masters, in fp32."""
        gradients = {half: half.grad for half in self.masters if half.grad is not None}
        for half, gradient in zip(gradients, copy_to_fp32(gradients.values()), strict=True):
            master = self.masters[half]
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            half.grad = None

    def stash(self) -> None:
        """Stash unscaled gradients before a backward; scaled ones stay and accumulate."""
        self.synchronize()
        self.scaled = self.scaled and self.has_new()  # zero_grad may have removed them
        if not self.scaled:
            self._stashed = [(p, p.grad) for p in self.list_parameters() if p.grad is not None]
            self.clear()

    def clear(self) -> None:
        """Set the gradients of all parameters and masters to None."""
        for parameter in (*self.masters, *self.list_parameters()):
            parameter.grad = None

    @torch.no_grad()
    def add_stashed(self) -> None:
        """Add the stashed gradients to the current ones."""
        for parameter, old in self._stashed:
            new = parameter.grad
            if new is not None:  # a sparse gradient cannot be added to in place
                old = new + old if old.is_sparse else old.add_(new)
            parameter.grad = old
        self._stashed.clear()
        self.scaled = False

    def step(self, step: Callable[[], Any], *, dynamic: bool) -> Any:
        """Run the optimizer's step, but skip it if a backward overflowed under a dynamic scale."""
        self.synchronize()
        result = step_unless_overflow(self.optimizer, self.skip, step) if dynamic else step()
        self.skip.zero_()
        self.copy_to_model()  # no change after a skipped step
        for master in self.masters.values():  # `model.zero_grad()` would not reach them
            master.grad = None
        return result

    @torch.no_grad()
    def copy_to_model(self) -> None:
        """Copy the masters' values into the model's 16-bit weights."""
        copy_tensors(self.masters, self.masters.values())
        self._versions = [half._version for half in self.masters]

    def release_masters(self) -> None:
        """Put the model's parameters back into the optimizer, with the masters' values, in fp32."""
        self.synchronize()
        replace_parameters(self.optimizer, self.masters.values(), self.masters)
        for half, master in self.masters.items():
            half.data = master.data


@contextmanager
def scaled_backward(
    scaler: LossScaler, optimizers: Sequence[OptimizerGradients], *, delay: bool = False
) -> Iterator[bool]:
    """Return the context of the backward of a scaled loss.

    After it gradients are unscaled, unless delayed, and an overflow marks every optimizer. The caller updates
    the scale.

    Args:
        optimizers: The gradients of all optimizers that the backward serves.
        delay: Whether to leave the gradients scaled.

    Yields:
        Whether the caller must update the scale afterwards.
    """
    if scaler.is_identity and not any(gradients.has_masters for gradients in optimizers):
        yield False
        return
    for gradients in optimizers:
        gradients.stash()
    try:
        yield not delay
    except BaseException:
        for gradients in optimizers:  # restore the gradients from before the backward
            if not gradients.scaled:
                gradients.clear()
                gradients.add_stashed()
        raise
    if not delay:
        unscale(scaler, optimizers)
        return
    for gradients in optimizers:
        gradients.scaled = gradients.has_new()
        if not gradients.scaled:
            gradients.add_stashed()


def unscale(scaler: LossScaler, optimizers: Sequence[OptimizerGradients]) -> None:
    """Unscale the gradients, and mark every optimizer if any of them overflowed."""
    collected = [g for gradients in optimizers for g in gradients.collect()]
    distinct = {id(g): g for g in collected}  # optimizers may share parameters
    scaler.unscale_(list(distinct.values()))
    for gradients in optimizers:
        gradients.add_stashed()
        torch.maximum(gradients.skip, scaler.found_inf, out=gradients.skip)


def step_unless_overflow(optimizer: Optimizer, found_inf: Tensor, step: Callable[[], Any]) -> Any:
    """Call an optimizer's step, or skip it if there was an overflow.

    A skipped step is marked as called. Otherwise learning-rate schedulers would warn.

    Args:
        optimizer: The optimizer. If it is not fused, the call waits for the device.
        found_inf: Above 0 after an overflow, 0-d on the device.
        step: The optimizer's `step`.

    Returns:
        The result of `step`, None if it was skipped.
    """
    create_momentum_buffers(optimizer)
    if getattr(optimizer, "_step_supports_amp_scaling", False):
        # GradScaler's way to pass found_inf to fused kernels, which do nothing if it is set.
        vars(optimizer).update(grad_scale=None, found_inf=found_inf.to(torch.float32))
        try:
            return step()
        finally:
            del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
    if found_inf.item():  # sync: other optimizers step from Python, so the host must know
        optimizer._opt_called = True  # type: ignore[attr-defined]
        return None
    return step()


def create_momentum_buffers(optimizer: Optimizer) -> None:
    """Create zero momentum buffers for fused SGD before a step that may be skipped.

    Fused SGD allocates them uninitialised in its first step, and a skipped step leaves them so (2.14.1).
    With zero buffers the first step computes the same, except with dampening, which the first step ignores.
    With dampening the host therefore decides whether to step. Call it before every step, since parameters may
    be added or unfrozen.
    """
    for group in optimizer.param_groups:
        if not (group.get("fused") and group.get("momentum")):
            continue
        if group["dampening"]:
            optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]
            continue
        for parameter in group["params"]:
            if parameter.grad is not None and optimizer.state[parameter].get("momentum_buffer") is None:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
