"""The comparison as a table, of which terminal, Markdown and page show the same cells; runs; machines.

No figure is computed here: a cell words an estimate of the analysis, and says where it lies on its column's
axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
from ampcompare.report.runs.metric import DEFAULT_METRIC
from ampcompare.report.runs.table import environment_of
from ampcompare.report.statistics.estimate import Estimate

MOST_VALUES = 3  # of a fact of the machines that is not the same for all
NOT_REACHED = "not reached"
TextRows = list[tuple[str, ...]]  # of a table of nothing but text, its heads first


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
class _Question:
    """How a question is shown: a group's own figure by `own`, in its `unit`; a comparison by `show`, of the
    number that `shown` makes of it, with so many `digits` and behind it a `sign`. `null` is no change.
    """

    head: str
    own: Callable[[float], str]
    unit: str
    show: Callable[[float, int], str]
    digits: Callable[[float], int]
    sign: str = ""
    shown: Callable[[float], float] = float
    null: float = 1.0
    margin: tuple[float, float] | None = None

    def text(self, value: float) -> str:
        number = self.shown(value)
        return f"{self.show(number, self.digits(number))}{self.sign}"

    def span(self, found: Estimate) -> str:
        """The interval, with the digits that tell its ends from each other and from no change and margin."""
        ends = found.seen if found.low is None or found.high is None else (found.low, found.high)
        low, high = map(self.shown, ends)
        number = self.shown(found.value)
        least = min(map(self.digits, (number, low, high)))
        apart = (low, high, *map(self.shown, (self.null, *(self.margin or ()))))
        digits = words.precision_apart((low, high), apart, self.show, max(least, self.digits(number)))
        return words.interval(low, high, lambda end: self.show(end, digits))

    def tick(self, tick: float) -> str:
        """A place on the axis: `1.5×`, `−20 %`, `+0.5`, `0`."""
        number, is_ratio = round(self.shown(tick), 9), self.sign == "×"
        plus = "" if is_ratio or not number else "+" if number > 0 else "−"
        size = f"{abs(number):,g}" if 1e-4 <= abs(number) < 1e9 or not number else f"{abs(number):.0e}"
        return f"{plus}{size}{self.sign if number or is_ratio else ''}"


def _questions(analysis: Analysis) -> dict[str, _Question]:
    """What is shown of each question, those of energy and time to target only where recorded."""
    metric, units = analysis.metric, analysis.quantities
    name = "accuracy" if metric.key == DEFAULT_METRIC else words.printable(metric.name)
    margin = None if metric.margin is None else (-metric.margin, metric.margin)
    change: Any = (
        words.signed,
        lambda number: 0 if abs(number) >= 9.95 else 1,
        " %",
        lambda v: (v - 1) * 100,
    )
    target = words.NOTHING if analysis.target is None else metric.show_value(analysis.target)
    every = {
        SPEED: _Question("speed", words.number, units.speed, words.number, lambda number: 3, "×"),
        MEMORY: _Question("peak memory", units.show_memory, units.memory, *change),
        QUALITY: _Question(
            f"{name}, {metric.unit}" if metric.unit else name,
            metric.show_value,
            "",
            words.signed,
            lambda number: 2,
            null=0.0,
            margin=margin,
        ),
        ENERGY: _Question(f"energy per {units.item}", words.number, "J", *change),
        TIME: _Question(f"time to {target}", words.duration, "", *change),
    }
    told = {SPEED, MEMORY, QUALITY}.union(*(found.estimates for found in analysis.comparisons))
    return {question: every[question] for question in COLUMNS if question in told}


def comparison_table(analysis: Analysis) -> Table:
    """A row a group, the baseline's first; columns of energy and time to target only where recorded."""
    groups = sorted(analysis.groups, key=lambda g: g.value != analysis.baseline_value)
    questions = _questions(analysis)
    rows = tuple(_row(group, questions, analysis) for group in groups)
    keys = [words.printable(key.rpartition(".")[2] or key) for key in analysis.keys]
    columns = []
    for key, asked in questions.items():
        marks, more = [mark for row in rows if (mark := row.cells[key].mark)], {"margin": asked.margin}
        axis = axis_of(marks, asked.null, asked.tick, log=key != QUALITY, **more) if marks else None
        columns.append(Column(key, asked.head, axis))
    return Table(", ".join(keys), tuple(columns), rows, analysis.caption)


