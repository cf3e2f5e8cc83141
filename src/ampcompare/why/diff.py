"""`ampcompare why diff`: where a backend departs from fp32 in a training step, module by module."""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from ampcompare.config.load import Config, config_from_cli
from ampcompare.config.recipes import describe_recipe
from ampcompare.data.batch import count_samples
from ampcompare.errors import UserError
from ampcompare.precision import get_backend
from ampcompare.precision.registry import PLAIN
from ampcompare.runtime.atomic_files import write_json
from ampcompare.runtime.console import print_line
from ampcompare.runtime.formatting import plural, printable, some
from ampcompare.system.device import allow_tf32, random_states, seed_process, set_random_states
from ampcompare.training.run_context import make_config, prepare_run, with_backend
from ampcompare.training.trainer import Trainer
from ampcompare.why.fp32_reference import RelativeError, measure_own_errors, relative_error
from ampcompare.why.replay import Moment
from ampcompare.why.step_capture import CapturedStep, ModuleCall, capture_step, floating_tensors

SAMPLES = 8  # of the batch, unless the options set batch_size
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
        build_trainer: Callable[[Config], Trainer]
        set_states: Callable[[], None]
        if moment is None:
            context = prepare_run(config)
            has_batch_size = any(word.lstrip("-+").startswith("batch_size=") for word in overrides)
            (batches,) = context.first_steps(1, samples=None if has_batch_size else SAMPLES)
            build_trainer, set_states = context.build_trainer, partial(seed_process, config.seed)
        else:
            batches = moment.batches
            build_trainer, set_states = moment.build_trainer, moment.set_random_states
        allow_tf32(False)  # the backend is compared with strict fp32
        fp32 = with_backend(config, PLAIN)
        fp32_trainer, trainer = build_trainer(fp32), build_trainer(config)
        model = build_trainer(fp32).model
        reference = capture_step(fp32_trainer, batches, set_states)
        step = capture_step(trainer, batches, set_states)
        lines = _compare_modules(reference, step, model)
        called = {call.name for call in step.calls.values()}
        return StepDifference(
            get_backend(config.backend).label,
            config.model.name,
            config.data.source,
            sum(count_samples(inputs) for inputs, _ in batches),
            step.loss,
            reference.loss,
            step.scale,
            step.skipped,
            relative_error(list(step.updates.values()), list(reference.updates.values())),
            _first_output(reference, step),
            _first_gradient(step),
            lines,
            [n for n, m in model.named_modules() if n not in called and _has_forward(m)],
            get_backend(config.backend).dtype,
            _first_output_of(reference),
            _first_nonfinite_weights(model),
        )
    finally:
        set_random_states(host, states)


def _compare_modules(reference: CapturedStep, step: CapturedStep, model: nn.Module) -> list[ModuleDifference]:
    """Return the errors of every called module, in the order of the forward pass.

    Args:
        reference: The step in fp32.
        step: The step under the backend.
        model: The network in fp32, with the weights from before the steps.
    """
    own_errors, fp32_errors = measure_own_errors(step, model), measure_own_errors(reference, model)
    calls: dict[str, list[ModuleCall]] = defaultdict(list)
    for call in step.calls.values():
        calls[call.name].append(call)
    lines = []
    for name, module in model.named_modules():
        if name not in calls:
            continue
        worst = max(calls[name], key=lambda call: _largest(own_errors.errors[call.key].values(), -1.0))
        own = dict(own_errors.errors[worst.key])
        # If other modules use a weight, too, its gradient is not that of these calls alone.
        own_weights = [
            n
            for n, gradient in fp32_errors.gradients.items()
            if n.rpartition(".")[0] == name
            and n in own_errors.gradients
            and relative_error([gradient], [reference.gradients[n]], reference.scale).size < SAME_GRADIENT
        ]
        if own_weights:
            gradients = [step.gradients[n].double() * step.scale for n in own_weights]
            own["weights' gradients"] = relative_error(
                gradients, [own_errors.gradients[n] for n in own_weights]
            )
        pairs = [(call, reference.calls[call.key]) for call in calls[name] if call.key in reference.calls]
        outputs = [relative_error(floating_tensors(a.output), floating_tensors(b.output)) for a, b in pairs]
        scale = step.scale / reference.scale
        output_gradients = [_gradient_error(a, b, scale) for a, b in pairs if a.output_gradients]
        dtypes = dict.fromkeys(str(t.dtype) for call in calls[name] for t in floating_tensors(call.output))
        largest = [
            max(errors, key=lambda error: error.size, default=None) for errors in (outputs, output_gradients)
        ]
        lines.append(
            ModuleDifference(
                name or NETWORK,
                type(module).__name__,
                len(calls[name]),
                ", ".join(dtypes).replace("torch.", ""),
                own,
                worst.number,
                *largest,
            )
        )
    order = {call.name or NETWORK: index for index, call in reversed([*enumerate(step.calls.values())])}
    return sorted(lines, key=lambda line: order[line.title])


def _gradient_error(call: ModuleCall, reference: ModuleCall, scale: float) -> RelativeError:
    indices = [i for i in call.output_gradients if i in reference.output_gradients]
    own, fp32 = ([c.output_gradients[i] for i in indices] for c in (call, reference))
    return relative_error(own, fp32, scale)


def _largest(errors: Iterable[RelativeError], default: float) -> float:
    return max((error.size for error in errors), default=default)


def _has_forward(module: nn.Module) -> bool:
    """Return whether the module can be called: a ModuleList only holds others."""
    return type(module).forward is not nn.Module.forward


