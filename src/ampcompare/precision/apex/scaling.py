"""What happens to an optimizer's gradients around one scaled backward, as `amp.scale_loss` defined it.

On entry the gradients that are there already are set aside, so that each micro-batch unscales on its own even
if the scale moved in between; on exit the new ones are unscaled and added to them. With `delay` they stay
scaled and the next backward without delay unscales the sum once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampcompare.precision.apex.scaler import LossScaler


class ScaledGradients:
    """The gradients of one optimizer: which are set aside, whether `.grad` is scaled, whether to skip."""

    in_place = True  # whether the optimizer's gradients are where the backward leaves them

    def __init__(self, optimizer: Optimizer, device: torch.device | str) -> None:
        self.optimizer = optimizer
        self.skip = torch.zeros((), dtype=torch.float32, device=device)
        self._aside: dict[int, tuple[Tensor, Tensor]] = {}
        self.scaled = False

    def parameters(self) -> Iterable[Tensor]:
        """Read anew each time, so that `add_param_group` needs no notice."""
        return (p for group in self.optimizer.param_groups for p in group["params"])

    def set_aside(self) -> None:
        """Take the true gradients away before a backward; scaled ones stay and are added to."""
        if self.scaled and self.has_new():
            return
        self.scaled = False  # or the scaled ones were dropped, by zero_grad
        self._aside.clear()
        for parameter in self.parameters():
            if parameter.grad is not None:
                self._aside[id(parameter)] = (parameter, parameter.grad)
                parameter.grad = None

    def has_new(self) -> bool:
        """Whether a backward left anything since gradients were set aside."""
        return any(p.grad is not None for p in self.parameters())

    def new_gradients(self) -> list[Tensor]:
        return [p.grad for p in self.parameters() if p.grad is not None]

    @torch.no_grad()
    def give_back(self) -> None:
        """Add the gradients that were set aside, into their own memory."""
        old, new = [], []
        for parameter, gradient in self._aside.values():
            if parameter.grad is not None:
                if gradient.is_sparse:
                    gradient = parameter.grad + gradient  # in this order also for a dense and a sparse one
                elif parameter.grad.is_sparse:
                    gradient = gradient + parameter.grad
                else:
                    old.append(gradient)
                    new.append(parameter.grad)
            parameter.grad = gradient
        if old:
            torch._foreach_add_(old, new)
        self._aside.clear()
        self.scaled = False

    def leave_scaled(self) -> None:
        """Without new gradients there is nothing that waits: what was set aside comes back."""
        if self.has_new():
            self.scaled = True
        else:
            self.give_back()

    def abandon(self) -> None:
        """After an error in the backward: drop what it left and restore what was there before."""
        if not self.scaled:
            for parameter in self.parameters():
                parameter.grad = None
            self.give_back()


def scaled_backward(
    scaler: LossScaler,
    optimizers: Sequence[ScaledGradients],
    backward: Callable[[], None],
    *,
    delay: bool = False,
) -> None:
    """One backward of a scaled loss into every optimizer's gradients; the scaler moves unless delayed."""
    if scaler.does_nothing and all(gradients.in_place for gradients in optimizers):
        backward()
        return
    for gradients in optimizers:
        gradients.set_aside()
    try:
        backward()
    except BaseException:
        for gradients in optimizers:
            gradients.abandon()
        raise
    finish_backward(scaler, optimizers, delay=delay)


def finish_backward(
    scaler: LossScaler, optimizers: Sequence[ScaledGradients], *, delay: bool, move: bool = True
) -> None:
    """The exit of `scale_loss`: gradients become true, an overflow marks every optimizer, the scale moves.

    With move=False the scale waits for the next call, which still sees this one's overflow.
    """
    if delay:
        for gradients in optimizers:
            gradients.leave_scaled()
        return
    # Once each: optimizers may share parameters.
    scaler.unscale_(list({id(g): g for gradients in optimizers for g in gradients.new_gradients()}.values()))
    for gradients in optimizers:
        gradients.give_back()
    if scaler.dynamic:
        for gradients in optimizers:
            torch.maximum(gradients.skip, scaler.found_inf, out=gradients.skip)
    if move:
        scaler.update()
        scaler.found_inf.zero_()
