"""`ampcompare why diff`: where a backend departs from fp32 in a training step, module by module."""

import dataclasses
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text
from torch import nn

from ampcompare.config.load import Config
from ampcompare.data.batch import count_samples
from ampcompare.errors import UserError
from ampcompare.precision import get_backend
from ampcompare.precision.casting import name_dtype
from ampcompare.precision.registry import PLAIN
from ampcompare.runtime.formatting import number, plural, printable, some
from ampcompare.system.device import allow_tf32
from ampcompare.training.run_context import with_backend
from ampcompare.training.trainer import Trainer
from ampcompare.why.capture import ModuleCall, TakenStep, are_finite, numeric_tensors, take
from ampcompare.why.errors import RelativeError, format_error, relative_error, unit_roundoff, worst
from ampcompare.why.lost_updates import LostUpdates, measure_lost_updates
from ampcompare.why.nonfinite import (
    LOSS,
    NETWORK,
    LossOverflow,
    find_loss_overflow,
    first_gradient,
    first_output,
    first_output_of,
    is_finite,
    nonfinite_modules,
)
from ampcompare.why.output import Answer, make_table
from ampcompare.why.own_errors import (
    GRADIENT,
    PASSED,
    WEIGHTS,
    OwnErrors,
    measure_own_errors,
    weight_gradient_error,
)
from ampcompare.why.step import StepState

MAX_MODULES = 15  # rows of a table without --all
SAMPLES = 8  # of the batch, unless the options set batch_size
# Multiples of the unit roundoff. In sums that cancel (gradients of weights), rounding alone reaches 16.
LARGE_ERROR = 20
MIN_FLUSHED = 1e-4  # a smaller fraction of elements is not reported
# In messages.
PARTS = {GRADIENT: "input gradients", WEIGHTS: "weight gradients", PASSED: "inputs of the modules"}
LEGEND = (
    "own: the error that the module itself adds, against the same module in fp32 with the same inputs",
    "output, gradient: the error of the module's output and of the gradient there, against the step in fp32",
)
LOST_LEGEND = (
    "lost: weights that did not change, although they change in fp32; "
    "arrives: how much of the update in fp32 arrives"
)
SHORT_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


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


def summarize(difference: StepDifference) -> list[str]:
    """Return what the table does not show by itself, as sentences."""
    return [
        *_describe_own_errors(difference),
        *_describe_forward(difference),
        *_describe_backward(difference),
        *_describe_update(difference),
        *_describe_underflow(difference),
        *_describe_uncalled(difference),
    ]


def _describe_own_errors(difference: StepDifference) -> Iterator[str]:
    """Yield the largest own error, and which errors are larger than rounding explains."""
    lines = [line for line in difference.by_worst() if line.size > 0]
    if not lines:
        return
    first = lines[0]
    part, error = max(first.own.items(), key=lambda pair: pair[1].size)
    place = f"the {PARTS.get(part, part)} of {first.title}"
    if first.calls > 1:
        place = f"{place} (call {first.call + 1} of {first.calls})"
    if math.isinf(error.size):
        yield f"inf or nan arises in {place}"
        return
    largest = format_error(error.size)
    if len(lines) == 1:
        yield f"the largest own error is {largest}, in {place}"
    else:
        following = lines[1]
        yield (
            f"the largest own error is {largest}, in {place}; "
            f"next: {format_error(following.size)} in {following.title}"
        )
    yield _describe_large_errors(difference)


def _describe_large_errors(difference: StepDifference) -> str:
    """Return which modules have a larger error than the rounding of the backend's dtype explains."""
    unit = difference.unit_roundoff
    rounding = f"{LARGE_ERROR} times the rounding error of {_short(difference.dtype)}"
    bound = f"{LARGE_ERROR} x {format_error(unit)}"
    large = [line.title for line in difference.by_worst() if line.size > LARGE_ERROR * unit]
    if not large:
        return f"no own error is large: none exceeds {rounding} ({bound})"
    return f"large own errors, above {rounding} ({bound}): {some(large)}"


def _percent(fraction: float, digits: int = 2) -> str:
    return f"{number(100 * fraction, digits)}%"


def _short(dtype: str) -> str:
    return SHORT_DTYPES.get(dtype, dtype)


def _describe_forward(difference: StepDifference) -> Iterator[str]:
    """Yield where inf or nan begins before the loss: under the backend, in weights and buffers, in fp32."""
    if difference.first_output:
        yield f"the first inf or nan of the forward pass is in the output of {difference.first_output}"
    if difference.out_of_range:
        module = difference.out_of_range
        remedy = f"keep the module in fp32 (precision.keep_fp32={module})"
        if module == NETWORK:
            remedy = "give them to a module of their own, which precision.keep_fp32 can keep in fp32"
        dtype = _short(difference.dtype)
        yield f"weights or buffers of {module} are inf or nan in {dtype}, and finite in fp32: {remedy}"
    if difference.nonfinite_weights or difference.nonfinite_buffers:
        kind = "weights" if difference.nonfinite_weights else "buffers"
        yield (
            f"the {kind} of {difference.nonfinite_weights or difference.nonfinite_buffers} were inf or nan "
            "before the step, so its values show no cause: look at an earlier step (--at RUN@STEP), or at "
            "the initial weights"
        )
    elif difference.first_output_fp32 == LOSS:
        yield (
            "the loss is inf or nan in fp32, too, and no module makes inf or nan of finite inputs: "
            "look at the data and the loss function"
        )
    elif difference.first_output_fp32:
        yield (
            "fp32 overflows, too: the first inf or nan of the step in fp32 is in the output of "
            f"{difference.first_output_fp32}, so no backend repairs it"
        )


