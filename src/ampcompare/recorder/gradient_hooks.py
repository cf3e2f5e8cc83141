"""Gradients and learning rate of the updates of a loop, read by hooks of the optimizer.

When a hook runs, gradients are complete, reduced over processes and clipped, and `zero_grad` has not been
called, wherever it is in the loop. A closure that `step` is called with computes the gradients later, within
the step, so gradients are then measured when the closure has run. Gradients of an optimizer that runs its
closure several times in a step (LBFGS) are not recorded.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ampcompare import metrics
from ampcompare.errors import UserError
from ampcompare.training.update_probe import UpdateProbe

WRAPPERS = ("module.", "_orig_mod.")  # prefixes of names by DDP and torch.compile


def unwrap_optimizer(optimizer: Any) -> Any:
    """Return the optimizer inside the wrappers of Lightning and accelerate, which keep it in `optimizer`."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer


class LearningRateReader:
    """Reads the learning rate that an update uses, before a scheduler changes it for the next step.

    Args:
        optimizer: The optimizer. Of one without hooks, the rate is read when the step is recorded.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._used: Tensor | float | None = None
        self._hook = _register(optimizer, "register_step_pre_hook", self._before_step)

    def close(self) -> None:
        """Remove the hook."""
        if self._hook is not None:
            self._hook.remove()

    def take(self) -> Tensor | float | None:
        """Return the rate of the last update, or the rate now if the optimizer was not called.

        Returns:
            A number, or a 0-d copy of a tensor, on its device; None where the optimizer has no rate.
        """
        used = self._used
        self._used = None
        return self._read() if used is None else used

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():  # a compiled step must not be compiled again for each rate
            self._used = self._read()

    def _read(self) -> Tensor | float | None:
        groups = self._optimizer.param_groups
        rate = groups[0].get("lr") if groups else None
        if not isinstance(rate, Tensor):
            return rate if isinstance(rate, int | float) else None
        # A scheduler writes the next rate into the same tensor.
        return rate.detach().clone().reshape(()) if rate.numel() == 1 else None


def _register(optimizer: Any, name: str, hook: Callable[..., Any]) -> Any:
    """Register a hook of a step and return its handle, None for an optimizer without hooks."""
    try:
        return getattr(optimizer, name)(hook)
    except AttributeError:  # no torch.optim.Optimizer, or one whose constructor did not call PyTorch's
        return None


class GradientDiagnostics:
    """Measures the gradients of one optimizer in every n-th step, without a wait for the device.

    GradScaler does not call an optimizer that is not fused for a skipped step. Then the next step that calls
    the optimizer is measured.

    Args:
        optimizer: The optimizer inside all wrappers.
        groups: Its parameters by layer group.
        every: The number of steps from one measurement to the next.
        scale: Returns the loss scale of the step, 0-d on the device.
        start: The number of steps before the first.

    Attributes:
        problem: Why no gradients can be measured, for the user; "" if they can.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        groups: Mapping[str, list[Tensor]],
        every: int,
        scale: Callable[[], Tensor],
        start: int = 0,
    ) -> None:
        self._optimizer = optimizer
        self._probe = UpdateProbe(groups, metrics.GRADIENT_NORM_AT_UPDATE)
        self._every = every
        self._scale = scale

        # This step.
        self._due = (start + 1) % every == 0
        self._diagnostics: dict[str, Tensor] = {}
        self._measurements = 0  # in this call of the optimizer

        # All steps so far, for `find_problem`.
        self._has_measured = False
        self._was_due = False
        self._has_single_update = True

        # SAM's step updates the weights twice, the second time through an optimizer of its own.
        inner = next(
            (k for k, v in getattr(optimizer, "__dict__", {}).items() if isinstance(v, Optimizer)), ""
        )
        hooks = []
        if not inner:
            hooks.append(_register(optimizer, "register_step_pre_hook", self._before_step))
            hooks.append(_register(optimizer, "register_step_post_hook", self._after_step))
        self._hooks = [hook for hook in hooks if hook is not None]
        self.problem = ""
        if not self._hooks:
            reason = "has no hooks of torch.optim.Optimizer"
            if inner:
                reason = f"makes its updates with the optimizer in its attribute {inner}"
            name = type(optimizer).__name__
            self.problem = (
                f"diagnostics: no gradients are measured: {name} {reason}; pass the optimizer inside it"
            )

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def take(self, step: int) -> dict[str, Tensor]:
        """Return the diagnostics of a finished step by metric, empty if it was not measured."""
        diagnostics = self._diagnostics
        self._diagnostics = {}
        self._was_due |= self._due
        self._has_measured |= bool(diagnostics)
        self._due = (self._due and not diagnostics) or (step + 1) % self._every == 0
        return diagnostics

    def find_problem(self) -> str:
        """Return at the end of a loop why no gradients were measured, "" if there is nothing to say."""
        name = type(self._optimizer).__name__
        if not self._has_single_update:
            return f"diagnostics: no gradients are measured: {name} does not run its closure once per step"
        if self.problem or self._has_measured or not self._was_due:
            return ""
        return (
            f"diagnostics: no gradients are measured: {name}.step() was not called, or no parameter had a "
            ".grad then; pass the optimizer whose step() makes the update"
        )

    @torch.no_grad()
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        self._measurements = 0
        if not self._due:
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            self._measure(optimizer)
            return None

        def closure_then_measurement(*inputs: Any, **named: Any) -> Any:
            result = closure(*inputs, **named)
            with torch.no_grad():
                self._measure(optimizer)
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": closure_then_measurement}
        return (args[0], closure_then_measurement, *args[2:]), kwargs

    def _measure(self, optimizer: Optimizer) -> None:
        self._measurements += 1
        # A fused optimizer gets scaled gradients, with their scale and whether to skip the step.
        grad_scale = getattr(optimizer, "grad_scale", None)
        self._diagnostics = self._probe.before_update(self._scale(), grad_scale=grad_scale)

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._due and self._measurements != 1:
            self._has_single_update = False
            self._diagnostics = {}
        elif self._diagnostics:
            self._diagnostics |= self._probe.after_update(getattr(optimizer, "found_inf", None))


def group_parameters(optimizer: Optimizer, model: nn.Module | None) -> Mapping[str, list[Tensor]]:
    """Return the optimizer's parameters by layer group.

    A group is a top-level module of the model. Without a model, groups follow the parameter names that the
    optimizer has, or its own parameter groups.

    Raises:
        UserError: Parameters are sharded over several processes.
    """
    names = {id(p): name for name, p in model.named_parameters()} if model is not None else {}
    groups: dict[str, list[Tensor]] = {}
    for number, group in enumerate(optimizer.param_groups):
        param_names = group.get("param_names") or [""] * len(group["params"])
        for name, parameter in zip(param_names, group["params"], strict=True):
            if hasattr(parameter, "device_mesh"):
                raise UserError(
                    "diagnostics: the parameters are sharded over several processes, and each process sees "
                    "only its own shard; leave diagnostics out"
                )
            module = _get_top_module(names.get(id(parameter), name))
            groups.setdefault(module or f"group{number}", []).append(parameter)
    return groups


def _get_top_module(name: str) -> str:
    while name.startswith(WRAPPERS):
        name = name.partition(".")[2]
    return name.partition(".")[0]
