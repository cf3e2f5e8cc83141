"""A look at the gradients of every so many steps, unscaled, where the optimizer takes them.

The optimizer's own hook is the place: there they are complete, reduced over processes and clipped, and no
`zero_grad` has come yet, wherever in the loop it stands.
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

WRAPPERS = ("module.", "_orig_mod.")  # before a name, in DDP and in torch.compile


def unwrap_optimizer(optimizer: Any) -> Any:
    """The optimizer within what Lightning and accelerate wrap around it."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer


class GradientDiagnostics:
    """The looks of one optimizer at its `layer_groups`, each `every` steps behind step `start`, from the one
    that is due on until there is one.

    A step that GradScaler skips before it asks the optimizer (one that is not fused) has none. `scale` gives
    the loss scale of the step, 0-d on the device. Nothing here waits for the device.
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
        """No more looks."""
        for hook in self._hooks:
            hook.remove()

    def take(self, step: int) -> dict[str, Tensor]:
        """What was seen in this step, which is over; empty if nothing was."""
        found, self._diagnostics = self._diagnostics, {}
        self._due = (self._due and not found) or (step + 1) % self._every == 0
        return found

    @torch.no_grad()
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._due:
            return
        # A fused optimizer is given scaled gradients, with their scale and whether to skip.
        by, found_inf = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        found = {name: [p.grad for p in group if p.grad is not None] for name, group in self._groups.items()}
        gradients = {name: group for name, group in found.items() if group}
        if not gradients:
            return
        if by is not None:
            gradients = {k: [g.float() / by.to(g.device) for g in group] for k, group in gradients.items()}
        norm = gradient_norm([g for group in gradients.values() for g in group])
        self._diagnostics = {metrics.GRADIENT_NORM: norm} | measure_gradients(gradients, self._scale())
        self._sampled_weights = {name: sample_weights(group) for name, group in self._groups.items()}
        self._skips = torch.zeros_like(norm) if found_inf is None else found_inf

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._sampled_weights:
            self._diagnostics |= lost_updates(self._sampled_weights, self._skips > 0)
        self._sampled_weights = {}


def group_parameters(optimizer: Optimizer, model: nn.Module | None) -> Mapping[str, list[Tensor]]:
    """The optimizer's parameters by the module at the model's top that has them. Without a model by the names
    that the optimizer was given, or else by its own groups.

    Raises UserError for parameters that lie in parts on several processes.
    """
    names = {id(p): name for name, p in model.named_parameters()} if model is not None else {}
    groups: dict[str, list[Tensor]] = {}
    for number, group in enumerate(optimizer.param_groups):
        given = group.get("param_names") or [""] * len(group["params"])
        for name, parameter in zip(given, group["params"], strict=True):
            if hasattr(parameter, "device_mesh"):
                why = "the parameters lie in parts on several processes"
                raise UserError(f"diagnostics: {why}, and each sees its own alone; leave diagnostics out")
            groups.setdefault(_get_top_module(names.get(id(parameter), name)) or f"group{number}", []).append(
                parameter
            )
    return groups


def _get_top_module(name: str) -> str:
    while wrapped := next((word for word in WRAPPERS if name.startswith(word)), ""):
        name = name.removeprefix(wrapped)
    return name.partition(".")[0]
