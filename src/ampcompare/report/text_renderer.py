"""The comparison as text: on the terminal, as Markdown, and as a block for a pull request."""

from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from ampcompare.analysis.analysis import Analysis
from ampcompare.analysis.reproduction import ReproductionResult
from ampcompare.report.comparison_table import Cell, Column, Table, comparison_table
from ampcompare.report.palette import styles_of
from ampcompare.runtime.formatting import capital, listed, printable, some

ESCAPES = str.maketrans({c: f"\\{c}" for c in "\\`*_{}[]<>|#&~$"})
LONGEST_WORD = len("apex_o1_bf16")  # of a label that is never broken
MOST_COLUMNS = 3  # of figures that fit into 80 columns beside label and verdict
MOST_NAMED = 6


def print_table(analysis: Analysis, console: Console) -> None:
    """Print the finding, what it is of, the table, and the reasons for doubt. Fits 80 columns."""
    table = comparison_table(analysis)
    _print(console, [analysis.headline], "bold")
    _print(console, [analysis.basis], "dim")
    for columns in (table.columns[:MOST_COLUMNS], table.columns[MOST_COLUMNS:]):
        if columns:
            console.print()
            console.print(_grid(table, columns, analysis))
    console.print()
    _print(console, [table.caption, *_reasons(table)])
    if analysis.reproduction is not None:
        _print(console, [analysis.reproduction.headline], "bold")
        _print(console, [f"- {line}" for line in _judged(analysis.reproduction)])
    _print(console, analysis.numerics.values())
    _print(console, [f"- {remark}" for remark in analysis.caveats])
    _print(console, [*analysis.notes, analysis.advice], "dim")


def _print(console: Console, lines: Iterable[str], style: str = "") -> None:
    for line in lines:
        if line:
            console.print(Text(printable(line), style=style))


def _grid(table: Table, columns: Sequence[Column], analysis: Analysis) -> Grid:
    is_first = columns[0] is table.columns[0]
    # Without edges: a name and its figures take all of 80 columns.
    grid = Grid(
        box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False, collapse_padding=True
    )
    longest = max((len(word) for row in table.rows for word in row.label.split()), default=0)
    grid.add_column(printable(table.head), overflow="fold", min_width=min(longest, LONGEST_WORD))
    for column in columns:
        grid.add_column(printable(column.head), overflow="fold")
    if is_first:
        grid.add_column("verdict", overflow="fold")
    styles = styles_of(analysis)
    for row in table.rows:
        name = Text(printable(row.label), style=styles[row.label].colour)
        cells = [Text("\n".join(filter(None, _parts(row.cells[column.key])))) for column in columns]
        verdict = Text("\n".join(part for part in (row.badge, row.runs) if part))
        grid.add_row(name, *cells, *([verdict] if is_first else []), end_section=True)
    return grid


def _parts(cell: Cell) -> list[str]:
    """What a cell says, a part a line: figure, interval, the group's own figure, or that nothing is told."""
    return [f"{cell.text} {cell.unit}".strip(), cell.span, cell.also, cell.answer if cell.why else ""]


def _reasons(table: Table) -> Iterator[str]:
    """Why what is not told cannot be, a sentence for each reason."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for row in table.rows:
        for column in table.columns:
            cell = row.cells[column.key]
            if cell.why:
                name = column.head.partition(",")[0]
                found.setdefault((cell.answer, cell.why), {}).setdefault(row.label, []).append(name)
    for (what, why), of in found.items():
        said = some([f"{listed(names)} of {label}" for label, names in of.items()], MOST_NAMED)
        yield f"{capital(what)}, because {why}: {said}."


def _judged(beside: ReproductionResult) -> Iterator[str]:
    """What became of each published figure, and which runs were no evidence."""
    yield from (row.sentence for row in beside.rows)
    if beside.differences:
        yield f"what differs: {listed(beside.differences)}"
    yield from (f"left out: {line}" for line in beside.match.left_out)


def to_markdown(analysis: Analysis) -> str:
    """The finding, a table to paste into a pull request or paper, and the reasons for doubt."""
    table = comparison_table(analysis)
    head = [[f"# {_safe(analysis.headline)}"], [_safe(analysis.basis)], _markdown_table(table)]
    said = [_safe(" ".join([table.caption, *_reasons(table)]))]
    doubts = [["Before you quote a figure:"], _list(analysis.caveats)] if analysis.caveats else []
    rest = _list([*analysis.notes, analysis.advice])
    return _paragraphs(*head, said, *_asked(analysis), _list(analysis.numerics.values()), *doubts, rest)


def to_summary(analysis: Analysis) -> str:
    """A block for a pull request: the finding, whether each requirement is shown, the table."""
    table, head = comparison_table(analysis), [f"### {_safe(analysis.headline)}"]
    said = [_safe(f"{analysis.basis}. {table.caption}")]
    return _paragraphs(head, *_asked(analysis), _markdown_table(table), said)


def _paragraphs(*parts: Sequence[str]) -> str:
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def _markdown_table(table: Table) -> list[str]:
    rows = [[table.head, *(column.head for column in table.columns), "verdict", "runs"]]
    for row in table.rows:
        cells = [_parts(row.cells[column.key]) for column in table.columns]
        told = [[f"{own} ({span})" if span else own, *more] for own, span, *more in cells]
        rows.append([row.label, *(", ".join(filter(None, parts)) for parts in told), row.badge, row.runs])
    lines = [f"| {' | '.join(map(_safe, row))} |" for row in rows]
    return [lines[0], f"|{' --- |' * len(rows[0])}", *lines[1:]]


def _asked(analysis: Analysis) -> list[list[str]]:
    """What was required and whether it is shown; which published figures are reproduced."""
    required = []
    for answer in analysis.gate_results:
        mark = "shown" if answer.is_shown else "**not shown**"
        required.append(f"- {mark}: {_safe(f'{answer.gate.label}: {answer.gate.text} ({answer.why})')}")
    parts = [["Required:"], required] if required else []
    if (beside := analysis.reproduction) is not None:
        source = _safe(f"{beside.publication.title}. {beside.publication.source}")
        parts += [[f"**{_safe(beside.headline)}** ({source})"], _list(_judged(beside))]
    return parts


def _list(lines: Iterable[str]) -> list[str]:
    return [f"- {_safe(line)}" for line in lines if line]


def _safe(text: str) -> str:
    """The text as itself on one line: names of runs may hold anything, what turns a line around included."""
    return printable(" ".join(text.splitlines())).translate(ESCAPES)
