"""`ampcompare why diff`: where a backend departs from fp32 in a training step, module by module."""

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from ampcompare.config.load import Config
from ampcompare.data.batch import count_samples
from ampcompare.errors import UserError
from ampcompare.precision import get_backend
from ampcompare.precision.casting import name_dtype
from ampcompare.precision.registry import PLAIN
from ampcompare.system.device import allow_tf32
from ampcompare.training.run_context import with_backend
from ampcompare.training.trainer import Trainer
from ampcompare.why.capture import ModuleCall, TakenStep, are_finite, numeric_tensors, take
from ampcompare.why.errors import RelativeError, relative_error, unit_roundoff, worst
from ampcompare.why.lost_updates import LostUpdates, measure_lost_updates
from ampcompare.why.nonfinite import (
    NETWORK,
    LossOverflow,
    find_loss_overflow,
    first_gradient,
    first_output,
    first_output_of,
    is_finite,
    nonfinite_modules,
)
from ampcompare.why.own_errors import WEIGHTS, OwnErrors, measure_own_errors, weight_gradient_error
from ampcompare.why.step import StepState

# Multiples of the unit roundoff. In sums that cancel (gradients of weights), rounding alone reaches 16.
LARGE_ERROR = 20
SAMPLES = 8  # of the batch, unless the options set batch_size


@dataclass(frozen=True)
class ModuleDifference:
    """The errors of one module.

    Attributes:
        title: The module's name, or NETWORK.
        kind: Its class.
        calls: Number of calls in the step.
        type: The dtypes of its outputs.
        own: Its own errors in its worst call, by name: `output`, `passed inputs`, `gradient`,
            `weights' gradients`.
        call: The number of that call, from 0.
        output: The error of its output against the step in fp32; None where the two steps share no call.
        gradient: The same, of the gradient of its output.
    """

    title: str
    kind: str
    calls: int
    type: str
    own: dict[str, RelativeError]
    call: int
    output: RelativeError | None
    gradient: RelativeError | None

    @property
    def size(self) -> float:
        """The largest of its own errors; -1 where none could be measured, as for dropout."""
        return _size(self.own.values())


@dataclass(frozen=True)
class StepDifference:
    """The difference between a step under a backend and the same step in fp32.

    Attributes:
        backend: The backend's label.
        network: The network's name.
        data: The data source.
        samples: Number of samples in the step.
        loss_fp32: The loss of the step in fp32.
        scale: The loss scale.
        skipped: Whether the optimizer step was skipped.
        update: The error of the update of all weights.
        first_output: The first module in the forward pass with an output that is not finite.
        first_gradient: The first module in the backward pass with a gradient that is not finite.
        first_output_fp32: The first module whose output is not finite in fp32 either, if the loss of the step
            in fp32 is not finite.
        nonfinite_weights: The first module with a weight that was inf or nan in fp32 before the step.
        nonfinite_buffers: The same of buffers, such as running statistics.
        out_of_range: The first module with a weight or buffer that is inf or nan under the backend alone.
        first_gradient_fp32: The same as `first_gradient`, of the step in fp32.
        loss_overflow: Where the loss overflows on finite outputs in 16 bits.
        finds_scale: Whether the step was skipped because the loss scaler has not found its first scale.
        lost_updates: The lost updates by parameter, where the backend updates 16-bit weights.
        lines: The modules, in the order of the forward pass.
        not_called: Names of the modules that the step did not call.
        dtype: The backend's dtype.
        unit_roundoff: The relative error of one rounding in this dtype.
    """

    backend: str
    network: str
    data: str
    samples: int
    loss: float
    loss_fp32: float
    scale: float
    skipped: bool
    update: RelativeError
    first_output: str | None
    first_gradient: str | None
    lines: list[ModuleDifference]
    not_called: list[str]
    dtype: str = "float16"
    first_output_fp32: str | None = None
    nonfinite_weights: str | None = None
    nonfinite_buffers: str | None = None
    out_of_range: str | None = None
    first_gradient_fp32: str | None = None
    loss_overflow: LossOverflow | None = None
    finds_scale: bool = False
    lost_updates: LostUpdates | None = None
    unit_roundoff: float = 2.0**-11

    def by_worst(self) -> list[ModuleDifference]:
        """Return the modules, the largest own error first; among infinite errors, the first in the step."""
        firsts = {self.first_output, self.first_gradient}
        return sorted(self.lines, key=lambda line: (-line.size, line.title not in firsts))