def _describe_backward(difference: StepDifference) -> Iterator[str]:
    """Yield where inf or nan begins in the loss, or in the backward pass."""
    overflow = difference.loss_overflow
    if overflow is not None:
        values = "the gradients of " if overflow.is_backward else ""
        remedy = "; compute the loss of outputs.float()" if overflow.float_helps else ""
        yield (
            f"the loss function overflows on finite outputs: {values}{overflow.operation} in "
            f"{_short(overflow.dtype)} became inf or nan{remedy}"
        )
    elif difference.first_gradient and difference.first_gradient_fp32 and not difference.first_output_fp32:
        yield (
            "the gradients are inf or nan in fp32, too, first in the gradients of "
            f"{difference.first_gradient_fp32}, so no loss scale repairs them"
        )
    elif difference.first_gradient:
        yield (
            "the first inf or nan of the backward pass is in the gradients of "
            f"{difference.first_gradient}, with a loss scale of {difference.scale:,.6g}"
        )


def _describe_update(difference: StepDifference) -> Iterator[str]:
    """Yield the errors of loss and weight update, and which updates are lost."""
    if difference.finds_scale:
        yield (
            "the optimizer step was skipped, as the first steps are while the loss scaler finds its first "
            f"scale: this is no fault; a run goes on with half of {difference.scale:,.6g} "
            "(a smaller precision.init_scale skips fewer steps)"
        )
        return
    if difference.skipped:
        yield "the optimizer step was skipped, so no weight changed"
        return
    loss_error = format_error(abs(difference.loss - difference.loss_fp32))
    update_error = format_error(difference.update.size)
    yield f"the loss differs by {loss_error}; the relative error of the weight update is {update_error}"
    if math.isinf(difference.update.size) and not difference.first_gradient:
        yield (
            "the optimizer makes updates of inf or nan from finite gradients: in fp16 weights, the default "
            "eps of adam and adamw is 0 (set optimizer.eps=1e-4)"
        )
    lost = difference.update.flushed
    if lost < MIN_FLUSHED:
        return
    yield f"{_percent(lost)} of the weights did not change, although they change in fp32: lost updates"
    if difference.lost_updates is not None:
        for remedy in difference.lost_updates.remedies:
            draws = f", the mean of {remedy.draws} draws" if remedy.draws > 1 else ""
            yield (
                f"tried: with {remedy.name}, {_percent(remedy.lost)} of the weights did not change, and "
                f"{_percent(remedy.arrives, 3)} of the update in fp32 arrives{draws}"
            )


def _describe_underflow(difference: StepDifference) -> Iterator[str]:
    """Yield the module at which the largest fraction of the gradient became 0."""
    if not math.isfinite(difference.loss + difference.loss_fp32):
        return
    fractions = [(line.gradient.flushed, line.title) for line in difference.lines if line.gradient]
    fraction, title = max(fractions, default=(0.0, ""))
    if fraction >= MIN_FLUSHED:
        yield (
            f"gradient underflow: {_percent(fraction)} of the gradient at {title} became 0, "
            "the most of all modules"
        )


def _describe_uncalled(difference: StepDifference) -> Iterator[str]:
    if difference.not_called:
        yield f"modules that this step did not call: {some(difference.not_called)}"


def lost_table(losses: LostUpdates, *, every: bool) -> Table:
    """Return a row for each kind of parameter, and for the parameters that lose most."""
    columns = ("parameter", "weights", "lost", "arrives")
    table = make_table("Lost updates", *columns, left=1)
    shown = losses.parameters if every else [row for row in losses.parameters if row.lost][:MAX_MODULES]
    for row in (*losses.kinds, *shown):
        name = f"all {row.name}" if row in losses.kinds else row.name
        arrives = "-" if math.isnan(row.arrives) else _percent(row.arrives, 3)
        cells = (name, f"{row.weights:,}", _percent(row.lost, 3), arrives)
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def error_table(lines: Iterable[ModuleDifference]) -> Table:
    """Return a row for each module with its largest own error and its errors in the step."""
    table = make_table("Relative errors", "module", "dtype", "own", "output", "gradient", left=2)
    for line in lines:
        cells = (
            f"{line.title} x{line.calls}" if line.calls > 1 else line.title,
            ", ".join(map(_short, line.type.split(", "))),
            format_error(line.size) if line.size >= 0 else "-",
            format_error(line.output.size) if line.output else "-",
            format_error(line.gradient.size) if line.gradient else "-",
        )
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def explain_difference(state: StepState, *, every: bool) -> Answer:
    """Return what differs between a step and the same step in fp32.

    Args:
        every: Whether to show every module and parameter, not only the worst MAX_MODULES.

    Raises:
        UserError: The backend is fp32.
    """
    difference = compare_step(state)
    lines = difference.by_worst()
    shown = lines if every else lines[:MAX_MODULES]
    parts: list[Table | str] = [error_table(shown)]
    if len(shown) < len(lines):
        parts.append(f"{plural(len(lines) - len(shown), 'more module')} with --all")
    parts += LEGEND
    if difference.lost_updates is not None and difference.update.flushed >= MIN_FLUSHED:
        parts += [lost_table(difference.lost_updates, every=every), LOST_LEGEND]
    setting = f"model {difference.network}, data {difference.data}, {difference.samples} samples"
    return Answer(
        heading=f"{difference.backend} compared with fp32 in {state.title}: {setting}",
        config=state.config,
        parts=[*parts, *(f"- {message}" for message in summarize(difference))],
        content=dataclasses.asdict(difference),
    )
