"""The comparison as a table, of which terminal, Markdown and page show the same cells; runs; machines.

No figure is computed here: a cell words an estimate of the analysis, and says where it lies on its column's
axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ampcompare import metrics
from ampcompare.records.tree import as_text, flatten
from ampcompare.report import words
from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.analysis.comparison import (
    CANNOT_TELL,
    COLUMNS,
    ENERGY,
    MEMORY,
    NOT_COMPARED,
    QUALITY,
    SPEED,
    TIME,
    Comparison,
)
from ampcompare.report.axis import Axis, Mark, axis_of
from ampcompare.report.runs import table
from ampcompare.report.runs.groups import Group
from ampcompare.report.runs.metric import DEFAULT_METRIC, ComparedMetric
from ampcompare.report.runs.table import environment_of
from ampcompare.report.statistics.estimate import Estimate

MOST_VALUES = 3  # of a fact of the machines that is not the same for all
NOT_REACHED = "not reached"


@dataclass(frozen=True)
class Cell:
    """`text` is the figure: of the baseline as it is, with its `unit`; else beside the baseline's, with its
    interval as `span` and as `also` the group's own figure. `answer` is what that shows (`faster`), or
    `cannot tell` and the like, and then `why`; `is_open`: its mark is hollow.
    """

    text: str
    unit: str = ""
    span: str = ""
    mark: Mark | None = None
    also: str = ""
    answer: str = ""
    why: str = ""
    is_open: bool = False


@dataclass(frozen=True)
class Column:
    """One question: `key` is that of its cells, `axis` that of their marks, None where no cell has one."""

    key: str
    head: str
    axis: Axis | None


@dataclass(frozen=True)
class Row:
    """One group. `chip` is the verdict in a few words, `look` its colour, `runs` how many there are of it."""

    label: str
    meaning: str
    cells: Mapping[str, Cell]
    chip: str
    look: str
    runs: str


@dataclass(frozen=True)
class Table:
    """The comparison; `head` is over the labels. The `caption` says what the intervals are."""

    head: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    caption: str


@dataclass(frozen=True)
class TextTable:
    """A table of nothing but text."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class _Shape:
    """How the comparisons of a column are shown: from an estimate's value to a number, to its text."""

    show: Callable[[float, int], str]
    digits: Callable[[float], int]
    unit: str = ""
    shown: Callable[[float], float] = float
    null: float = 0.0

    def text(self, value: float) -> str:
        number = self.shown(value)
        return f"{self.show(number, self.digits(number))}{self.unit}"

    def span(self, found: Estimate, marks: tuple[float, ...]) -> str:
        """The interval, with the digits that tell its ends from each other and from the marks."""
        ends = found.seen if found.low is None or found.high is None else (found.low, found.high)
        low, high = (self.shown(end) for end in ends)
        least = min(self.digits(end) for end in (self.shown(found.value), low, high))
        apart = (low, high, *(self.shown(mark) for mark in marks))
        digits = words.precision_apart(
            (low, high), apart, self.show, max(least, self.digits(self.shown(found.value)))
        )
        return words.interval(low, high, lambda end: self.show(end, digits), self.unit)


_TIMES = _Shape(words.number, lambda number: 3, "×", null=1.0)
_CHANGE = _Shape(
    words.signed, lambda number: 0 if abs(number) >= 9.95 else 1, " %", lambda ratio: (ratio - 1) * 100, 1.0
)
_DIFFERENCE = _Shape(words.signed, lambda number: 2)
SHAPES = {SPEED: _TIMES, MEMORY: _CHANGE, QUALITY: _DIFFERENCE, ENERGY: _CHANGE, TIME: _CHANGE}


def comparison_table(analysis: Analysis) -> Table:
    """A row a group, the baseline's first; columns of energy and time to target only where recorded."""
    groups = sorted(analysis.groups, key=lambda g: g.value != analysis.baseline_value)
    always = (SPEED, MEMORY, QUALITY)
    asked = [q for q in COLUMNS if q in always or any(q in c.estimates for c in analysis.comparisons)]
    rows = tuple(_row(group, asked, analysis) for group in groups)
    keys = [words.printable(key.rpartition(".")[2] or key) for key in analysis.keys]
    columns = tuple(Column(q, _head(q, analysis), _axis(q, rows, analysis.metric)) for q in asked)
    return Table(", ".join(keys), columns, rows, analysis.caption)


def _head(question: str, analysis: Analysis) -> str:
    metric, target = analysis.metric, analysis.metric.show_value(analysis.target)
    name = "accuracy" if metric.key == DEFAULT_METRIC else words.printable(metric.name)
    return {
        SPEED: "speed",
        MEMORY: "peak memory",
        QUALITY: f"{name}, {metric.unit}" if metric.unit else name,
        ENERGY: f"energy per {analysis.quantities.item}",
        TIME: f"time to {target}",
    }[question]


def _row(group: Group, questions: list[str], analysis: Analysis) -> Row:
    found = analysis.comparison(group.label)
    cells = {q: _cell(q, group, found, analysis) for q in questions}
    said, share = group.outcomes.words, group.outcomes.failures
    if share and share.k:
        said += f" ({100 * share.low:.0f} to {100 * share.high:.0f} %)"
    meaning = analysis.styles[group.label].meaning
    return Row(group.label, meaning, cells, analysis.chip(group), analysis.look(group), said)


