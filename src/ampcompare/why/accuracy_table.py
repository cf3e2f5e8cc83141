"""The output of `ampcompare why diff KEY=A,B`."""

import dataclasses
import math
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from ampcompare.runtime.formatting import number, plural, printable, some
from ampcompare.why.accuracy import (
    FACTOR,
    GRADIENTS,
    LOSS,
    UPDATES,
    AccuracyComparison,
    GroupErrors,
    compare_accuracy,
)
from ampcompare.why.errors import format_error
from ampcompare.why.nonfinite import NETWORK
from ampcompare.why.output import Answer, make_table
from ampcompare.why.step import StepState
from ampcompare.why.value_pair import ValuePair

MAX_GROUPS = 15  # rows for each part without --all


def describe_verdict(result: AccuracyComparison) -> str:
    """Return in one line which way is less accurate, or that none is."""
    fault = result.fault
    if fault is None:
        return _describe_no_fault(result)
    less = result.names[fault.variant]
    other = result.names[1 - fault.variant]
    times = f"{number(fault.times, 2)} times" if math.isfinite(fault.times) else "inf or nan"
    errors = f"{format_error(fault.errors[0])} and {format_error(fault.errors[1])}"
    if fault.part == UPDATES:
        return (
            f"{less} is less accurate than {other}: {times}, in the updates only ({errors}); its gradients "
            "are no less accurate"
        )
    quantity = fault.part if fault.part == LOSS else f"{fault.part} of {fault.module or NETWORK}"
    if fault.place is None:
        return (
            f"{less} is less accurate than {other}: {times}, most in the {quantity} ({errors}); cause "
            "unknown: no module alone is less accurate"
        )
    return (
        f"{less} is less accurate than {other}: {times}, because of {fault.place or NETWORK} in "
        f"{fault.value}; most in the {quantity} ({errors})"
    )


def _describe_no_fault(result: AccuracyComparison) -> str:
    first, second = result.names
    whole = {row.part: row.errors for row in result.groups if not row.group}
    shown = next((part for part in (GRADIENTS, LOSS) if part not in result.not_judged), None)
    if shown is None:
        return f"neither {second} nor {first} can be judged: loss and gradients are inf or nan"
    errors = f"{format_error(whole[shown][1])} and {format_error(whole[shown][0])}"
    if shown == LOSS:
        return f"the loss of {second} is no less accurate than that of {first} ({errors})"
    return f"{second} is no less accurate than {first} ({errors})"


def summarize_accuracy(result: AccuracyComparison) -> list[str]:
    """Return what the table does not show, as sentences; the verdict is the last one."""
    messages = []
    first, second = result.names
    if result.left_out:
        messages.append(f"left out, because their random draws differ: {some(result.left_out)}")
    ways = zip(result.names, result.skipped, result.losses, result.scales, strict=True)
    for name, skipped, loss, scale in ways:
        if skipped:
            cause = "its loss is inf or nan"
            if math.isfinite(loss):
                smaller = max(1.0, min(256.0, scale / 256))
                cause = f"try a smaller one: precision.init_scale={smaller:g}"
            messages.append(
                f"{name} skipped the optimizer step, with a loss scale of {scale:,.6g}, so no updates are "
                f"compared; {cause}"
            )
    if GRADIENTS in result.not_judged:
        messages.append(f"the gradients are inf or nan in {first} and {second}, so they are not judged")
    return [*messages, describe_verdict(result)]


def explain_accuracy(state: StepState, pair: ValuePair, *, every: bool) -> Answer:
    """Return which of two ways to take a step is less accurate.

    Args:
        pair: The option that differs.
        every: Whether to show every group, not the MAX_GROUPS with the largest errors.

    Raises:
        UserError: If fp64 does not fit into memory, or if a step cannot be compiled.
    """
    result = compare_accuracy(state, pair)
    first, second = result.names
    setting = f"model {result.network}, data {result.data}, {plural(result.samples, 'sample')}"
    under = "" if pair.key == "backend" else f" under {result.backends[0]}"
    shown = result.groups if every else _largest_groups(result.groups)
    parts: list[Table | str] = [_error_table(shown, result.names)]
    if len(shown) < len(result.groups):
        parts.append(f"{plural(len(result.groups) - len(shown), 'more group')} with --all")
    bound = f"{FACTOR} times the error of the other or one rounding ({format_error(result.unit_roundoff)})"
    parts.append(f"less accurate: an error above {bound}, whichever is larger, in repeated steps")
    return Answer(
        heading=f"{first} and {second} compared with fp64{under} in {state.title}: {setting}",
        config=state.config,
        parts=[*parts, *(f"- {message}" for message in summarize_accuracy(result))],
        content=dataclasses.asdict(result),
    )


def _error_table(groups: Sequence[GroupErrors], names: tuple[str, str]) -> Table:
    table = make_table("Errors relative to fp64", "of", *names, "worst parameter", left=1)
    table.columns[-1].justify = "left"
    for row in groups:
        worst = ""
        if row.worst is not None and row.worst_errors is not None:
            worst = f"{row.worst}: {' and '.join(map(format_error, row.worst_errors))}"
        name = f"{row.part}, {row.group}" if row.group else row.part
        cells = (name, *map(format_error, row.errors), worst)
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def _largest_groups(groups: Sequence[GroupErrors]) -> list[GroupErrors]:
    """Return the rows of the loss and of all parameters, and the groups with the largest errors."""
    kept = []
    for part in (LOSS, GRADIENTS, UPDATES):
        rows = [row for row in groups if row.part == part and row.group]
        largest = sorted(rows, key=lambda row: -max(row.errors))[:MAX_GROUPS]
        kept += [row for row in groups if row.part == part and (not row.group or row in largest)]
    return kept
