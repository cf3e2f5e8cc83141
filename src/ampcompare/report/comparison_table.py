"""The comparison as a table, and tables of the runs and machines.

Terminal, Markdown and page show the same cells. No value is computed here: a cell formats an estimate of the
analysis.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ampcompare import metrics
from ampcompare.analysis.analysis import Analysis
from ampcompare.analysis.claims import NO_VERDICT, NOT_COMPARED
from ampcompare.analysis.comparison import Comparison
from ampcompare.analysis.grouping import run_metrics, run_table
from ampcompare.analysis.grouping.backend_info import FP32_NAME
from ampcompare.analysis.grouping.compared_metric import DEFAULT_METRIC
from ampcompare.analysis.grouping.distinguishing_settings import short_key
from ampcompare.analysis.grouping.groups import Group, name_with_id
from ampcompare.analysis.grouping.training_recipe import show_values
from ampcompare.analysis.reasons import (
    NOT_IN_BENCH,
    is_memory_of_shared_process,
    no_native_arithmetic,
    too_few_values,
)
from ampcompare.analysis.scale import CHANGE, DIFFERENCE, RATIO, Scale
from ampcompare.analysis.statistics.estimate import Estimate
from ampcompare.analysis.verdict import BadgePart
from ampcompare.runs.nested import as_text, flatten
from ampcompare.runtime import formatting

MAX_BASELINE_CHARS = 24  # of a name in a head
FP32 = "fp32"  # the short name of the baseline `none`
MAX_VALUES = 3  # that are listed, where machines differ
NOT_REACHED = "not reached"
TextRows = list[tuple[str, ...]]  # a table of text, its heads first


@dataclass(frozen=True)
class Cell:
    """A cell: one value of one group.

    Attributes:
        text: The baseline's own value; for other groups the value relative to the baseline.
        unit: The unit of the baseline's value.
        span: The interval with its kind, such as `CI 1.2 to 1.4`; "" without one.
        mark: The estimate that is drawn in the forest; None for the baseline, and without an estimate.
        also: The group's own value with its unit, where `text` is relative.
        answer: What the interval shows (`faster`), or that it shows nothing (`inconclusive`).
        why: The reason, where it shows nothing.
        is_open: Whether the mark is hollow: the interval contains no change, or no difference is claimed.
    """

    text: str
    unit: str = ""
    span: str = ""
    mark: Estimate | None = None
    also: str = ""
    answer: str = ""
    why: str = ""
    is_open: bool = False


@dataclass(frozen=True)
class GroupRow:
    """One group.

    Attributes:
        badge: Its answers with their tones.
        verdict: The badge in one line.
        runs: How many runs it has, and what became of them.
    """

    label: str
    meaning: str
    cells: Mapping[str, Cell]
    badge: Sequence[BadgePart]
    verdict: str
    runs: str


@dataclass(frozen=True)
class Column:
    """A column: one question, and how its answers are shown.

    Attributes:
        key: The question, a key of `run_metrics.COMPARED_METRICS`.
        noun: The name of the question in a sentence.
        own: Formats a group's own value.
        unit: The unit of that value; "" where `own` writes it.
        scale: How a value relative to the baseline is written.
        zone: The ends of the zone within which a difference counts as none; empty without one.
    """

    key: str
    head: str
    noun: str
    own: Callable[[float], str]
    unit: str
    scale: Scale = CHANGE
    zone: tuple[float, float] | tuple[()] = ()

    @property
    def run_metric(self) -> run_metrics.RunMetric:
        """The run metric that the question is about."""
        return run_metrics.COMPARED_METRICS[self.key]


@dataclass(frozen=True)
class ComparisonTable:
    """The comparison.

    Attributes:
        head: The head of the column of labels.
        columns: The other columns.
        rows: A row per group, the baseline's first.
        caption: What the intervals are.
    """

    head: str
    columns: tuple[Column, ...]
    rows: tuple[GroupRow, ...]
    caption: str


def _make_columns(analysis: Analysis) -> list[Column]:
    """Return the columns; only quality is there whether it was recorded or not."""
    metric = analysis.metric
    units = analysis.quantities
    name = metric.noun if metric.key == DEFAULT_METRIC else formatting.printable(metric.name)
    target = formatting.NOTHING if metric.target is None else metric.show_value(metric.target)
    title = formatting.capital(name) if metric.is_titled else name
    quality = f"{title}, {metric.unit}" if metric.unit else title
    speed = "Throughput"
    if analysis.baseline is not None:
        baseline = formatting.short(formatting.printable(analysis.baseline_name), MAX_BASELINE_CHARS)
        speed = f"Throughput relative to {FP32 if baseline == FP32_NAME else baseline}"
    on_cpu = bool(analysis.table[run_table.ON_CPU].all())
    memory = "Peak memory of the process" if on_cpu else "Peak memory"
    every = (
        Column(run_metrics.SPEED, speed, "throughput", units.show_speed, units.shown_speed, RATIO),
        Column(run_metrics.MEMORY, memory, "peak memory", units.show_memory, units.memory),
        Column(run_metrics.QUALITY, quality, name, metric.show_value, "", DIFFERENCE, metric.zone),
        Column(run_metrics.ENERGY, f"Energy per {units.item}", "energy", formatting.number, "J"),
        Column(run_metrics.TIME, f"Time to {target}", "time to target", formatting.duration, ""),
    )
    recorded = {column for group in analysis.groups for column in group.estimates}
    compared = {question for comparison in analysis.comparisons for question in comparison.estimates}
    shown = {*compared, run_metrics.QUALITY}
    for question, run_metric in run_metrics.COMPARED_METRICS.items():
        if run_metric.sides and run_metric.column in recorded:
            shown.add(question)
    if analysis.has_bench_speed:  # the runs' own times are not to be compared with it
        shown.discard(run_metrics.TIME)
    # On a CPU, the memory of a process that trained several runs is no result.
    if any(is_memory_of_shared_process(comparison.sides) for comparison in analysis.comparisons):
        shown -= {run_metrics.MEMORY} - compared
    arms = [comparison for comparison in analysis.comparisons if not comparison.is_control]
    # This CPU may lack the instructions for every compared dtype.
    if arms and all(no_native_arithmetic(comparison.sides) for comparison in arms):
        shown -= {run_metrics.SPEED} - compared
    return [column for column in every if column.key in shown]


def comparison_table(analysis: Analysis) -> ComparisonTable:
    """Return the comparison as a table."""
    groups = sorted(analysis.groups, key=lambda g: g.value != analysis.baseline_value)
    columns = _make_columns(analysis)
    rows = tuple(_make_row(group, columns, analysis) for group in groups)
    keys = [formatting.printable(short_key(key) or key) for key in analysis.keys]
    return ComparisonTable(formatting.capital(", ".join(keys)), tuple(columns), rows, analysis.caption)


def _make_row(group: Group, columns: Sequence[Column], analysis: Analysis) -> GroupRow:
    comparison = analysis.comparison(group.label)
    in_bench = {name for one in analysis.groups for name in one.bench_estimates}
    cells = {column.key: _make_cell(column, group, comparison, in_bench) for column in columns}
    runs = group.outcomes.text
    failures = group.outcomes.failures
    if failures and failures.k:
        runs += f"; failure rate: 95% CI {100 * failures.low:.0f}% to {100 * failures.high:.0f}%"
    has_telling_name = group.display_name.startswith(FP32_NAME)
    return GroupRow(
        label=group.display_name,
        meaning="" if has_telling_name else analysis.backend_descriptions[group.label],
        cells=cells,
        badge=analysis.badge_parts(group),
        verdict=analysis.badge(group),
        runs=runs,
    )


def _make_cell(
    column: Column, group: Group, comparison: Comparison | None, in_bench: Collection[str]
) -> Cell:
    """Return the value of a group, relative to the baseline where it is compared.

    Args:
        in_bench: The metrics whose values are from a benchmark, for the groups that it measured.
    """
    name = column.run_metric.column
    claim = comparison.claims.get(column.key) if comparison else None
    # The speed of a dtype that the CPU has no instructions for says nothing; a caveat gives the reason once.
    if column.key == run_metrics.SPEED and no_native_arithmetic([group]):
        return Cell(formatting.NOTHING)
    # The values of runs must not stand beside those of a benchmark.
    if name in in_bench and name not in group.bench_estimates:
        why = claim.why if claim else NOT_IN_BENCH.text
        return Cell(formatting.NOTHING, answer=NOT_COMPARED, why=why)
    text, unit = _own_value(column, group)
    if comparison is None:
        return Cell(text, unit)
    estimate = comparison.estimates.get(column.key)
    if estimate is None:
        reason = ""
        if name in group.estimates:
            reason = comparison.not_compared_reason or (claim.why if claim else "")
        return Cell(text, unit, answer=NOT_COMPARED if reason else "", why=reason)
    cell = Cell(
        column.scale.value(estimate, column.zone),
        span=_span_text(column, estimate),
        mark=estimate,
        also=f"{text} {unit}".strip(),
    )
    is_open = not estimate.side_of(column.run_metric.null)
    if claim is not None:
        return replace(cell, answer=claim.answer, why=claim.why, is_open=is_open or not claim.shown)
    # Nothing is claimed of energy and time, and nothing at all of the control.
    if not comparison.claims or estimate.has_interval:
        return replace(cell, is_open=is_open)
    why = too_few_values(comparison.sides, column.run_metric, estimate.n)
    return replace(cell, answer=NO_VERDICT, why=why, is_open=is_open)


def _span_text(column: Column, estimate: Estimate) -> str:
    """Return the interval with its kind: `CI 1.2 to 1.4`, `range 1.2 to 1.4`; "" for a range of one value."""
    span = column.scale.interval(estimate, column.zone)
    if span == formatting.NO_SPREAD:
        return span if estimate.has_interval else ""
    return f"{'CI' if estimate.has_interval else 'range'} {span}"


def _own_value(column: Column, group: Group) -> tuple[str, str]:
    """Return a group's own value and its unit as text: `554` and `images/s`."""
    estimate = group.estimates.get(column.run_metric.column)
    reached = group.rows[column.run_metric.column].notna().sum()
    if column.key == run_metrics.TIME and 0 < reached < group.n:
        return f"{reached} of {group.n} reached it", ""  # a mean of these would leave out the slow runs
    if estimate is not None:
        return column.own(estimate.value), column.unit
    has_clock = group.rows[run_metrics.SECONDS].notna().any() and not group.rows[run_table.JUMPS].any()
    is_missed = column.key == run_metrics.TIME and has_clock and not group.is_unfinished
    return (NOT_REACHED if is_missed else formatting.NOTHING), ""


