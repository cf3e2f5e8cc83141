"""The comparison as text: on the terminal, as Markdown, and as a block for a pull request."""

from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ampcompare.analysis.analysis import Analysis
from ampcompare.analysis.reproduction import ReproductionResult
from ampcompare.report.comparison_table import Cell, Column, ComparisonTable, comparison_table
from ampcompare.report.palette import styles_of
from ampcompare.runtime.formatting import capital, listed, printable, some

ESCAPES = str.maketrans({c: f"\\{c}" for c in "\\`*_{}[]<>|#&~$"})
MAX_WORD = len("apex_o1_bf16")  # a longer word of a label is broken
MAX_VALUE_CHARS = len("CI −11.11 to +12.91")  # of a line of a cell that is not broken
MAX_HEAD_CHARS = len("Energy per image")  # of a head that is not broken
MIN_VERDICT_CHARS = len("inconclusive")
GAP = 2  # between two columns
MAX_COLUMNS = 3  # that fit into 80 characters beside label and verdict
MAX_NAMED = 6
SHOWN_CAVEATS = 3  # gravest first; the page has the others under "Evidence"


def print_table(analysis: Analysis, console: Console) -> None:
    """Print the verdict, its basis, the table and the gravest caveats, in 80 columns."""
    table = comparison_table(analysis)
    _print(console, [analysis.headline], "bold")
    _print(console, [analysis.recommendation.text, analysis.costs])
    _print(console, [analysis.basis], "dim")
    for columns in (table.columns[:MAX_COLUMNS], table.columns[MAX_COLUMNS:]):
        if columns:
            console.print()
            console.print(_grid(table, columns, analysis, console.width))
    console.print()
    _print(console, [table.caption, *_reasons(table)])
    if analysis.reproduction is not None:
        _print(console, [analysis.reproduction.headline], "bold")
        _print(console, [f"- {line}" for line in _reproduction_lines(analysis.reproduction)])
    _print(console, analysis.numerics.values())
    _print(console, [f"- {remark}" for remark in analysis.caveats[:SHOWN_CAVEATS]])
    _print(console, [*analysis.how_read, analysis.advice], "dim")


def _print(console: Console, lines: Iterable[str], style: str = "") -> None:
    for line in lines:
        if line:
            console.print(Text(printable(line), style=style))


def _grid(table: ComparisonTable, columns: Sequence[Column], analysis: Analysis, width: int) -> Table:
    """Return some columns as a table of this width; the verdict stands beside the first columns only."""
    has_verdict = columns[0] is table.columns[0]
    # Without edges: a name and its values take all of 80 columns.
    grid = Table(
        box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False, collapse_padding=True
    )
    words = [word for text in (table.head, *(row.label for row in table.rows)) for word in text.split()]
    label = min(MAX_WORD, max(map(len, words), default=0))
    verdict = MIN_VERDICT_CHARS if has_verdict else 0
    room = width - GAP * (len(columns) + has_verdict)
    values = [_value_width(column, table) for column in columns]
    if label + sum(values) + verdict > room:
        values = [min(MAX_VALUE_CHARS, chars) for chars in values]
    label_room = room - sum(values) - verdict
    is_narrow = label > label_room  # then values are broken, too: Rich shares what there is
    grid.add_column(printable(table.head), overflow="fold", max_width=None if is_narrow else label_room)
    for column, chars in zip(columns, values, strict=True):
        grid.add_column(printable(column.head), overflow="fold", width=None if is_narrow else chars)
    if has_verdict:
        grid.add_column("Verdict", overflow="fold")
    styles = styles_of(analysis)
    for row in table.rows:
        cells = [Text(printable(row.label), style=styles[row.label].colour)]
        for column in columns:
            lines = _cell_lines(row.cells[column.key])
            cells.append(Text("\n".join(line for line in lines if line)))
        if has_verdict:
            cells.append(Text("\n".join(part for part in (row.verdict, row.runs) if part)))
        grid.add_row(*cells)
    return grid


def _value_width(column: Column, table: ComparisonTable) -> int:
    """Return the width at which neither a line of a cell nor a word of the head is broken."""
    lines = [line for row in table.rows for line in _cell_lines(row.cells[column.key])]
    head = [column.head] if len(column.head) <= MAX_HEAD_CHARS else column.head.split()
    return max(map(len, [*lines, *head]))


def _cell_lines(cell: Cell) -> list[str]:
    """Return the lines of a cell: value, interval, the group's own value, and why nothing is shown."""
    return [f"{cell.text} {cell.unit}".strip(), cell.span, cell.also, cell.answer if cell.why else ""]


