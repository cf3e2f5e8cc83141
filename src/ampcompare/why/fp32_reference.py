"""A module's own error in a step: beside its twin, the same module in fp32, on the numbers that it was given.

In a step errors travel: whatever comes after a bad module looks bad, too. What lies between a call and its
twin is the call's own. A module that calls others gets from these, in the twin, what they really gave: what
is left of it is its own arithmetic.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ampcompare.why.step_capture import Call, Step, each_once, floats

Key = tuple[str, int]  # of a call: its module's name and its number


@dataclass(frozen=True)
class Error:
    """How far tensors are from others: the norm of the difference over that of the others, infinite where
    they are not finite and the others are; and the share of elements that are 0 and should not be.
    """

    size: float
    flushed: float


def compared(found: Sequence[Tensor], truth: Sequence[Tensor], scale: float = 1.0) -> Error:
    """The error of tensors, together, that are `scale` times as large as the others. Values that are not
    finite in these are left out. Waits for the device.
    """
    alike = [pair for pair in zip(found, truth, strict=False) if pair[0].shape == pair[1].shape]
    pairs = [[t.detach().cpu().double().flatten() for t in pair] for pair in alike]
    if not pairs:
        return Error(0.0, 0.0)
    values, wanted = (torch.cat(side) for side in zip(*pairs, strict=True))
    values, wanted = values[wanted.isfinite()], wanted[wanted.isfinite()] * scale
    lost = float(((values == 0) & (wanted != 0)).double().mean()) if len(wanted) else 0.0
    if not bool(values.isfinite().all()):
        return Error(math.inf, lost)
    error, size = float((values - wanted).norm()), float(wanted.norm())
    return Error(error / size if size else float(error > 0), lost)


@dataclass(frozen=True)
class Twins:
    """By call the own errors of a step, by what they are of; by weight the gradients that the twins have,
    added up over the calls, times the loss scale.
    """

    errors: dict[Key, dict[str, Error]]
    gradients: dict[str, Tensor]


def beside_twins(step: Step, model: nn.Module) -> Twins:
    """Run the twin of every call; `model` is the network in fp32 with the weights that the step was taken
    with. None is known of a module that draws random numbers.
    """
    modules, found = dict(model.named_modules()), Twins({}, {})
    for key, call in step.calls.items():
        errors = found.errors[key] = {}
        if (module := modules.get(call.name)) is None:
            continue
        outputs, given = _twin(call, module, modules)
        again, _ = _twin(call, module, modules)
        if any(not torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(outputs, again, strict=True)):
            continue
        errors["output"] = compared(floats(call.output), outputs)
        places = [i for i in call.output_gradients if i < len(outputs) and outputs[i].requires_grad]
        inputs = [i for i in call.given_gradients if i < len(given)]
        weights = {n: p for n, p in module.named_parameters(recurse=False) if p.requires_grad}
        if call.inner or not places or not (inputs or weights):
            continue
        gradients = torch.autograd.grad(
            [outputs[i] for i in places],
            [*(given[i] for i in inputs), *weights.values()],
            [call.output_gradients[i].to(outputs[i]) for i in places],
            allow_unused=True,
        )
        pairs = zip((call.given_gradients[i] for i in inputs), gradients, strict=False)
        if known := [(ours, theirs) for ours, theirs in pairs if theirs is not None]:
            errors["gradient"] = compared(*map(list, zip(*known, strict=True)))  # type: ignore[arg-type]
        for name, gradient in zip(weights, gradients[len(inputs) :], strict=True):
            if gradient is not None:
                whole = f"{call.name}.{name}".removeprefix(".")
                found.gradients[whole] = found.gradients.get(whole, 0) + gradient
    return found


def _twin(call: Call, module: nn.Module, modules: dict[str, nn.Module]) -> tuple[list[Tensor], list[Tensor]]:
    """What the module gives in fp32 for what the call was given, and what it is given for that."""
    leaves = each_once(call.given, lambda x: x.float().requires_grad_() if x.is_floating_point() else x)
    args, kwargs = each_once(leaves, lambda x: x.clone())  # which may be changed in place
    given = iter(call.inner)
    hooks = [
        modules[name].register_forward_hook(lambda *_: each_once(next(given).output, _in_fp32))
        for name in dict.fromkeys(inner.name for inner in call.inner)
        if name in modules
    ]
    try:
        with torch.enable_grad():
            return floats(module(*args, **kwargs)), floats(leaves)
    finally:
        for hook in hooks:
            hook.remove()


def _in_fp32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor
