"""`ampcompare why diff`: where a backend departs from fp32 in a training step, module by module."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from ampcompare.config.load import Config, config_from_cli
from ampcompare.config.recipes import describe_recipe
from ampcompare.data.batch import Batch, count_samples
from ampcompare.errors import UserError
from ampcompare.precision import get_backend
from ampcompare.precision.registry import PLAIN
from ampcompare.runtime.atomic_files import write_json
from ampcompare.runtime.console import print_line
from ampcompare.runtime.formatting import plural, printable, some
from ampcompare.system.device import allow_tf32, random_states, set_random_states
from ampcompare.training.run_context import make_config, with_backend
from ampcompare.why.fp32_reference import OwnErrors, RelativeError, measure_own_errors, relative_error
from ampcompare.why.replay import Moment
from ampcompare.why.step_capture import CapturedStep, ModuleCall, capture_step, floating_tensors
from ampcompare.why.step_source import read_source

MAX_MODULES = 15  # rows of the table without --all
NETWORK, LOSS = "(network)", "the loss"  # PyTorch calls the network ""
# Where a gradient in fp32 differs by less from the reference's, only one module uses the weight.
SAME_GRADIENT = 1e-3
# Multiples of the unit roundoff. In sums that cancel (gradients of weights), rounding alone reaches 16.
LARGE_ERROR = 20
MIN_FLUSHED = 1e-4  # a smaller fraction of elements is not reported
PARTS = {"gradient": "input gradients", "weights' gradients": "weight gradients"}  # in messages
LEGEND = (
    "own: the error that the module itself adds, against the same module in fp32 with the same inputs",
    "output, gradient: the error of the module's output and of the gradient there, against the step in fp32",
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
        own: Its own errors in its worst call, by name: `output`, `gradient`, `weights' gradients`.
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
        return _largest(self.own.values(), -1.0)


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
        lines: The modules, in the order of the forward pass.
        not_called: Names of the modules that the step did not call.
        dtype: The backend's dtype.
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

    def by_worst(self) -> list[ModuleDifference]:
        """Return the modules, the largest own error first; among infinite errors, the first in the step."""
        firsts = {self.first_output, self.first_gradient}
        return sorted(self.lines, key=lambda line: (-line.size, line.title not in firsts))


def compare_step(overrides: Sequence[str], moment: Moment | None = None) -> StepDifference:
    """Take a step under a backend and one in fp32, and compare them.

    Args:
        overrides: Options of a run, `backend` among them. Unused with a moment.
        moment: The state of a training before the step; None: the first step of an untrained network.

    Raises:
        UserError: For bad options, or if the backend is fp32.
    """
    config = make_config(overrides) if moment is None else moment.config
    if get_backend(config.backend).is_strict_fp32:
        raise UserError(
            f"backend={config.backend} computes in fp32, so there is nothing to compare; "
            "name another backend, for example backend=native"
        )
    host = torch.device("cpu")
    states = random_states(host)
    try:
        source = read_source(overrides, moment)
        allow_tf32(False)  # the backend is compared with strict fp32
        fp32 = with_backend(source.config, PLAIN)
        reference_trainer = source.build_trainer(fp32)
        trainer = source.build_trainer(source.config)
        model = source.build_trainer(fp32).model  # keeps the weights from before the step
        reference = capture_step(reference_trainer, source.batches, source.set_random_states)
        step = capture_step(trainer, source.batches, source.set_random_states)
        return _compare_steps(source.config, source.batches, reference, step, model)
    finally:
        set_random_states(host, states)


def _compare_steps(
    config: Config,
    batches: Sequence[Batch],
    reference: CapturedStep,
    step: CapturedStep,
    model: nn.Module,
) -> StepDifference:
    """Return the difference between two captured steps.

    Args:
        config: The options of the run.
        batches: The micro-batches of the steps.
        reference: The step in fp32.
        step: The step under the backend.
        model: The network in fp32, with the weights from before the steps.
    """
    backend = get_backend(config.backend)
    called = {call.name for call in step.calls.values()}
    return StepDifference(
        backend=backend.label,
        network=config.model.name,
        data=config.data.source,
        samples=sum(count_samples(inputs) for inputs, _ in batches),
        loss=step.loss,
        loss_fp32=reference.loss,
        scale=step.scale,
        skipped=step.skipped,
        update=relative_error(list(step.updates.values()), list(reference.updates.values())),
        first_output=_first_output(reference, step),
        first_gradient=_first_gradient(step),
        lines=_compare_modules(reference, step, model),
        not_called=[n for n, m in model.named_modules() if n not in called and _has_forward(m)],
        dtype=backend.dtype,
        first_output_fp32=_first_output_of(reference),
        nonfinite_weights=_first_nonfinite_weights(model),
    )


def _compare_modules(reference: CapturedStep, step: CapturedStep, model: nn.Module) -> list[ModuleDifference]:
    """Return the errors of every called module, in the order of the forward pass.

    Args:
        reference: The step in fp32.
        step: The step under the backend.
        model: The network in fp32, with the weights from before the steps.
    """
    own_errors = measure_own_errors(step, model)
    fp32_errors = measure_own_errors(reference, model)
    modules = dict(model.named_modules())
    calls_by_name: dict[str, list[ModuleCall]] = {}  # in the order in which the first calls ended
    for call in step.calls.values():
        calls_by_name.setdefault(call.name, []).append(call)
    lines = []
    for name, calls in calls_by_name.items():
        if name not in modules:
            continue
        worst = max(calls, key=lambda call: _largest(own_errors.errors[call.key].values(), -1.0))
        own = dict(own_errors.errors[worst.key])
        weight_error = _weight_gradient_error(name, step, reference, own_errors, fp32_errors)
        if weight_error is not None:
            own["weights' gradients"] = weight_error
        pairs = [(call, reference.calls[call.key]) for call in calls if call.key in reference.calls]
        scale = step.scale / reference.scale
        outputs = [tensor for call in calls for tensor in floating_tensors(call.output)]
        dtypes = dict.fromkeys(str(tensor.dtype).removeprefix("torch.") for tensor in outputs)
        lines.append(
            ModuleDifference(
                title=name or NETWORK,
                kind=type(modules[name]).__name__,
                calls=len(calls),
                type=", ".join(dtypes),
                own=own,
                call=worst.number,
                output=_worst(_output_error(a, b) for a, b in pairs),
                gradient=_worst(_gradient_error(a, b, scale) for a, b in pairs if a.output_gradients),
            )
        )
    return lines


def _weight_gradient_error(
    name: str, step: CapturedStep, reference: CapturedStep, own: OwnErrors, fp32: OwnErrors
) -> RelativeError | None:
    """Return the error of the gradients of a module's own weights, against its calls in fp32.

    If other modules use a weight, too, its gradient is not that of these calls alone. Such weights are left
    out: their gradient in the step in fp32 differs from the one of the calls.

    Args:
        name: The module's name.
        step: The step under the backend.
        reference: The step in fp32.
        own: The own errors of `step`.
        fp32: The own errors of `reference`.

    Returns:
        The error; None if the module has no weight that it alone uses.
    """
    names = []
    for weight, gradient in fp32.gradients.items():
        if weight.rpartition(".")[0] != name or weight not in own.gradients:
            continue
        error = relative_error([gradient], [reference.gradients[weight]], reference.scale)
        if error.size < SAME_GRADIENT:
            names.append(weight)
    if not names:
        return None
    gradients = [step.gradients[weight].double() * step.scale for weight in names]
    return relative_error(gradients, [own.gradients[weight] for weight in names])


def _output_error(call: ModuleCall, reference: ModuleCall) -> RelativeError:
    return relative_error(floating_tensors(call.output), floating_tensors(reference.output))


def _gradient_error(call: ModuleCall, reference: ModuleCall, scale: float) -> RelativeError:
    """Return the error of the gradient of a call's output; `scale` is the quotient of the loss scales."""
    indices = [i for i in call.output_gradients if i in reference.output_gradients]
    gradients = [call.output_gradients[i] for i in indices]
    return relative_error(gradients, [reference.output_gradients[i] for i in indices], scale)