def _reasons(table: ComparisonTable) -> Iterator[str]:
    """Yield a sentence for each reason why cells show nothing."""
    nouns_of_rows: dict[tuple[str, str], dict[str, list[str]]] = {}  # by answer and reason, then by label
    for row in table.rows:
        for column in table.columns:
            cell = row.cells[column.key]
            if cell.why:
                nouns_of_row = nouns_of_rows.setdefault((cell.answer, cell.why), {})
                nouns_of_row.setdefault(row.label, []).append(column.noun)
    for (answer, reason), nouns_of_row in nouns_of_rows.items():
        labels_by_nouns: dict[str, list[str]] = {}
        for label, nouns in nouns_of_row.items():
            labels_by_nouns.setdefault(listed(nouns), []).append(label)
        names = "; ".join(
            f"{nouns} of {some(labels, MAX_NAMED)}" for nouns, labels in labels_by_nouns.items()
        )
        yield f"{capital(answer)}: {names}, because {reason}."


def _reproduction_lines(result: ReproductionResult) -> Iterator[str]:
    """Yield what became of each published value, and which runs did not count."""
    yield from (row.sentence for row in result.rows)
    if result.differences:
        yield f"differences from the publication: {listed(result.differences)}"
    yield from (f"left out: {line}" for line in result.match.left_out)


def to_markdown(analysis: Analysis) -> str:
    """Return verdict, table and caveats as Markdown, to paste into a pull request or a paper."""
    table = comparison_table(analysis)
    paragraphs = [
        [f"# {_escape(analysis.headline)}"],
        *_answer_paragraphs(analysis),
        [_escape(analysis.basis)],
        _markdown_table(table),
        [_escape(" ".join([table.caption, *_reasons(table)]))],
        *_gate_paragraphs(analysis),
        _bullets(analysis.numerics.values()),
    ]
    if analysis.caveats:
        paragraphs += [["Caveats:"], _bullets(analysis.caveats)]
    paragraphs.append(_bullets([*analysis.methods, *analysis.notes, analysis.advice]))
    return _join_paragraphs(paragraphs)


def to_summary(analysis: Analysis) -> str:
    """Return a Markdown block for a pull request: verdict, gates and table."""
    table = comparison_table(analysis)
    paragraphs = [
        [f"### {_escape(analysis.headline)}"],
        *_answer_paragraphs(analysis),
        *_gate_paragraphs(analysis),
        _markdown_table(table),
        [_escape(f"{analysis.basis}. {table.caption}")],
    ]
    return _join_paragraphs(paragraphs)


def _join_paragraphs(paragraphs: Sequence[Sequence[str]]) -> str:
    """Return the paragraphs, each given by its lines, with an empty line between them."""
    return "\n\n".join("\n".join(lines) for lines in paragraphs if lines) + "\n"


def _answer_paragraphs(analysis: Analysis) -> list[list[str]]:
    """Return what to use, and what it costs, each as a paragraph where there is such an answer."""
    return [[_escape(text)] for text in (analysis.recommendation.text, analysis.costs) if text]


def _markdown_table(table: ComparisonTable) -> list[str]:
    rows = [[table.head, *(column.head for column in table.columns), "Verdict", "Runs"]]
    for row in table.rows:
        cells = [_markdown_cell(row.cells[column.key]) for column in table.columns]
        rows.append([row.label, *cells, row.verdict, row.runs])
    lines = [f"| {' | '.join(map(_escape, row))} |" for row in rows]
    return [lines[0], f"|{' --- |' * len(rows[0])}", *lines[1:]]


def _markdown_cell(cell: Cell) -> str:
    value, span, *more = _cell_lines(cell)
    first = f"{value} ({span})" if span else value
    return ", ".join(part for part in (first, *more) if part)


def _gate_paragraphs(analysis: Analysis) -> list[list[str]]:
    """Return the gates with their results, and which published values are reproduced."""
    parts: list[list[str]] = []
    if analysis.gate_results:
        required = []
        for answer in analysis.gate_results:
            mark = "passed" if answer.is_shown else "**not passed**"
            gate = _escape(f"{answer.gate.label}: {answer.gate.text} ({answer.why})")
            required.append(f"- {mark}: {gate}")
        parts += [["Requirements:"], required]
    result = analysis.reproduction
    if result is not None:
        source = _escape(f"{result.publication.title}. {result.publication.source}")
        parts += [[f"**{_escape(result.headline)}** ({source})"], _bullets(_reproduction_lines(result))]
    return parts


def _bullets(lines: Iterable[str]) -> list[str]:
    return [f"- {_escape(line)}" for line in lines if line]


def _escape(text: str) -> str:
    """Return the text on one line without Markdown syntax; names of runs may hold any character."""
    return printable(" ".join(text.splitlines())).translate(ESCAPES)
