"""Where inf or nan begins in a step: in weights, in the forward pass, in the loss, in the backward pass."""

import math
from collections.abc import Collection, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ampcompare.data.batch import Batch
from ampcompare.precision.casting import name_dtype
from ampcompare.system.device import autocast_name
from ampcompare.training.trainer import Trainer
from ampcompare.why.capture import (
    CallKey,
    TakenStep,
    are_finite,
    is_numeric,
    map_tensors,
    numeric_tensors,
)
from ampcompare.why.errors import relative_error

NETWORK, LOSS = "(network)", "the loss"  # PyTorch calls the network ""


@dataclass(frozen=True)
class LossOverflow:
    """A loss that overflows on outputs that are finite.

    Attributes:
        operation: The PyTorch function in the loss that makes inf or nan of finite numbers.
        dtype: The dtype in which it computes.
        is_backward: Whether its gradients overflow, and not its values.
        float_helps: Whether it is gone with the loss of `outputs.float()`.
    """

    operation: str
    dtype: str
    is_backward: bool
    float_helps: bool


def find_loss_overflow(trainer: Trainer, step: TakenStep, batches: Sequence[Batch]) -> LossOverflow | None:
    """Return which operation of the loss overflows; None where the outputs or the loss scale are the cause.

    Args:
        trainer: A trainer of the backend of the step.
    """
    _, weights, _ = trainer._weigh(batches)
    for number, ((_, targets), weight) in enumerate(zip(batches, weights, strict=True)):
        call = step.calls.get(("", number))
        outputs = [] if call is None else numeric_tensors(call.output)
        if call is None or not outputs or not are_finite(outputs):
            continue
        watch = _compute_loss(trainer, call.output, targets, step.scale * weight, in_fp32=False)
        if watch.is_finite:
            continue
        in_fp32 = _compute_loss(trainer, call.output, targets, step.scale * weight, in_fp32=True)
        # What is infinite in fp32, too, is intended, such as a mask.
        forward = [each for each in watch.forward if each not in in_fp32.forward]
        found = forward[:1] or watch.backward[:1]
        if found and (forward or in_fp32.is_finite):
            ((index, operation),) = found
            # The gradients in fp32 may still overflow: the loss scaler lowers its scale then.
            float_helps = in_fp32.loss_is_finite if forward else in_fp32.is_finite
            return LossOverflow(operation, watch.dtypes[index], not forward, float_helps)
    return None


def _compute_loss(
    trainer: Trainer, output: Any, targets: Any, scale: float | torch.Tensor, *, in_fp32: bool
) -> "_LossWatch":
    """Compute the loss of recorded outputs and its gradients, and return what was watched.

    Args:
        scale: The loss scale, times the weight of the micro-batch.
    """
    watch = _LossWatch()
    leaves = map_tensors(output, lambda x: x.detach().requires_grad_(is_numeric(x)))
    in_dtype = map_tensors(leaves, lambda x: x.float() if in_fp32 and x.is_floating_point() else x)
    outputs = map_tensors(in_dtype, torch.clone)  # the loss may change them in place
    precision = trainer.precision
    off = torch.autocast(autocast_name(precision.device), enabled=False) if in_fp32 else nullcontext()
    with precision.training_context(), precision.forward_context(), off, torch.enable_grad(), watch:
        loss = trainer.task.loss(outputs, targets)
    gradients = torch.autograd.grad(loss.float() * scale, numeric_tensors(leaves), allow_unused=True)
    watch.loss_is_finite = are_finite(loss)
    watch.is_finite = watch.loss_is_finite and are_finite(gradients)
    return watch


