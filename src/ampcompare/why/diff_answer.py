"""Tells what `ampcompare why diff` has measured: the tables, and a sentence for each finding."""

import dataclasses
import math
from collections.abc import Iterable, Iterator

from rich.table import Table
from rich.text import Text

from ampcompare.runtime.formatting import number, plural, printable, some
from ampcompare.why.diff import LARGE_ERROR, ModuleDifference, StepDifference, compare_step
from ampcompare.why.errors import format_error
from ampcompare.why.lost_updates import LostUpdates
from ampcompare.why.nonfinite import LOSS, NETWORK
from ampcompare.why.output import Answer, make_table
from ampcompare.why.own_errors import GRADIENT, PASSED, WEIGHTS
from ampcompare.why.step import StepState

MAX_MODULES = 15  # rows of a table without --all
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
