"""Steps under apex's loss scale: what happens to an optimizer's gradients around a scaled backward, and the
step that is skipped after an overflow.

As `amp.scale_loss` defined it: gradients that are there already are set aside, so that each backward unscales
on its own even if the scale moved in between; the new ones are unscaled and added to them. With `delay` they
stay scaled, and the next backward without it unscales the sum once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ampcompare.precision.backends import PrecisionOptions
from ampcompare.precision.base import Precision
from ampcompare.precision.scaler import LossScaler


class Gradients:
    """The gradients of one optimizer: which are set aside, whether `.grad` is scaled, whether to skip."""

    in_place = True  # whether the optimizer's gradients are where the backward leaves them

    def __init__(self, optimizer: Optimizer, device: torch.device | str) -> None:
        self.optimizer = optimizer
        self.skip = torch.zeros((), dtype=torch.float32, device=device)
        self.scaled = False
        self._aside: list[tuple[Tensor, Tensor]] = []

    def parameters(self) -> list[Tensor]:
        """Read anew each time, so that `add_param_group` needs no notice."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def sources(self) -> list[Tensor]:
        """Where a backward leaves gradients."""
        return self.parameters()

    def has_new(self) -> bool:
        """Whether a backward left anything since gradients were set aside."""
        return any(p.grad is not None for p in self.sources())

    def new(self) -> list[Tensor]:
        """What it left, where the optimizer has it."""
        return [p.grad for p in self.parameters() if p.grad is not None]

    def ready(self) -> None:
        """Make optimizer and model agree, where they have not the same weights."""

    def set_aside(self) -> None:
        """Take the true gradients away before a backward; scaled ones stay and are added to."""
        self.scaled = self.scaled and self.has_new()  # not if zero_grad dropped them
        if not self.scaled:
            self._aside = [(p, p.grad) for p in self.parameters() if p.grad is not None]
            self.clear()

    def clear(self) -> None:
        for parameter in self.sources():
            parameter.grad = None

    @torch.no_grad()
    def give_back(self) -> None:
        """Add the gradients that were set aside."""
        for parameter, old in self._aside:
            new = parameter.grad
            if new is not None:  # a sparse one takes no dense one in place
                old = new + old if old.is_sparse else old.add_(new)
            parameter.grad = old
        self._aside.clear()
        self.scaled = False

    def step(self, step: Callable[[], Any], *, dynamic: bool) -> Any:
        """The optimizer's step, skipped if a backward overflowed under a dynamic scale."""
        result = step_unless(self.optimizer, self.skip, step) if dynamic else step()
        self.skip.zero_()
        return result

    def release(self) -> None:
        """Leave the optimizer as it was found."""


@contextmanager
def scaled_backward(
    scaler: LossScaler, optimizers: Sequence[Gradients], *, delay: bool = False
) -> Iterator[bool]:
    """The context of the backward of a scaled loss: afterwards gradients are true, unless delayed, and an
    overflow marks every optimizer. The scale is left to the caller; gives whether it is to move.
    """
    if scaler.does_nothing and all(gradients.in_place for gradients in optimizers):
        yield False
        return
    for gradients in optimizers:
        gradients.set_aside()
    try:
        yield not delay
    except BaseException:
        for gradients in optimizers:  # what it left is dropped, what was there before is back
            if not gradients.scaled:
                gradients.clear()
                gradients.give_back()
        raise
    if delay:
        for gradients in optimizers:
            gradients.scaled = gradients.has_new()
            if not gradients.scaled:
                gradients.give_back()
    else:
        unscale(scaler, optimizers)


def unscale(scaler: LossScaler, optimizers: Sequence[Gradients]) -> None:
    """Make the gradients true, and mark every optimizer where one overflowed."""
    # Once each: optimizers may share parameters.
    scaler.unscale_(list({id(g): g for gradients in optimizers for g in gradients.new()}.values()))
    for gradients in optimizers:
        gradients.give_back()
        torch.maximum(gradients.skip, scaler.found_inf, out=gradients.skip)


class Scaled(Precision):
    """Loss scaling as apex did it. After a `backward` with sync=True gradients are true gradients already;
    the scale that they were made with is in force until `step`.
    """

    input_dtype = torch.float16

    def __init__(self, device: torch.device | None = None, options: PrecisionOptions | None = None) -> None:
        super().__init__(device, options)
        self.scaler = LossScaler(self.options, self.device)
        self.gradients: Gradients
        self._moves = False  # whether the schedule has still to move for the last backward

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        self.gradients = Gradients(optimizer, self.device)
        return model, optimizer

    def scale(self, loss: Tensor) -> Tensor:
        return self.scaler.scaled(loss)

    def backward(self, loss: Tensor, *, sync: bool = True) -> None:
        """With sync=False gradients stay scaled (`delay_unscale`): DDP may then reduce the sum at the end."""
        self._move()  # once for each that made true gradients, where a step has several
        with scaled_backward(self.scaler, [self.gradients], delay=not sync) as moves:
            self.scale(loss).backward()
        self._moves = moves

    def unscale_(self, optimizer: Optimizer) -> None:
        if self.gradients.scaled:  # every backward was with sync=False
            unscale(self.scaler, [self.gradients])
            self._moves = True

    def _move(self) -> None:
        if self._moves:
            self.scaler.update()
        self._moves = False

    def step(self, optimizer: Optimizer) -> None:
        self.unscale_(optimizer)
        self._skipped += self.gradients.skip.to(torch.int64)
        self.gradients.step(optimizer.step, dynamic=self.scaler.dynamic)
        self._move()

    def scale_factor(self) -> Tensor:
        return self.scaler.scale

    def scales_dynamically(self) -> bool:
        return self.scaler.dynamic

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"loss_scaler0": self.scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.scaler.load_state_dict(state["loss_scaler0"])


def step_unless(optimizer: Optimizer, found_inf: Tensor, step: Callable[[], Any]) -> Any:
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