def runs_table(analysis: Analysis) -> TextRows:
    """Return a row per run, with its recorded values."""
    metric = analysis.metric
    units = analysis.quantities
    peak = f"peak {units.memory or 'memory'}"
    # Not the benchmark's speed: whole runs, minutes apart, with evaluations and other work in between.
    speed = f"{units.shown_speed} in training" if analysis.has_bench_speed else units.shown_speed
    heads = ["run", "group", "seed", "outcome", "epochs", speed, peak, metric.name, "training time"]
    rows: list[Sequence[str]] = [[*heads, "problems"]]
    names = {group.label: group.display_name for group in analysis.groups}
    for _, run in analysis.table.iterrows():
        outcome = run[run_table.OUTCOME]
        if run[run_table.WHY]:
            outcome = f"{outcome}: {run[run_table.WHY]}"
        cells = (
            name_with_id(run),
            names[run[run_table.GROUP]],
            run[run_table.SEED] or formatting.NOTHING,
            outcome,
            _format_known(formatting.count, run[run_metrics.EPOCHS]),
            _format_known(units.show_speed, run[run_metrics.THROUGHPUT]),
            _format_known(units.show_memory, run[run_metrics.PEAK]),
            _format_known(metric.show_value, run[run_metrics.SCORE]),
            _format_known(formatting.duration, run[run_metrics.SECONDS]),
            " ".join(run[run_table.PROBLEMS]),
        )
        rows.append(cells)
    return [tuple(map(formatting.printable, row)) for row in rows]


def _format_known(show: Callable[[float], str], value: float) -> str:
    return show(value) if value == value else formatting.NOTHING  # NaN: not recorded


def machines_table(analysis: Analysis) -> TextRows:
    """Return a row per recorded fact about machines and packages, with its values."""
    facts: dict[str, dict[str, None]] = {}
    for run in analysis.table[run_table.RUN]:
        for key, value in flatten(run.environment):
            if value is not None and key.partition(".")[0] != metrics.TASK:
                facts.setdefault(key, {})[formatting.short(formatting.printable(as_text(value)))] = None
    known = [
        (formatting.printable(key), formatting.some([*values], MAX_VALUES))
        for key, values in sorted(facts.items())
    ]
    return [("recorded", "value"), *known]


def recipe_table(analysis: Analysis) -> TextRows:
    """Return a row per recorded setting of the training, with its values."""
    rows = [(name.replace("_", " "), show_values(values)) for name, values in analysis.recipe.items()]
    return [("setting", "value"), *rows]