def _row(group: Group, questions: Mapping[str, _Question], analysis: Analysis) -> Row:
    found = analysis.comparison(group.label)
    cells = {key: _cell(key, asked, group, found) for key, asked in questions.items()}
    said, share = group.outcomes.words, group.outcomes.failures
    if share and share.k:
        said += f" ({100 * share.low:.0f} to {100 * share.high:.0f} %)"
    meaning = analysis.styles[group.label].meaning
    return Row(group.label, meaning, cells, analysis.chip(group), analysis.look(group), said)


def _cell(key: str, asked: _Question, group: Group, found: Comparison | None) -> Cell:
    text, unit = _own_figure(key, asked, group)
    estimate, claim = (found.estimates.get(key), found.claims.get(key)) if found else (None, None)
    if found is None or estimate is None:
        why = found.refusal or (claim.why if claim else "") if found and COLUMNS[key] in group.figures else ""
        return Cell(text, unit, answer=NOT_COMPARED if why else "", why=why)
    low, high = estimate.ends if estimate.has_interval else estimate.seen
    span = asked.span(estimate)
    if not estimate.has_interval:
        span = f"seen {span}" if low != high else ""
    mark = Mark(estimate.value, low, high, is_seen=not estimate.has_interval)
    if claim is None:  # of energy, time and the control nothing is claimed
        is_open = bool(found.claims) and not estimate.has_interval
        answer, why = (CANNOT_TELL, f"n = {estimate.n}") if is_open else ("", "")
    else:
        answer, why, is_open = claim.answer, claim.why, not claim.shown
    return Cell(asked.text(estimate.value), "", span, mark, f"{text} {unit}".strip(), answer, why, is_open)


def _own_figure(key: str, asked: _Question, group: Group) -> tuple[str, str]:
    """A group's own figure and its unit, as they are shown: `554` and `images/s`."""
    if (found := group.figures.get(COLUMNS[key])) is not None:
        return asked.own(found.value), asked.unit
    rows = group.rows
    is_missed = key == TIME and rows[table.SECONDS].notna().any() and not rows[table.JUMPS].any()
    return (NOT_REACHED if is_missed and not group.is_unfinished else words.NOTHING), ""


def runs_table(analysis: Analysis) -> TextRows:
    """A row a run, as it is recorded."""
    metric, units = analysis.metric, analysis.quantities
    peak = f"peak {units.memory or 'memory'}"
    heads = ["run", "group", "seed", "outcome", "epochs", units.speed, peak, metric.name, "trained"]
    rows: list[Sequence[str]] = [[*heads, "problems"]]
    for _, run in analysis.table.iterrows():
        cells = (
            f"{run[table.NAME]} ({run[table.RUN].id})",
            run[table.GROUP],
            run[table.SEED] or words.NOTHING,
            f"{run[table.OUTCOME]}: {run[table.WHY]}" if run[table.WHY] else run[table.OUTCOME],
            _known(words.count, run[table.EPOCHS]),
            _known(words.number, run[table.SPEED]),
            _known(units.show_memory, run[table.MEMORY]),
            _known(metric.show_value, run[table.QUALITY]),
            _known(words.duration, run[table.SECONDS]),
            " ".join(run[table.PROBLEMS]),
        )
        rows.append(cells)
    return [tuple(map(words.printable, row)) for row in rows]


def _known(show: Callable[[float], str], value: float) -> str:
    return show(value) if value == value else words.NOTHING  # NaN: not recorded


def machines_table(analysis: Analysis) -> TextRows:
    """What was recorded of machine and packages, a row a fact, with every value that it has."""
    facts: dict[str, dict[str, None]] = {}
    for run in analysis.table[table.RUN]:
        for key, value in flatten(environment_of(run)):
            if value is not None and key.partition(".")[0] != metrics.TASK:
                facts.setdefault(key, {})[words.short(words.printable(as_text(value)))] = None
    told = [
        (words.printable(key), words.some([*values], MOST_VALUES)) for key, values in sorted(facts.items())
    ]
    return [("recorded", "value"), *told]
