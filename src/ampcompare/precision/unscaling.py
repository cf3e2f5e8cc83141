"""What happens to an optimizer's gradients around a scaled backward, and the step that is skipped after an
overflow.

As `amp.scale_loss` defined it each backward unscales on its own, even if the scale moved in between: the
gradients from before are set aside and added to the new ones. With `delay` these stay scaled, and the next
backward without it unscales the sum once.
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
    """The gradients of one optimizer: which are set aside, whether `.grad` is scaled, whether to skip.

    With masters the optimizer updates fp32 ones in the place of half parameters, whose gradients add up in
    them and which get their values after each step. Source: `apex/amp/_process_optimizer.py`.
    """

    def __init__(
        self, optimizer: Optimizer, device: torch.device | str, *, has_masters: bool = False
    ) -> None:
        self.optimizer, self.has_masters = optimizer, has_masters
        self.skip = torch.zeros((), dtype=torch.float32, device=device)
        self.scaled = False
        self._stashed: list[tuple[Tensor, Tensor]] = []
        self.masters: dict[Tensor, Tensor] = {}  # by the model's half parameter
        self._versions: list[int] = []  # of the model's parameters, when they and their masters last agreed
        self.synchronize()

    def list_parameters(self) -> list[Tensor]:
        """The optimizer's; read anew each time, so that `add_param_group` needs no notice."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def has_new(self) -> bool:
        """Whether a backward left anything since gradients were set aside."""
        return any(p.grad is not None for p in (*self.masters, *self.list_parameters()))

    def collect(self) -> list[Tensor]:
        """What it left, where the optimizer has it: masters' in fp32, before anything is unscaled.

        Until then they stay in the model, where DDP reduces the sum of a step's micro-batches.
        """
        self._collect()
        return [p.grad for p in self.list_parameters() if p.grad is not None]

    @torch.no_grad()
    def synchronize(self) -> None:
        """Make optimizer and masters agree with the model, whatever happened between two steps.

        Half parameters in groups added since get masters. Weights that were edited in the model (a checkpoint
        loaded, DDP's broadcast from rank 0) are taken over, which the original missed; those that came back
        as they were (averaged ones swapped in and out for an evaluation) keep masters that are finer than
        they are. Gradients that no scaled backward left are true ones.
        """
        if not self.has_masters:
            return
        for (half, master), version in zip(self.masters.items(), self._versions, strict=True):
            # sync: after an edit only
            if half._version != version and not torch.equal(half, master.to(half.dtype)):
                master.copy_(half)
        if added := [p for p in self.list_parameters() if p.dtype in SIXTEEN_BIT_DTYPES]:
            masters = [nn.Parameter(p.detach().float(), p.requires_grad) for p in added]
            replace_parameters(self.optimizer, added, masters)
            self.masters |= zip(added, masters, strict=True)
        self._versions = [half._version for half in self.masters]
        if not self.scaled:
            self._collect()

    @torch.no_grad()
    def _collect(self) -> None:
        """Move the model's gradients to the masters, in fp32."""
        given = {half: half.grad for half in self.masters if half.grad is not None}
        for half, gradient in zip(given, copy_to_fp32(given.values()), strict=True):
            master = self.masters[half]
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            half.grad = None

    def stash(self) -> None:
        """Take the true gradients away before a backward; scaled ones stay and are added to."""
        self.synchronize()
        self.scaled = self.scaled and self.has_new()  # not if zero_grad dropped them
        if not self.scaled:
            self._stashed = [(p, p.grad) for p in self.list_parameters() if p.grad is not None]
            self.clear()

    def clear(self) -> None:
        for parameter in (*self.masters, *self.list_parameters()):
            parameter.grad = None

    @torch.no_grad()
    def add_stashed(self) -> None:
        """Add the gradients that were set aside."""
        for parameter, old in self._stashed:
            new = parameter.grad
            if new is not None:  # a sparse one takes no dense one in place
                old = new + old if old.is_sparse else old.add_(new)
            parameter.grad = old
        self._stashed.clear()
        self.scaled = False

    def step(self, step: Callable[[], Any], *, dynamic: bool) -> Any:
        """The optimizer's step, skipped if a backward overflowed under a dynamic scale."""
        self.synchronize()
        result = step_unless_overflow(self.optimizer, self.skip, step) if dynamic else step()
        self.skip.zero_()
        self.copy_to_model()  # after a skipped step it changes nothing
        for master in self.masters.values():  # `model.zero_grad()` would not reach them
            master.grad = None
        return result

    @torch.no_grad()
    def copy_to_model(self) -> None:
        """The masters' values into the model's half weights."""
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
    """The context of the backward of a scaled loss: afterwards gradients are true, unless delayed, and an
    overflow marks every optimizer. The scale is left to the caller; gives whether it is to move.
    """
    if scaler.is_identity and not any(gradients.has_masters for gradients in optimizers):
        yield False
        return
    for gradients in optimizers:
        gradients.stash()
    try:
        yield not delay
    except BaseException:
        for gradients in optimizers:  # what it left is dropped, what was there before is back
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
    """Make the gradients true, and mark every optimizer where one overflowed."""
    # Once each: optimizers may share parameters.
    scaler.unscale_(list({id(g): g for gradients in optimizers for g in gradients.collect()}.values()))
    for gradients in optimizers:
        gradients.add_stashed()
        torch.maximum(gradients.skip, scaler.found_inf, out=gradients.skip)


def step_unless_overflow(optimizer: Optimizer, found_inf: Tensor, step: Callable[[], Any]) -> Any:
    """The optimizer's `step` unless `found_inf`, 0-d on the device, is set.

    For learning-rate schedulers a skipped step is a call: else they would warn that they were stepped first.
    """
    create_momentum_buffers(optimizer)
    if getattr(optimizer, "_step_supports_amp_scaling", False):
        # PyTorch's own hand-over to fused kernels, which do nothing when it is set, as GradScaler uses it.
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
    """Give fused SGD with momentum its zero buffers before a step that may be skipped.

    It allocates them uninitialised in its first step, and a skip leaves the garbage (seen with torch 2.14.1).
    From zero buffers that step computes the same, but not with dampening, which it leaves out: there the host
    has to decide. At every step, since parameters may be added or unfrozen.
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