class _LossWatch(TorchFunctionMode):
    """Notes which functions make inf or nan of finite numbers, in the forward and in the backward.

    Attributes:
        forward: Number and name of the functions with bad values, in their order.
        backward: The same of those whose gradients are bad, in the order of the backward pass.
        dtypes: The dtype of the inputs of each function, by its number.
        loss_is_finite: Whether the loss is finite.
        is_finite: Whether its gradients are finite as well.
    """

    def __init__(self) -> None:
        super().__init__()
        self.forward: list[tuple[int, str]] = []
        self.backward: list[tuple[int, str]] = []
        self.dtypes: list[str] = []
        self.loss_is_finite = True
        self.is_finite = True
        self._last: tuple[int, str] | None = None  # the function whose gradient was computed last

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = numeric_tensors((args, kwargs))
        was_finite = are_finite(inputs)  # before a function that works in place
        result = func(*args, **(kwargs or {}))
        outputs = numeric_tensors(result)
        if not inputs or not outputs:
            return result
        function = len(self.dtypes), getattr(func, "__name__", "").strip("_")
        self.dtypes.append(name_dtype(inputs[0].dtype))
        if was_finite and not are_finite(outputs):
            self.forward.append(function)
        for output in outputs:
            if output.requires_grad and not output.is_leaf:
                output.register_hook(lambda gradient: self._see_gradient(gradient, function))
        return result

    def _see_gradient(self, gradient: torch.Tensor, function: tuple[int, str]) -> None:
        """Note the function whose backward computed a bad gradient, that of another function's output."""
        if not are_finite(gradient):
            self.backward.append(self._last or function)
        self._last = function


def first_output(step: TakenStep, reference: TakenStep, computing: Collection[str]) -> str | None:
    """Return the first module in the forward pass with an output that is finite in fp32 only.

    Where its inputs are so, too, the module that passed them is returned.

    Args:
        computing: The modules that do more than move values.
    """
    for key, call in step.calls.items():
        if key not in reference.calls or call.name not in computing:
            continue
        error = relative_error(numeric_tensors(call.output), numeric_tensors(reference.calls[key].output))
        if error is None or not math.isinf(error.size):
            continue
        error = relative_error(numeric_tensors(call.inputs), numeric_tensors(reference.calls[key].inputs))
        is_passed = error is not None and math.isinf(error.size)
        return (_parents(step).get(key) if is_passed else call.name) or NETWORK
    return None


def _parents(step: TakenStep) -> dict[CallKey, str]:
    """Return the module that made each call, by call."""
    return {inner.key: call.name for call in step.calls.values() for inner in call.inner_calls}


def first_output_of(step: TakenStep) -> str | None:
    """Return the first module that makes inf or nan of finite inputs, if the loss of the step is not finite.

    Where the loss is finite, infinite values are intended, such as those of an attention mask.
    """
    if math.isfinite(step.loss):
        return None
    for call in step.calls.values():
        if are_finite(numeric_tensors(call.inputs)) and not are_finite(numeric_tensors(call.output)):
            return call.name or NETWORK
    return LOSS


def first_gradient(step: TakenStep, computing: Collection[str]) -> str | None:
    """Return the module in whose backward pass a gradient became infinite or NaN.

    Args:
        computing: The modules that do more than move values, in their forward or backward. Where the sums of
            gradients of another one overflow, what computed these gradients is named.

    Returns:
        LOSS, if the gradients are not finite from the loss on; None, if all are finite.
    """
    parents = _parents(step)
    of_network = [call.output_gradients for call in step.calls.values() if not call.name]
    begins_in_loss = not all(of_network) or not are_finite([[*each.values()] for each in of_network])
    last = LOSS  # what computed the gradients so far
    for call in step.backward:
        if call.inner_calls:
            continue
        if not are_finite([*call.output_gradients.values()]):
            return LOSS if begins_in_loss else parents.get(call.key) or NETWORK
        own = [g for name, g in step.gradients.items() if name.rpartition(".")[0] == call.name]
        if not are_finite([*own, *call.input_gradients.values()]):
            return (call.name or NETWORK) if call.name in computing else last
        if call.name in computing:
            last = call.name or NETWORK
    for name, gradient in step.gradients.items():
        if not are_finite(gradient):
            return name.rpartition(".")[0] or NETWORK
    return None


def is_finite(step: TakenStep) -> bool:
    """Return whether the loss of a step and all its gradients are finite."""
    return math.isfinite(step.loss) and are_finite(step.gradients)


def nonfinite_modules(tensors: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
    """Return the modules that own a tensor with inf or nan.

    Args:
        tensors: Parameters or buffers with their names.
    """
    owners = [name.rpartition(".")[0] or NETWORK for name, tensor in tensors if not are_finite(tensor)]
    return [*dict.fromkeys(owners)]
