"""The error that a module itself adds in a step: against the same module in fp32 or fp64, same inputs.

Errors propagate through a step: every module behind a bad one has a bad output, too. The difference between a
call and its replay is the error of this call alone.
"""

from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from ampcompare.system.device import is_out_of_memory, seed_process
from ampcompare.why.capture import (
    CallKey,
    ModuleCall,
    Replay,
    TakenStep,
    are_finite,
    dense,
    numeric_tensors,
    replay_call,
)
from ampcompare.why.errors import RelativeError, real_numbers, relative_error

OUTPUT, PASSED, GRADIENT, WEIGHTS = "output", "passed inputs", "gradient", "weights' gradients"
# Where the gradient of the replays differs by less from that of the step, only one module uses the weight.
SAME_GRADIENT = 1e-3
# Where a replay of the reference differs by more from the reference, the module needs more than its inputs.
SAME_VALUES = 1e-4
SAMPLE = 4096  # of a module's outputs, looked for among its inputs before all are


@dataclass
class OwnErrors:
    """The own errors of all calls of a step, and the gradients of the replays.

    Attributes:
        errors: By call: the errors of OUTPUT, of PASSED (what the module's own code passes to the modules
            that it calls) and of GRADIENT (that of the inputs). Empty for a call without a repeatable replay,
            such as dropout.
        random: The names of the modules whose replay is not repeatable.
        computing: The names of the modules with arithmetic in their forward. The others only move values or
            leave them out, such as nearest-neighbour upsampling, max pooling, dropout, ReLU.
        computing_gradients: These, and the modules with arithmetic in their backward alone, such as one that
            reverses gradients with a factor.
        gradients: By parameter: the gradient of the replays, summed over the calls; includes the loss scale.
    """

    errors: dict[CallKey, dict[str, RelativeError]] = field(default_factory=dict)
    random: set[str] = field(default_factory=set)
    computing: set[str] = field(default_factory=set)
    computing_gradients: set[str] = field(default_factory=set)
    gradients: dict[str, Tensor] = field(default_factory=dict)


def measure_own_errors(
    step: TakenStep,
    reference: TakenStep,
    model: nn.Module,
    arithmetic: Callable[[], AbstractContextManager[None]] = nullcontext,
    of_reference: OwnErrors | None = None,
) -> OwnErrors:
    """Replay every call of a step, and compare.

    Weights and buffers that an earlier call of the step changed are those of the reference: those of the step
    may have been rounded to 16 bits.

    Args:
        step: The step under a backend.
        reference: The step in the dtype of the model.
        model: The network in fp32 or fp64, with the weights and buffers from before the step.
        arithmetic: Returns a context around each replay.
        of_reference: The own errors of the reference. A part whose replay differs from the reference has no
            error: the module needs more of the step than its inputs, such as a random number.
    """
    result = OwnErrors()
    modules = dict(model.named_modules())
    for key, call in step.calls.items():
        result.errors[key] = {}
        changed = reference.calls.get(key, call).changed
        replays = _replay_twice(call, model, changed, arithmetic) if call.name in modules else None
        known = {} if of_reference is None else of_reference.errors.get(key, {})
        unlike = {part for part, error in known.items() if error.size > SAME_VALUES}
        if replays is None:
            result.computing.add(call.name)
        else:
            _compare_call(result, call, modules[call.name], replays, unlike)
    result.computing_gradients |= result.computing
    return result


def _replay_twice(
    call: ModuleCall,
    model: nn.Module,
    changed: dict[str, Tensor],
    arithmetic: Callable[[], AbstractContextManager[None]],
) -> tuple[Replay, Replay] | None:
    """Replay a call with the random numbers of two seeds; None if the module needs more than its inputs."""
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    replays = []
    try:
        for seed in (1, 0):  # of a step and of its reference the last one is the same
            seed_process(seed)
            with arithmetic():
                replays.append(replay_call(call, model, changed, dtype))
    except Exception as problem:
        if is_out_of_memory(problem):
            raise
        return None
    return replays[1], replays[0]


