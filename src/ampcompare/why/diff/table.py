"""The difference in the terminal: what is worst first, then what there is to say of it."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ampcompare.report.text import SHAPE, in_lines
from ampcompare.report.words import printable
from ampcompare.why.diff.answer import CHANCE, Difference
from ampcompare.why.diff.compare import Errors, Line
from ampcompare.why.diff.measures import Measure
from ampcompare.why.diff.words import number, sentences, short

MOST = 15  # modules that are shown
WIDEST_NUMBER = 7
OTHER_ORDER = "other order"
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
        row = [_name(line, is_wide), short(kind), *(_own(errors) for errors in sides)]
        row += [_size(errors.output if errors else None) for errors in sides]
        row += [_size(errors.gradient if errors else None) for errors in sides]
        if is_wide:
            row += [_size(errors.parameters if errors else None) for errors in sides]
            row += [_size(errors.update if errors else None) for errors in sides]
        table.add_row(*(Text(printable(cell)) for cell in row))
    console.print(table)
    rest = len(lines) - len(shown)
    note = "relative errors, by norm, against fp64; its own: on fp64's own inputs, so that none has travelled"
    more = f"; {rest} modules more with --all" if rest else ""
    console.print(Text(note + more, style="dim"))
    if found.drifts:
        _print_drifts(found, console)
    for sentence in sentences(found):
        console.print(Text(printable(f"- {sentence}")))


def _print_drifts(found: Difference, console: Console) -> None:
    """How far the weights have parted by each step, and the losses."""
    table = Table(header_style="dim", **SHAPE)
    table.add_column("after\nstep", justify="right", no_wrap=True)
    for what in ("weights", "loss"):
        for number_, (one, other) in enumerate(found.drifts):
            head = what if number_ == 0 else ""
            pair = in_lines(printable(f"{one}, {OTHER_ORDER if other == CHANCE else other}"), WIDEST_NUMBER)
            table.add_column(f"{head}\n{pair}", justify="right", no_wrap=True)
    for step in _steps(found.steps):
        weights = [drift.weights[step - 1] for drift in found.drifts.values()]
        losses = [drift.losses[step - 1] for drift in found.drifts.values()]
        cells = ["-" if value is None else number(abs(value)) for value in (*weights, *losses)]
        table.add_row(str(step), *cells)
    console.print(table)
    note = "weights: the difference over the way that the second went; loss: the difference in size"
    console.print(Text(note, style="dim"))


def _steps(count: int) -> list[int]:
    """The first and the last step, and between them each after about twice as many."""
    doubled = [2**power for power in range(count.bit_length())]
    return [step for step in doubled if step < count] + [count]


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