def _worst(errors: Iterable[RelativeError]) -> RelativeError | None:
    return max(errors, key=lambda error: error.size, default=None)


def _largest(errors: Iterable[RelativeError], default: float) -> float:
    return max((error.size for error in errors), default=default)


def _has_forward(module: nn.Module) -> bool:
    """Return whether the module can be called: a ModuleList only holds others."""
    return type(module).forward is not nn.Module.forward


def _first_output(reference: CapturedStep, step: CapturedStep) -> str | None:
    """Return the first module in the forward pass with an output that is finite in fp32 only."""
    for key, call in step.calls.items():
        if key in reference.calls and math.isinf(_output_error(call, reference.calls[key]).size):
            return call.name or NETWORK
    return None


def _first_output_of(step: CapturedStep) -> str | None:
    """Return the first module that makes inf or nan of finite inputs, if the loss of the step is not finite.

    Where the loss is finite, infinite values are intended, such as those of an attention mask.
    """
    if math.isfinite(step.loss):
        return None
    for call in step.calls.values():
        is_made_here = _are_finite(floating_tensors(call.inputs))
        if is_made_here and not _are_finite(floating_tensors(call.output)):
            return call.name or NETWORK
    return LOSS


def _first_nonfinite_weights(model: nn.Module) -> str | None:
    """Return the first module of which a parameter is not finite."""
    for name, parameter in model.named_parameters():
        if not _are_finite([parameter]):
            return name.rpartition(".")[0] or NETWORK
    return None