def _first_output(reference: CapturedStep, step: CapturedStep) -> str | None:
    """Return the first module in the forward pass with an output that is finite in fp32 only."""
    for key, call in step.calls.items():
        if key in reference.calls and math.isinf(
            relative_error(floating_tensors(call.output), floating_tensors(reference.calls[key].output)).size
        ):
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
    for call in (call for call in step.backward if not call.inner_calls):
        if not _are_finite(call.output_gradients.values()):
            return LOSS
        own = [g for name, g in step.gradients.items() if name.rpartition(".")[0] == call.name]
        if not _are_finite([*own, *call.input_gradients.values()]):
            return call.name or NETWORK
    names = [name for name, g in step.gradients.items() if not _are_finite([g])]
    return (names[0].rpartition(".")[0] or NETWORK) if names else None


def _are_finite(tensors: Iterable[Tensor]) -> bool:
    return all(bool(t.isfinite().all()) for t in tensors)  # sync: a diagnostic step, not a training loop


def summarize(difference: StepDifference) -> list[str]:
    """Return what the table does not show by itself, as sentences."""
    messages, lines = [], [line for line in difference.by_worst() if line.size > 0]
    if lines:
        first = lines[0]
        part, error = max(first.own.items(), key=lambda pair: pair[1].size)
        call = f" (call {first.call + 1} of {first.calls})" if first.calls > 1 else ""
        where = f"in the {PARTS.get(part, part)} of {first.title}{call}"
        if math.isinf(error.size):
            messages.append(f"inf or nan arises {where}")
        else:
            after = f"; next: {format_error(lines[1].size)} in {lines[1].title}" if lines[1:] else ""
            messages.append(f"the largest own error is {format_error(error.size)}, {where}{after}")
    if lines and math.isfinite(lines[0].size):
        messages.append(_large_errors(difference))
    if difference.first_output:
        messages.append(
            f"the first inf or nan of the forward pass is in the output of {difference.first_output}"
        )
    if difference.nonfinite_weights:
        messages.append(
            f"the weights of {difference.nonfinite_weights} were inf or nan before the step, so its values "
            "show no cause: look at an earlier step (--at RUN@STEP), or at the initial weights"
        )
    elif difference.first_output_fp32 == LOSS:
        messages.append(
            "the loss is inf or nan in fp32, too, and no module makes inf or nan of finite inputs: "
            "look at the data and the loss function"
        )
    elif difference.first_output_fp32:
        messages.append(
            f"fp32 overflows, too: the first inf or nan of the step in fp32 is in the output of "
            f"{difference.first_output_fp32}, so no backend repairs it"
        )
    if difference.first_gradient:
        where = (
            f"in the gradients of {difference.first_gradient}, with a loss scale of {difference.scale:,.6g}"
        )
        messages.append(f"the first inf or nan of the backward pass is {where}")
    if difference.skipped:
        messages.append("the optimizer step was skipped, so no weight changed")
    else:
        loss_error = format_error(abs(difference.loss - difference.loss_fp32))
        update_error = format_error(difference.update.size)
        messages.append(
            f"the loss differs by {loss_error}; the relative error of the weight update is {update_error}"
        )
        if difference.update.flushed >= MIN_FLUSHED:
            fraction = f"{100 * difference.update.flushed:.2g}%"
            messages.append(
                f"{fraction} of the weights did not change, although they change in fp32: lost updates"
            )
    flushed, title = max(
        ((line.gradient.flushed, line.title) for line in difference.lines if line.gradient),
        default=(0.0, ""),
    )
    if flushed >= MIN_FLUSHED:
        fraction = f"{100 * flushed:.2g}%"
        messages.append(
            f"gradient underflow: {fraction} of the gradient at {title} became 0, the most of all modules"
        )
    if difference.not_called:
        messages.append(f"modules that this step did not call: {some(difference.not_called)}")
    return messages


def _large_errors(difference: StepDifference) -> str:
    """Return which modules have a larger error than the rounding of the backend's dtype explains."""
    dtype = difference.dtype
    unit = torch.finfo(getattr(torch, dtype)).eps / 2
    rounding = f"{LARGE_ERROR} times the rounding error of {SHORT_DTYPES.get(dtype, dtype)}"
    rounding = f"{rounding} ({LARGE_ERROR} x {format_error(unit)})"
    large = [line.title for line in difference.by_worst() if line.size > LARGE_ERROR * unit]
    if not large:
        return f"no own error is large: none exceeds {rounding}"
    return f"large own errors, above {rounding}: {some(large)}"


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
    table = Table(
        title="Relative errors", title_justify="left", title_style="bold", header_style="dim", box=None
    )
    for head in ("module", "dtype", "own", "output", "gradient"):
        table.add_column(head, justify="left" if head in ("module", "dtype") else "right", overflow="fold")
    for line in lines if every else lines[:MAX_MODULES]:
        calls = f" x{line.calls}" if line.calls > 1 else ""
        dtypes = ", ".join(SHORT_DTYPES.get(dtype, dtype) for dtype in line.type.split(", "))
        own = "-" if line.size < 0 else format_error(line.size)
        sizes = ("-" if error is None else format_error(error.size) for error in (line.output, line.gradient))
        table.add_row(*(Text(printable(cell)) for cell in (f"{line.title}{calls}", dtypes, own, *sizes)))
    console.print(table)
    hidden = len(lines) - MAX_MODULES
    if hidden > 0 and not every:
        print_line(console, f"{plural(hidden, 'more module')} with --all")
    for explanation in LEGEND:
        print_line(console, explanation)
    for message in summarize(difference):
        print_line(console, f"- {message}")
    if file is not None:
        write_json(file, dataclasses.asdict(difference))
        print_line(console, f"Written: {file}")
