"""The difference in the terminal: what is worst first, then what there is to say of it."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ampcompare.report.terminal import SHAPE, in_lines
from ampcompare.report.words import printable
from ampcompare.why.diff.command import CHANCE, Difference, own_size
from ampcompare.why.diff.compare import Errors, Line, Side
from ampcompare.why.diff.measures import Measure

MOST = 15  # modules that are shown
SHORT = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64", "": "-"}
NOT_FINITE = "inf/nan"
LEAST_SHARE = 1e-4  # of the elements of a tensor that is spoken of
WIDEST_NUMBER = 7
WIDE = 120  # columns of a terminal that has room for more
COLUMNS = ("its own", "output", "gradient")
WIDE_COLUMNS = ("weights", "update")


def print_difference(found: Difference, console: Console, *, every: bool = False) -> None:
    """Print the table and the sentences. Fits 80 columns for two backends; a wider terminal has more."""
    lines = found.by_worst()
    shown = lines if every else lines[:MOST]
    names = " and ".join(side.label for side in found.sides)
    what = f"{names} beside fp64: {found.network} on {found.data}, {found.samples} samples, seed {found.seed}"
    where = f"{found.environment['device_name']}, PyTorch {found.environment['torch']}"
    console.print(Text(printable(what), style="bold"))
    console.print(Text(printable(where), style="dim"))
    is_wide = console.width >= WIDE
    table = Table(header_style="dim", **SHAPE)
    table.add_column("module", overflow="fold", min_width=12)
    table.add_column("in", no_wrap=True)
    for column in (*COLUMNS, *(WIDE_COLUMNS if is_wide else ())):
        for number_, side in enumerate(found.sides):
            head, label = column if number_ == 0 else "", in_lines(printable(side.label), WIDEST_NUMBER)
            table.add_column(f"{head}\n{label}", justify="right", no_wrap=True)
    for line in shown:
        sides = [line.errors.get(side.label) for side in found.sides]
        kind = _type(line, found.first)
        row = [_name(line, is_wide), SHORT.get(kind, kind), *(_own(errors) for errors in sides)]
        row += [_size(errors and errors.output) for errors in sides]
        row += [_size(errors and errors.gradient) for errors in sides]
        if is_wide:
            row += [_size(errors and errors.parameters) for errors in sides]
            row += [_size(errors and errors.update) for errors in sides]
        table.add_row(*(Text(printable(cell)) for cell in row))
    console.print(table)
    rest = len(lines) - len(shown)
    note = "relative errors, by norm, against fp64; its own: on fp64's own inputs, so that none has travelled"
    more = f"; {rest} modules more with --all" if rest else ""
    console.print(Text(note + more, style="dim"))
    for sentence in sentences(found):
        console.print(Text(printable(f"- {sentence}")))


def _name(line: Line, is_wide: bool) -> str:
    calls = f" x{line.calls}" if line.calls > 1 else ""
    return f"{line.title}{f' {line.kind}' if is_wide else ''}{calls}"


def _type(line: Line, label: str) -> str:
    return line.errors[label].type if label in line.errors else ""


def _own(errors: Errors | None) -> str:
    if errors is None or errors.own.size < 0:
        return "?" if errors and errors.own.why else "-"
    return number(errors.own.size)


def _size(measure: Measure | None) -> str:
    return "-" if measure is None else number(measure.size)


def number(value: float) -> str:
    """`4.1e-4`, `0` and `inf/nan`.

    >>> number(0.00041)
    '4.1e-4'
    """
    if value == 0:
        return "0"
    if value == float("inf"):
        return NOT_FINITE
    digits, _, power = f"{value:.1e}".partition("e")
    return f"{digits}e{int(power)}" if int(power) else digits


def sentences(found: Difference) -> list[str]:
    """What the table does not say by itself, a sentence each."""
    said = [*_worst(found)]
    for side in found.sides:
        said += _of_side(side, found)
    said += _shares(found)
    if found.not_called:
        said.append(f"not called in this step: {_listed(found.not_called)}")
    return said + _drifted(found)


def _worst(found: Difference) -> list[str]:
    lines = [line for line in found.by_worst() if own_size(line, found.first) > 0]
    if not lines:
        return []
    first = lines[0]
    own = first.errors[found.first].own
    parts = (("output", own.output), ("gradient", own.gradient), ("parameters' gradients", own.parameters))
    of, worst = max(((w, m) for w, m in parts if m), key=lambda pair: pair[1].size)
    call = f" (call {first.errors[found.first].call + 1} of {first.calls})" if first.calls > 1 else ""
    size = number(worst.size)
    if worst.ulps is not None:
        size += f", in the median {worst.ulps:.3g} ulps of {SHORT.get(worst.type, worst.type)}"
    said = f"most error arises in {first.title}{call}, under {found.first}: {size}, of its {of}"
    return [
        f"{said}; next {lines[1].title}, {number(own_size(lines[1], found.first))}" if lines[1:] else said
    ]


def _of_side(side: Side, found: Difference) -> list[str]:
    said = []
    if side.first_output:
        said.append(f"{side.label}: the first output that is not finite is that of {side.first_output}")
    if side.first_gradient:
        at = f" at the loss scale of {side.scale:,.6g}" if side.scale != 1 else ""
        said.append(
            f"{side.label}: the first gradient that is not finite comes from {side.first_gradient}{at}"
        )
    if side.skipped:
        said.append(f"{side.label}: the step was skipped, nothing was updated")
    elif side.update is not None:
        lost = (
            f", {100 * side.update.flushed:.2g} % of the weights stand still"
            if side.update.flushed >= LEAST_SHARE
            else ""
        )
        cosine = "" if side.update.cosine is None else f" (cosine {cosine_of(side.update.cosine)})"
        loss = f"the loss is off by {number(abs(side.loss - found.loss))}"
        said.append(f"{side.label}: {loss}, the whole update by {number(side.update.size)}{cosine}{lost}")
    if side.only_here:
        said.append(f"{side.label} calls what fp64 does not: {_listed(side.only_here)}")
    if side.differs:
        ops = ", ".join(side.differs)
        said.append(
            f"{side.label}: random numbers inside {ops} are others than fp64's, and its errors larger"
        )
    return said


def cosine_of(value: float) -> str:
    """`0.93`, and near 1 how near: `1 - 5.0e-6`."""
    return f"{value:.3g}" if value < 0.99 else f"1 - {number(1 - value)}"


def _shares(found: Difference) -> list[str]:
    """Where most is flushed to zero and at the largest number, for each backend."""
    said = []
    for side in found.sides:
        for what, attribute in (("flushed to zero", "flushed"), ("at the largest number", "saturated")):
            worst, where = 0.0, ""
            for line in found.lines:
                if (errors := line.errors.get(side.label)) is None:
                    continue
                for of, measure in (
                    ("output", errors.output),
                    ("gradient", errors.gradient),
                    ("parameters' gradients", errors.parameters),
                ):
                    share = 0.0 if measure is None else getattr(measure, attribute)
                    if share > worst:
                        worst, where = share, f"the {of} of {line.title}"
            if worst >= LEAST_SHARE:
                said.append(f"{side.label}: most is {what} in {where}, {100 * worst:.2g} %")
    return said


def _drifted(found: Difference) -> list[str]:
    said = []
    for (one, other), drift in found.drifts.items():
        after = f"after {found.steps} steps {one} and {other} differ in their weights by"
        said.append(
            f"{after} {_part(drift.last)} of the way they went ({_part(drift.weights[0])} after the first)"
        )
    chance, between = found.chance, found.between
    if found.drifts and chance is None:
        said.append("the batches come in one order: there is no other one to say what chance does")
    elif chance and between and chance.last and between.last is not None:
        ratio = between.last / chance.last
        more = "less than chance" if ratio < 1 else "more than chance"
        said.append(f"the backends part by {more}: {ratio:.2g} times what {CHANCE} does")
    for label, count in found.skipped.items():
        if count:
            said.append(f"{label}: {count} of {found.steps} steps were skipped")
    return said


def _part(size: float | None) -> str:
    return "what is not finite" if size is None else number(size)


def _listed(names: list[str] | tuple[str, ...], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