def compare_step(state: StepState) -> StepDifference:
    """Take a step under a backend and one in fp32, and compare them.

    Raises:
        UserError: The backend is fp32.
    """
    config = state.config
    backend = get_backend(config.backend)
    check_is_comparable(config)
    allow_tf32(False)  # the backend is compared with strict fp32
    unit = unit_roundoff(config.backend)
    fp32 = with_backend(config, PLAIN)
    model = state.build_trainer(fp32).model  # keeps the weights from before the step
    trainer = state.build_trainer()
    rounded = nonfinite_modules(trainer.model.named_parameters())
    rounded_buffers = nonfinite_modules(trainer.model.named_buffers())
    reference = take(state.build_trainer(fp32), state.batches, state.set_random_states)
    step = take(trainer, state.batches, state.set_random_states)
    of_reference = measure_own_errors(reference, reference, model)
    own = measure_own_errors(step, reference, model, of_reference=of_reference)
    lines = _compare_modules(step, own, reference, of_reference, model)
    called = {line.title for line in lines}
    weights = nonfinite_modules(model.named_parameters())
    buffers = nonfinite_modules(model.named_buffers())
    if is_finite(reference):
        buffers = []  # an infinity that is intended, such as that of a mask
    rounded += _list_harmful(rounded_buffers, lines, step, LARGE_ERROR * unit)
    first_gradient_fp32 = first_gradient(reference, own.computing_gradients)
    updates = relative_error([*step.updates.values()], [*reference.updates.values()])
    updates_16_bits = trainer.precision.metadata.updates_half
    return StepDifference(
        backend=backend.label,
        network=config.model.name,
        data=config.data.source,
        samples=sum(count_samples(inputs) for inputs, _ in state.batches),
        loss=step.loss,
        loss_fp32=reference.loss,
        scale=step.scale,
        skipped=step.skipped,
        update=updates or RelativeError(0.0, 0.0),
        first_output=first_output(step, reference, own.computing),
        first_gradient=first_gradient(step, own.computing_gradients),
        lines=lines,
        not_called=[
            name for name, m in model.named_modules() if (name or NETWORK) not in called and _has_forward(m)
        ],
        dtype=backend.dtype,
        unit_roundoff=unit,
        first_output_fp32=first_output_of(reference),
        nonfinite_weights=_first(weights),
        nonfinite_buffers=_first(buffers),
        out_of_range=None if weights or buffers else _first(rounded),
        first_gradient_fp32=first_gradient_fp32,
        loss_overflow=find_loss_overflow(trainer, step, state.batches),
        finds_scale=step.skipped and first_gradient_fp32 is None and _finds_scale(state, trainer, step),
        lost_updates=measure_lost_updates(state, step, reference, model) if updates_16_bits else None,
    )


def _finds_scale(state: StepState, trainer: Trainer, step: TakenStep) -> bool:
    """Return whether a step was skipped because of its loss scale alone, before the weights ever changed.

    The forward is finite, and so are the gradients with a loss scale of 1.
    """
    outputs = [numeric_tensors(call.output) for call in step.calls.values()]
    is_search = trainer.precision.scales_dynamically() and not state.has_updated
    if not is_search or not math.isfinite(step.loss) or not are_finite(outputs):
        return False
    config = state.config
    precision = dataclasses.replace(config.precision, loss_scale=1.0)
    # The saved state of the loss scaler has its scale.
    parts = {**state.parts, "precision": {}} if state.parts else {}
    unscaled = dataclasses.replace(state, parts=parts)
    trainer = unscaled.build_trainer(dataclasses.replace(config, precision=precision))
    return is_finite(take(trainer, state.batches, state.set_random_states, with_calls=False))


