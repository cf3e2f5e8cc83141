"""What `amp.initialize` makes of an optimizer (`step` skips after an overflow and serves masters), and back.

Source: `apex/amp/{_process_optimizer,handle}.py`.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from ampcompare.precision.apex.casts import disable_casts
from ampcompare.precision.apex.master import MasterGradients
from ampcompare.precision.apex.scaling import ScaledGradients
from ampcompare.precision.apex.state import STATE
from ampcompare.precision.skipping import step_unless


class _OverflowError(Exception):
    """The backward inside a closure overflowed; carries the closure's loss."""


class AmpOptimizer:
    """An optimizer's `step` and `zero_grad` under amp.

    Lives on the optimizer and nowhere else, so that it dies with it. A copied or unpickled optimizer is a
    plain one, since PyTorch copies no more than state and groups.
    """

    def __init__(self, optimizer: Optimizer, gradients: ScaledGradients, *, dynamic: bool) -> None:
        self.optimizer, self.gradients, self.dynamic = optimizer, gradients, dynamic
        self.masters = gradients if isinstance(gradients, MasterGradients) else None
        self.active = True
        self.own = {name: vars(optimizer)[name] for name in ("step", "zero_grad") if name in vars(optimizer)}
        self.before_step, self.before_zero_grad = optimizer.step, optimizer.zero_grad
        patch = self

        def step(self: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
            return patch.step(closure)

        def zero_grad(self: Optimizer, *args: Any, **kwargs: Any) -> None:
            patch.zero_grad(*args, **kwargs)

        if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
            step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # a scheduler from before would warn
        # Bound methods: a scheduler that is made later wraps `step` by its descriptor.
        self.patched = {
            "step": types.MethodType(step, optimizer),
            "zero_grad": types.MethodType(zero_grad, optimizer),
        }
        vars(optimizer).update(self.patched, _amp=self)

    @staticmethod
    def of(optimizer: Optimizer) -> AmpOptimizer:
        return vars(optimizer)["_amp"]

    def step(self, closure: Callable[[], Any] | None) -> Any:
        if not self.active:
            return self.before_step() if closure is None else self.before_step(closure)
        if closure is not None:
            result = self._step_with(closure)
        else:
            if self.masters is not None:
                self.masters.ready()
            with disable_casts():  # the arithmetic of an optimizer is its own
                if self.dynamic:
                    result = step_unless(self.optimizer, self.gradients.skip, self.before_step)
                else:
                    result = self.before_step()
        self.gradients.skip.zero_()
        if self.masters is not None:
            self.masters.copy_to_model()
            self.masters.clear_master_gradients()
        STATE.cache.clear()
        return result

    def _step_with(self, closure: Callable[[], Any]) -> Any:
        """A step that runs forward and backward itself. The original stepped even if that one overflowed."""
        # sync: the closure runs inside the step, so that the host must know first
        if self.masters is not None or self.gradients.skip.item():
            raise RuntimeError(
                "Currently, Amp does not support closure use with optimizers that have master weights (O2) "
                "or that are to skip a step after an overflow; call step() without one."
            )

        def checked() -> Any:
            loss = closure()
            if self.gradients.skip.item():  # sync: as above
                raise _OverflowError(loss)
            return loss

        try:
            return self.before_step(checked)
        except _OverflowError as overflow:
            return overflow.args[0]

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        if self.active and self.masters is not None:
            self.masters.clear_model_gradients()
        self.before_zero_grad(*args, **kwargs)

    @staticmethod
    def undo(optimizer: Optimizer) -> None:
        """Give the optimizer back as it was, with the model's own parameters and the state of its masters."""
        patch = AmpOptimizer.of(optimizer)
        patch.active = False  # for a scheduler that wrapped our step meanwhile
        for name, ours in patch.patched.items():
            if vars(optimizer).get(name) is ours:
                delattr(optimizer, name)
                vars(optimizer).update({k: v for k, v in patch.own.items() if k == name})
        if patch.masters is not None:
            patch.masters.release()
        del vars(optimizer)["_amp"]


def is_initialized(optimizer: Optimizer) -> bool:
    return "_amp" in vars(optimizer)