def _first_gradient(step: CapturedStep) -> str | None:
    """Return the module in whose backward pass a gradient became infinite or NaN.

    Returns:
        LOSS, if the gradients are not finite from the loss on; None, if all are finite.
    """
    for call in step.backward:
        if call.inner_calls:
            continue
        if not _are_finite(call.output_gradients.values()):
            return LOSS
        own = [g for name, g in step.gradients.items() if name.rpartition(".")[0] == call.name]
        if not _are_finite([*own, *call.input_gradients.values()]):
            return call.name or NETWORK
    for name, gradient in step.gradients.items():
        if not _are_finite([gradient]):
            return name.rpartition(".")[0] or NETWORK
    return None


def _are_finite(tensors: Iterable[Tensor]) -> bool:
    return all(bool(t.isfinite().all()) for t in tensors)  # sync: a diagnostic step, not a training loop


def summarize(difference: StepDifference) -> list[str]:
    """Return what the table does not show by itself, as sentences."""
    return [
        *_describe_own_errors(difference),
        *_describe_nonfinite(difference),
        *_describe_update(difference),
        *_describe_underflow(difference),
        *_describe_uncalled(difference),
    ]


def _describe_own_errors(difference: StepDifference) -> Iterator[str]:
    """Yield the largest own error, and which errors are larger than rounding explains."""
    lines = [line for line in difference.by_worst() if line.size > 0]
    if not lines:
        return
    worst = lines[0]
    part, error = max(worst.own.items(), key=lambda pair: pair[1].size)
    place = f"the {PARTS.get(part, part)} of {worst.title}"
    if worst.calls > 1:
        place = f"{place} (call {worst.call + 1} of {worst.calls})"
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
    dtype = SHORT_DTYPES.get(difference.dtype, difference.dtype)
    unit = torch.finfo(getattr(torch, difference.dtype)).eps / 2
    bound = f"{LARGE_ERROR} x {format_error(unit)}"
    times = LARGE_ERROR
    large = [line.title for line in difference.by_worst() if line.size > LARGE_ERROR * unit]
    if not large:
        return f"no own error is large: none exceeds {times} times the rounding error of {dtype} ({bound})"
    return f"large own errors, above {times} times the rounding error of {dtype} ({bound}): {some(large)}"