def _cell(question: str, group: Group, found: Comparison | None, analysis: Analysis) -> Cell:
    text, unit = own_figure(question, group, analysis)
    estimate = found.estimates.get(question) if found else None
    claim = found.claims.get(question) if found else None
    if found is None or estimate is None:
        why = (
            (found.refusal or (claim.why if claim else ""))
            if found and COLUMNS[question] in group.figures
            else ""
        )
        return Cell(text, unit, answer=NOT_COMPARED if why else "", why=why)
    shape, margin = SHAPES[question], _margin(question, analysis.metric)
    low, high = (estimate.low, estimate.high) if estimate.has_interval else estimate.seen
    span = shape.span(estimate, (shape.null, *(margin or ())))
    if not estimate.has_interval:
        span = f"seen {span}" if low != high else ""
    mark = Mark(estimate.value, low, high, is_seen=not estimate.has_interval)
    if claim is None:  # of energy, time and the control nothing is claimed
        is_open = bool(found.claims) and not estimate.has_interval
        answer, why = (CANNOT_TELL, f"n = {estimate.n}") if is_open else ("", "")
    else:
        answer, why, is_open = claim.answer, claim.why, not claim.shown
    also = f"{text} {unit}".strip()
    return Cell(shape.text(estimate.value), "", span, mark, also, answer, why, is_open)


def own_figure(question: str, group: Group, analysis: Analysis) -> tuple[str, str]:
    """A group's own figure and its unit, as they are shown: `554` and `images/s`."""
    units, column = analysis.quantities, COLUMNS[question]
    if (found := group.figures.get(column)) is None:
        was_timed = (
            question == TIME and group.rows[table.SECONDS].notna().any() and not group.rows[table.JUMPS].any()
        )
        return (NOT_REACHED if was_timed and not group.is_unfinished else words.NOTHING), ""
    return {
        SPEED: lambda v: (words.number(v), units.speed),
        MEMORY: lambda v: (units.show_memory(v), units.memory),
        QUALITY: lambda v: (analysis.metric.show_value(v), ""),
        ENERGY: lambda v: (words.number(v), "J"),
        TIME: lambda v: (words.duration(v), ""),
    }[question](found.value)


def _margin(question: str, metric: ComparedMetric) -> tuple[float, float] | None:
    return (-metric.margin, metric.margin) if question == QUALITY and metric.margin is not None else None


def _axis(question: str, rows: tuple[Row, ...], metric: ComparedMetric) -> Axis | None:
    shape = SHAPES[question]
    marks = [mark for row in rows if (mark := row.cells[question].mark)]
    if not marks:
        return None

    def label(tick: float) -> str:
        number = round(shape.shown(tick), 9)
        sign = "" if shape.null == number or shape is _TIMES else "+" if number > 0 else "−" if number else ""
        size = f"{abs(number):,g}" if 1e-4 <= abs(number) < 1e9 or not number else f"{abs(number):.0e}"
        return f"{sign}{size}{shape.unit if number or shape is _TIMES else ''}"

    return axis_of(marks, shape.null, label, log=question != QUALITY, margin=_margin(question, metric))


def runs_table(analysis: Analysis) -> TextTable:
    """A row a run, as it is recorded."""
    metric, units = analysis.metric, analysis.quantities
    heads = (
        "run",
        "group",
        "seed",
        "outcome",
        "epochs",
        units.speed,
        units.peak,
        metric.name,
        "trained",
        "problems",
    )
    rows = []
    for place, run in analysis.table.iterrows():
        cells = (
            f"{run[table.NAME]} ({run[table.RUN].id})",
            analysis.group_of(place).label,
            run[table.SEED] or words.NOTHING,
            f"{run[table.OUTCOME]}: {run[table.WHY]}" if run[table.WHY] else run[table.OUTCOME],
            _known(words.count, run[table.EPOCHS]),
            _known(words.number, run[table.SPEED]),
            _known(units.show_memory, run[table.MEMORY]),
            _known(metric.show_value, run[table.QUALITY]),
            _known(words.duration, run[table.SECONDS]),
            " ".join(run[table.PROBLEMS]),
        )
        rows.append(tuple(words.printable(cell) for cell in cells))
    return TextTable(tuple(words.printable(head) for head in heads), tuple(rows))


def _known(show: Callable[[float | None], str], value: float) -> str:
    return show(value) if value == value else words.NOTHING  # NaN: not recorded


def machines_table(analysis: Analysis) -> TextTable:
    """What was recorded of machine and packages, a row a fact, with every value that it has."""
    facts: dict[str, dict[str, None]] = {}
    for run in analysis.table[table.RUN]:
        for key, value in flatten(environment_of(run)):
            if value is not None and key.partition(".")[0] != metrics.TASK:
                facts.setdefault(key, {})[words.short(words.printable(as_text(value)))] = None
    rows = (
        (words.printable(key), words.some(list(values), MOST_VALUES)) for key, values in sorted(facts.items())
    )
    return TextTable(("recorded", "value"), tuple(rows))
