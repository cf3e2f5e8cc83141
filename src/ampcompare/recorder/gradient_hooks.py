"""Diagnostics of a loop's gradients, measured by a hook of the optimizer.

When the hook runs, gradients are complete, reduced over processes and clipped, and `zero_grad` has not been
called, wherever it is in the loop.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ampcompare import metrics
from ampcompare.errors import UserError
from ampcompare.training.diagnostics.gradients import gradient_norm, measure_gradients
from ampcompare.training.diagnostics.updates import WeightSample, lost_updates, sample_weights

WRAPPERS = ("module.", "_orig_mod.")  # prefixes of names by DDP and torch.compile


def unwrap_optimizer(optimizer: Any) -> Any:
    """Return the optimizer inside the wrappers of Lightning and accelerate."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer


class GradientDiagnostics:
    """Measures the gradients of one optimizer in every n-th step, without a wait for the device.

    GradScaler does not call an optimizer that is not fused for a skipped step. Then the next step that calls
    the optimizer is measured.

    Args:
        optimizer: The optimizer.
        groups: Its parameters by layer group.
        every: The number of steps from one measurement to the next.
        scale: Returns the loss scale of the step, 0-d on the device.
        start: The number of steps before the first.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        groups: Mapping[str, list[Tensor]],
        every: int,
        scale: Callable[[], Tensor],
        start: int = 0,
    ) -> None:
        self._groups = groups
        self._every, self._scale = every, scale
        self._diagnostics: dict[str, Tensor] = {}
        self._due = (start + 1) % every == 0
        self._sampled_weights: dict[str, WeightSample] = {}
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def take(self, step: int) -> dict[str, Tensor]:
        """Return the diagnostics of a finished step by metric, empty if it was not measured."""
        diagnostics, self._diagnostics = self._diagnostics, {}
        self._due = (self._due and not diagnostics) or (step + 1) % self._every == 0
        return diagnostics

    @torch.no_grad()
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._due:
            return
        # A fused optimizer gets scaled gradients, with their scale and whether to skip the step.
        grad_scale, found_inf = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        by_group = {
            name: [p.grad for p in group if p.grad is not None] for name, group in self._groups.items()
        }
        gradients = {name: group for name, group in by_group.items() if group}
        if not gradients:
            return
        if grad_scale is not None:
            gradients = {
                name: [g.float() / grad_scale.to(g.device) for g in group]
                for name, group in gradients.items()
            }
        norm = gradient_norm([g for group in gradients.values() for g in group])
        self._diagnostics = {metrics.GRADIENT_NORM: norm} | measure_gradients(gradients, self._scale())
        self._sampled_weights = {name: sample_weights(group) for name, group in self._groups.items()}
        self._skips = torch.zeros_like(norm) if found_inf is None else found_inf

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._sampled_weights:
            self._diagnostics |= lost_updates(self._sampled_weights, self._skips > 0)
        self._sampled_weights = {}


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
                why = "the parameters are sharded over several processes"
                raise UserError(
                    f"diagnostics: {why}, and each process sees only its own shard; leave diagnostics out"
                )
            groups.setdefault(_get_top_module(names.get(id(parameter), name)) or f"group{number}", []).append(
                parameter
            )
    return groups


def _get_top_module(name: str) -> str:
    while prefix := next((prefix for prefix in WRAPPERS if name.startswith(prefix)), ""):
        name = name.removeprefix(prefix)
    return name.partition(".")[0]