def _list_harmful(
    names: Iterable[str], lines: Iterable[ModuleDifference], step: TakenStep, bound: float
) -> list[str]:
    """Return the modules whose infinite buffers are no mask: an own error is large.

    The error is that of the module, or of the nearest one around it that the step called. Where it is
    unknown, the loss and the gradients tell.
    """
    sizes = {line.title: line.size for line in lines}
    harmful = []
    for name in names:
        user = name
        while user not in sizes and user != NETWORK:
            user = user.rpartition(".")[0] or NETWORK
        size = sizes.get(user, -1.0)
        if size > bound or (size < 0 and not is_finite(step)):
            harmful.append(name)
    return harmful


def _first(names: Iterable[str]) -> str | None:
    return next(iter(names), None)


def check_is_comparable(config: Config) -> None:
    """Raise UserError if the backend is what it would be compared with."""
    if get_backend(config.backend).is_strict_fp32:
        raise UserError(
            f"backend={config.backend} computes in fp32, so there is nothing to compare; "
            "name another backend, for example backend=native"
        )


def _compare_modules(
    step: TakenStep,
    own: OwnErrors,
    reference: TakenStep,
    of_reference: OwnErrors,
    model: nn.Module,
) -> list[ModuleDifference]:
    """Return the errors of every called module, in the order of the forward pass.

    Args:
        reference: The step in fp32.
        of_reference: Those of the reference against its replays, which should be 0.
        model: The network in fp32, with the weights from before the steps.
    """
    modules = dict(model.named_modules())
    calls: dict[str, list[ModuleCall]] = {}  # by name, in the order in which the first calls ended
    for call in step.calls.values():
        if call.name in modules:  # else it was born in the forward
            calls.setdefault(call.name, []).append(call)
    lines = []
    for name, own_calls in calls.items():
        errors_of = {call.number: dict(own.errors[call.key]) for call in own_calls}
        number = max(errors_of, key=lambda number: _size(errors_of[number].values()))
        weight_error = weight_gradient_error(name, step, own, reference, of_reference)
        if weight_error is not None:
            errors_of[number][WEIGHTS] = weight_error
        outputs = [tensor for call in own_calls for tensor in numeric_tensors(call.output)]
        pairs = [(call, reference.calls[call.key]) for call in own_calls if call.key in reference.calls]
        scale = step.scale / reference.scale
        lines.append(
            ModuleDifference(
                title=name or NETWORK,
                kind=type(modules[name]).__name__,
                calls=len(own_calls),
                type=", ".join(dict.fromkeys(name_dtype(tensor.dtype) for tensor in outputs)),
                own=errors_of[number],
                call=number,
                output=worst(
                    relative_error(numeric_tensors(a.output), numeric_tensors(b.output)) for a, b in pairs
                ),
                gradient=worst(_gradient_error(a, b, scale) for a, b in pairs),
            )
        )
    return lines


def _gradient_error(call: ModuleCall, reference: ModuleCall, scale: float) -> RelativeError | None:
    """Return the error of the gradient of a call's output; `scale` is the quotient of the loss scales."""
    indices = [i for i in call.output_gradients if i in reference.output_gradients]
    gradients = [call.output_gradients[i] for i in indices]
    return relative_error(gradients, [reference.output_gradients[i] for i in indices], scale=scale)


def _size(errors: Iterable[RelativeError]) -> float:
    """Return the size of the largest error, -1 without any."""
    largest = worst(errors)
    return -1.0 if largest is None else largest.size


def _has_forward(module: nn.Module) -> bool:
    """Return whether the module can be called: a ModuleList only holds others."""
    return type(module).forward is not nn.Module.forward