def _compare_call(
    result: OwnErrors,
    call: ModuleCall,
    module: nn.Module,
    replays: tuple[Replay, Replay],
    unlike: Collection[str],
) -> None:
    """Add the errors of a call, and the gradients of its replay.

    Args:
        unlike: The parts that have no error.
    """
    replay, repeated = replays
    is_dropout = isinstance(module, _DropoutNd)
    if not is_dropout and (OUTPUT in unlike or not _moves_values(call, replay)):
        result.computing.add(call.name)
    if not _are_alike(replay, repeated):
        result.random.add(call.name)
        return
    of_inputs, of_weights = differentiate(call, replay)
    for parameter, gradient in of_weights.items():
        result.gradients[parameter] = result.gradients.get(parameter, 0) + gradient
    gradients = [call.input_gradients[index] for index in of_inputs], [*of_inputs.values()]
    # Sums of gradients are rounded: of PyTorch's own modules it is known that they are sums.
    if call.name in result.computing or not (_is_of_pytorch(module) or _are_equal(*gradients)):
        result.computing_gradients.add(call.name)
    parts = {OUTPUT: (numeric_tensors(call.output), replay.outputs), PASSED: (call.passed, replay.passed)}
    # Where sums of gradients overflow, the gradients that are added up are the cause.
    if call.name in result.computing_gradients or are_finite(gradients[0]):
        parts[GRADIENT] = gradients
    for part, pair in parts.items():
        error = relative_error(*pair)
        if error is not None and part not in unlike:
            result.errors[call.key][part] = error


def _are_alike(replay: Replay, repeated: Replay) -> bool:
    """Return whether two replays have the same numbers."""
    pairs = ((replay.outputs, repeated.outputs), (replay.passed, repeated.passed))
    return all(len(a) == len(b) and _are_equal(map(_numbers, a), map(_numbers, b)) for a, b in pairs)


def _are_equal(tensors: Iterable[Tensor], others: Iterable[Tensor]) -> bool:
    return all(torch.equal(a.to(b), b) for a, b in zip(tensors, others, strict=True))


def _numbers(tensor: Tensor) -> Tensor:
    return real_numbers(tensor).nan_to_num()


def _is_of_pytorch(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.modules.")


def _moves_values(call: ModuleCall, replay: Replay) -> bool:
    """Return whether a module has no weights, and each number of its outputs is one of the inputs', or 0."""
    if call.inner_calls or replay.weights or not replay.outputs or not replay.inputs:
        return False
    inputs, outputs = (
        torch.cat([real_numbers(tensor).flatten() for tensor in tensors])
        for tensors in (replay.inputs, replay.outputs)
    )
    if inputs.shape == outputs.shape and bool(((inputs == outputs) | (outputs == 0)).all()):
        return True
    # To look for all numbers takes long: most modules that compute are found out by a few.
    return all(
        bool((torch.isin(some_outputs, inputs) | (some_outputs == 0)).all())
        for some_outputs in (outputs[:: len(outputs) // SAMPLE + 1], outputs)
    )


def differentiate(call: ModuleCall, replay: Replay) -> tuple[dict[int, Tensor], dict[str, Tensor]]:
    """Return the gradients of the inputs of a replay, by index, and of the weights, by the parameter's name.

    A call that made other calls has none: their outputs are the recorded ones.
    """
    outputs = replay.outputs
    output_indices = [i for i in call.output_gradients if i < len(outputs) and outputs[i].requires_grad]
    input_indices = [i for i in call.input_gradients if i < len(replay.inputs)]
    if call.inner_calls or not output_indices or not (input_indices or replay.weights):
        return {}, {}
    gradients = torch.autograd.grad(
        [outputs[i] for i in output_indices],
        [*(replay.inputs[i] for i in input_indices), *replay.weights.values()],
        [call.output_gradients[i].to(outputs[i]) for i in output_indices],
        allow_unused=True,
    )
    parameters = [f"{call.name}.{name}".removeprefix(".") for name in replay.weights]
    of_inputs = zip(input_indices, gradients, strict=False)
    of_weights = zip(parameters, gradients[len(input_indices) :], strict=True)
    return (
        {index: gradient for index, gradient in of_inputs if gradient is not None},
        {name: dense(gradient) for name, gradient in of_weights if gradient is not None},
    )


def weight_gradient_error(
    name: str, step: TakenStep, own: OwnErrors, reference: TakenStep, of_reference: OwnErrors
) -> RelativeError | None:
    """Return the error of the gradients of a module's own weights, against the replays of its calls.

    If other modules use a weight, too, its gradient is not that of these calls alone. Such weights are left
    out: their gradient in the reference differs from the one of the calls.

    Args:
        name: The module's name.
        own: The own errors of `step`.
        reference: The step in the dtype of the replays.
        of_reference: Those of the step in the dtype of the replays.

    Returns:
        The error; None if the module has no weight that it alone uses.
    """
    names = []
    for weight, gradient in of_reference.gradients.items():
        if weight.rpartition(".")[0] != name or weight not in own.gradients or weight not in step.gradients:
            continue
        error = relative_error([gradient], [reference.gradients[weight]], scale=reference.scale)
        if error is not None and error.size < SAME_GRADIENT:
            names.append(weight)
    replayed = [own.gradients[weight] for weight in names]
    return relative_error([step.gradients[weight] for weight in names], replayed, scale=1 / step.scale)