def _describe_nonfinite(difference: StepDifference) -> Iterator[str]:
    """Yield where inf or nan begins in the forward pass, in fp32, and in the backward pass."""
    if difference.first_output:
        yield f"the first inf or nan of the forward pass is in the output of {difference.first_output}"
    if difference.nonfinite_weights:
        yield (
            f"the weights of {difference.nonfinite_weights} were inf or nan before the step, so its values "
            "show no cause: look at an earlier step (--at RUN@STEP), or at the initial weights"
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
    if difference.first_gradient:
        yield (
            "the first inf or nan of the backward pass is in the gradients of "
            f"{difference.first_gradient}, with a loss scale of {difference.scale:,.6g}"
        )


def _describe_update(difference: StepDifference) -> Iterator[str]:
    """Yield the errors of loss and weight update."""
    if difference.skipped:
        yield "the optimizer step was skipped, so no weight changed"
        return
    loss_error = format_error(abs(difference.loss - difference.loss_fp32))
    update_error = format_error(difference.update.size)
    yield f"the loss differs by {loss_error}; the relative error of the weight update is {update_error}"
    lost = difference.update.flushed
    if lost >= MIN_FLUSHED:
        yield f"{100 * lost:.2g}% of the weights did not change, although they change in fp32: lost updates"


def _describe_underflow(difference: StepDifference) -> Iterator[str]:
    """Yield the module at which the largest fraction of the gradient became 0."""
    fractions = [(line.gradient.flushed, line.title) for line in difference.lines if line.gradient]
    fraction, title = max(fractions, default=(0.0, ""))
    if fraction >= MIN_FLUSHED:
        yield (
            f"gradient underflow: {100 * fraction:.2g}% of the gradient at {title} became 0, "
            "the most of all modules"
        )


def _describe_uncalled(difference: StepDifference) -> Iterator[str]:
    if difference.not_called:
        yield f"modules that this step did not call: {some(difference.not_called)}"


def format_error(value: float) -> str:
    """Return an error as text: `4.1e-4`, `0` or `inf/nan`.

    >>> format_error(0.00041)
    '4.1e-4'
    """
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return "inf/nan"
    digits, _, power = f"{value:.1e}".partition("e")
    return f"{digits}e{int(power)}" if int(power) else digits


def _error_table(lines: Iterable[ModuleDifference]) -> Table:
    table = Table(
        title="Relative errors", title_justify="left", title_style="bold", header_style="dim", box=None
    )
    for head in ("module", "dtype", "own", "output", "gradient"):
        table.add_column(head, justify="left" if head in ("module", "dtype") else "right", overflow="fold")
    for line in lines:
        cells = (
            f"{line.title} x{line.calls}" if line.calls > 1 else line.title,
            ", ".join(SHORT_DTYPES.get(dtype, dtype) for dtype in line.type.split(", ")),
            format_error(line.size) if line.size >= 0 else "-",
            format_error(line.output.size) if line.output else "-",
            format_error(line.gradient.size) if line.gradient else "-",
        )
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def run_diff(
    overrides: Sequence[str],
    console: Console,
    *,
    every: bool = False,
    file: Path | None = None,
    moment: Moment | None = None,
) -> None:
    """Compare a step with fp32, print the result, and write it where a file is named.

    Args:
        overrides: Options of a run.
        console: Where to print.
        every: Whether to print every module, not the worst MAX_MODULES.
        file: File for the whole result as JSON.
        moment: The state of a training before the step; None: the first step of an untrained network.

    Raises:
        UserError: For bad options, or if the file cannot be written.
    """
    difference = compare_step(overrides, moment)
    lines = difference.by_worst()
    setting = f"model {difference.network}, data {difference.data}, {difference.samples} samples"
    where = "one training step" if moment is None else moment.name
    print_line(console, f"{difference.backend} compared with fp32 in {where}: {setting}")
    print_line(console, describe_recipe(config_from_cli(overrides) if moment is None else moment.config))
    shown = lines if every else lines[:MAX_MODULES]
    console.print(_error_table(shown))
    if len(shown) < len(lines):
        print_line(console, f"{plural(len(lines) - len(shown), 'more module')} with --all")
    for explanation in LEGEND:
        print_line(console, explanation)
    for message in summarize(difference):
        print_line(console, f"- {message}")
    if file is not None:
        write_json(file, dataclasses.asdict(difference))
        print_line(console, f"Written: {file}")
