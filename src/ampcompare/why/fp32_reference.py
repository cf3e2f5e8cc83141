"""Measure a module's own error in a step against its fp32 reference: the same module in fp32, same inputs.

Errors propagate through a step: every module behind a bad one has a bad output, too. The difference between a
call and its fp32 reference is the error of this call alone. If the module calls other modules, they return
their recorded outputs in the reference, so the difference is the error of the module's own arithmetic.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ampcompare.why.step_capture import CapturedStep, ModuleCall, floating_tensors, map_tensors

CallKey = tuple[str, int]  # name of the module, number of the call


@dataclass(frozen=True)
class RelativeError:
    """The error of tensors relative to their reference.

    Attributes:
        size: Norm of the difference divided by the norm of the reference. Infinite where the tensors are not
            finite and the reference is.
        flushed: Fraction of elements that are 0 and should not be.
    """

    size: float
    flushed: float


def relative_error(
    tensors: Sequence[Tensor], reference: Sequence[Tensor], scale: float = 1.0
) -> RelativeError:
    """Return the error of several tensors, taken together.

    Elements where the reference is not finite, and tensors of another shape than their reference, do not
    count. Waits for the device.

    Args:
        reference: What they are compared with, in the same order.
        scale: Factor by which the tensors are larger than the reference, such as the loss scale.
    """
    alike = [pair for pair in zip(tensors, reference, strict=False) if pair[0].shape == pair[1].shape]
    if not alike:
        return RelativeError(0.0, 0.0)
    values = torch.cat([flat_in_fp64(tensor) for tensor, _ in alike])
    expected = torch.cat([flat_in_fp64(tensor) for _, tensor in alike])
    counts = expected.isfinite()
    values = values[counts]
    expected = expected[counts] * scale
    flushed = float(((values == 0) & (expected != 0)).double().mean()) if len(expected) else 0.0
    if not bool(values.isfinite().all()):
        return RelativeError(math.inf, flushed)
    error = float((values - expected).norm())
    size = float(expected.norm())
    return RelativeError(error / size if size else float(error > 0), flushed)


def flat_in_fp64(tensor: Tensor) -> Tensor:
    """Return the elements in fp64 on the CPU, in one dimension."""
    return tensor.detach().cpu().double().flatten()  # sync: a diagnostic step, not a training loop


@dataclass(frozen=True)
class OwnErrors:
    """The own errors of all calls of a step, and the gradients of the fp32 references.

    Attributes:
        errors: By call: the errors of `output` and of `gradient` (that of the inputs). Empty for a call
            without a repeatable reference, such as dropout.
        gradients: By parameter: the gradient in fp32, summed over the calls; includes the loss scale.
    """

    errors: dict[CallKey, dict[str, RelativeError]]
    gradients: dict[str, Tensor]


def measure_own_errors(step: CapturedStep, model: nn.Module) -> OwnErrors:
    """Run the fp32 reference of every call, and compare.

    Args:
        model: The network in fp32, with the weights from before the step.
    """
    modules = dict(model.named_modules())
    result = OwnErrors({}, {})
    for key, call in step.calls.items():
        result.errors[key] = {}
        module = modules.get(call.name)
        if module is None:
            continue
        repeated, _ = _run_reference(call, module, modules)
        outputs, inputs = _run_reference(call, module, modules)
        pairs = zip(outputs, repeated, strict=True)
        if any(not torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs):
            continue  # the module draws random numbers
        result.errors[key]["output"] = relative_error(floating_tensors(call.output), outputs)
        _add_gradients(result, call, module, outputs, inputs)
    return result


def _add_gradients(
    result: OwnErrors, call: ModuleCall, module: nn.Module, outputs: list[Tensor], inputs: list[Tensor]
) -> None:
    """Run the backward pass of a reference; add the error of its input gradients, and its weight gradients.

    A call that made other calls has none: their outputs are the recorded ones, which no gradient passes.

    Args:
        result: Where they are added.
        call: The recorded call.
        module: The module in fp32.
        outputs: The floating-point outputs of the reference.
        inputs: Its floating-point inputs.
    """
    output_indices = [i for i in call.output_gradients if i < len(outputs) and outputs[i].requires_grad]
    input_indices = [i for i in call.input_gradients if i < len(inputs)]
    weights = {n: p for n, p in module.named_parameters(recurse=False) if p.requires_grad}
    if call.inner_calls or not output_indices or not (input_indices or weights):
        return
    gradients = torch.autograd.grad(
        [outputs[i] for i in output_indices],
        [*(inputs[i] for i in input_indices), *weights.values()],
        [call.output_gradients[i].to(outputs[i]) for i in output_indices],
        allow_unused=True,
    )
    input_gradients = gradients[: len(input_indices)]
    weight_gradients = gradients[len(input_indices) :]
    measured = [call.input_gradients[i] for i in input_indices]
    known = [(own, fp32) for own, fp32 in zip(measured, input_gradients, strict=True) if fp32 is not None]
    if known:
        error = relative_error([own for own, _ in known], [fp32 for _, fp32 in known])
        result.errors[call.key]["gradient"] = error
    for name, gradient in zip(weights, weight_gradients, strict=True):
        if gradient is not None:
            parameter = f"{call.name}.{name}".removeprefix(".")
            result.gradients[parameter] = result.gradients.get(parameter, 0) + gradient


def _run_reference(
    call: ModuleCall, module: nn.Module, modules: dict[str, nn.Module]
) -> tuple[list[Tensor], list[Tensor]]:
    """Call the module in fp32 with the inputs of a call.

    Returns:
        Its floating-point outputs, and the inputs, which require a gradient.
    """
    _restore_buffers(call, module)
    leaves = map_tensors(call.inputs, lambda x: x.float().requires_grad_() if x.is_floating_point() else x)
    args, kwargs = map_tensors(leaves, lambda x: x.clone())  # the module may change its inputs in place
    inner_calls = iter(call.inner_calls)
    hooks = [
        modules[name].register_forward_hook(lambda *_: map_tensors(next(inner_calls).output, _to_fp32))
        for name in dict.fromkeys(inner.name for inner in call.inner_calls)
        if name in modules
    ]
    try:
        with torch.enable_grad():
            return floating_tensors(module(*args, **kwargs)), floating_tensors(leaves)
    finally:
        for hook in hooks:
            hook.remove()


def _restore_buffers(call: ModuleCall, module: nn.Module) -> None:
    """Give the module the buffers that it had before the call.

    They become new tensors: autograd may have saved the present ones for a backward pass.
    """
    for key, saved in call.buffers.items():
        path, _, name = key.rpartition(".")
        owner = module.get_submodule(path)
        present = owner._buffers.get(name)
        if present is not None and present.shape == saved.shape:
            owner._buffers[name] = saved.to(present).clone()


def _to_fp32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor
