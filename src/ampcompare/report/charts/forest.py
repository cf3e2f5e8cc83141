"""The forest of effects: a chart for each question, with the effect of each group and its interval."""

import math
from collections.abc import Iterator, Mapping, Sequence

from ampcompare.analysis.analysis import Analysis
from ampcompare.analysis.grouping.groups import Kind
from ampcompare.analysis.grouping.run_metrics import RunMetric
from ampcompare.analysis.scale import CHANGE, DIFFERENCE, RATIO
from ampcompare.analysis.statistics.estimate import Estimate
from ampcompare.report.charts.vega import (
    NAMES,
    NUMBER,
    PAPER,
    PICKED,
    Spec,
    by_backend,
    chart,
    line_at,
    nominal,
    point,
    quantity,
    tip,
    zone,
)
from ampcompare.report.comparison_table import Cell, Column, comparison_table
from ampcompare.report.palette import SOLID, styles_of

FOREST = "forest-"
ROW_HEIGHT = 24  # pixels
RANGE_DASH = (2, 5)  # of a range of values in place of an interval
LEAST_REACH = 0.02  # of an axis from no change, as a fraction of the baseline's value
MIN_SPAN = 1e-300  # a shorter axis has no room for ticks in double precision
REACH = 100  # from the outermost values, as a ratio: an end of an interval beyond it becomes an arrow
MAX_RATIO = 1e250  # Vega computes a logarithmic axis in double precision
EDGE = 14  # pixels that are free at either end of an axis
MIN_ZONE = 0.05  # width of a margin that a reader sees, as a fraction of the axis
MIN_GAP = 0.28  # between two ticks of ratios, as a fraction of the axis
# Ticks of ratios above and below 1, which also read well as changes in percent.
RATIOS_ABOVE = (1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, *(10.0**n for n in range(1, 251)))
RATIOS_BELOW = (0.99, 0.98, 0.95, 0.9, 0.8, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, *(10.0**-n for n in range(2, 251)))
# By the scale of a column: the label of a tick, and what the chart shows.
TICKS = {
    RATIO: f"format(datum.value, '{NUMBER}') + '×'",
    CHANGE: "abs(datum.value - 1) < 1e-12 ? '0' : format(datum.value - 1, '+,.3~p')",
    DIFFERENCE: f"datum.value == 0 ? '0' : format(datum.value, '+{NUMBER}')",
}
EFFECTS = {
    RATIO: "ratio",
    CHANGE: "change from the baseline",
    DIFFERENCE: "difference from the baseline",
}


def forests(analysis: Analysis) -> dict[str, Spec]:
    """Return a chart for each question that has an estimate, by name, such as `forest-speed`.

    All charts have the same rows, so that they can be read side by side.
    """
    table = comparison_table(analysis)
    labels = [row.label for row in table.rows if any(cell.mark for cell in row.cells.values())]
    specs = {}
    for column in table.columns:
        cells = {row.label: row.cells[column.key] for row in table.rows}
        marks = {label: (cell, cell.mark) for label, cell in cells.items() if cell.mark is not None}
        if marks:
            specs[f"{FOREST}{column.key}"] = _forest(column, marks, labels, analysis)
    return specs


def _forest(
    column: Column, marks: Mapping[str, tuple[Cell, Estimate]], labels: Sequence[str], analysis: Analysis
) -> Spec:
    """Draw the cells of a column with their estimates, a row for each label."""
    metric = column.run_metric
    rows, arrows = _rows_and_arrows(marks, metric, analysis)
    # Besides what is drawn, so that noise does not fill an axis on which nothing else is.
    reach = _least_reach(column, analysis)
    ends = column.zone or (metric.null - reach, metric.null + reach)
    low = min(*ends, *(row["low"] for row in rows))
    high = max(*ends, *(row["high"] for row in rows))
    if high - low < MIN_SPAN:
        low -= LEAST_REACH
        high += LEAST_REACH
    scale = {"type": "log"} if metric.is_ratio else {}
    ticks = {"values": ratio_ticks(low, high)} if metric.is_ratio else {"tickCount": 4}
    axis = {"grid": True, "labelExpr": TICKS[column.scale], **ticks}
    x = quantity("x", axis, domain=[low, high], nice=False, padding=EDGE, **scale)
    y = nominal("backend", scale={"domain": list(labels)}, axis=NAMES)
    shown = {"x": x, "y": y, "opacity": PICKED}
    shape = {"shape": nominal("shape", scale=None)}
    dashed = {"strokeDash": nominal("dash", scale=None)}
    tips = [tip("backend"), tip("effect", column.noun), tip("span", "interval")]
    dots = shown | shape | {"tooltip": tips}
    interval = {"x": x | {"field": "low"}, "x2": {"field": "high"}}
    layers = [zone(x, *column.zone)] if column.zone else []
    layers += [
        line_at(x, metric.null),
        {"mark": {"type": "rule", "strokeWidth": 2.5}, "encoding": shown | interval | dashed},
        {"data": {"values": arrows}, "mark": point(70), "encoding": shown | shape},
        {"transform": [{"filter": "!datum.open"}], "mark": point(70), "encoding": dots},
        {
            "transform": [{"filter": "datum.open"}],
            "mark": point(70, filled=False, fill={"expr": PAPER}, strokeWidth=2),
            "encoding": dots,
        },
    ]
    return chart(
        column.head,
        "; ".join([EFFECTS[column.scale], *_key(rows, arrows, column.zone, high - low)]),
        layers,
        rows,
        height=ROW_HEIGHT * len(labels),
        encoding={"color": by_backend(labels, styles_of(analysis), "colour")},
    )


def _rows_and_arrows(
    marks: Mapping[str, tuple[Cell, Estimate]], metric: RunMetric, analysis: Analysis
) -> tuple[list[Spec], list[Spec]]:
    """Return a datum for each estimate, and one for each end of an interval that is too far to be drawn."""
    low, high = -math.inf, math.inf
    if metric.is_ratio:
        values = [metric.null, *(mark.value for _, mark in marks.values())]
        low = max(min(values) / REACH, 1 / MAX_RATIO)
        high = min(max(values) * REACH, MAX_RATIO)
    controls = {group.display_name for group in analysis.groups if group.kind is not Kind.ARM}
    styles = styles_of(analysis)
    rows: list[Spec] = []
    arrows: list[Spec] = []
    for label, (cell, mark) in marks.items():
        first, last = mark.span
        dash = styles[label].dash if label in controls else SOLID
        rows.append(
            {
                "backend": label,
                "x": mark.value,
                "low": max(low, first),
                "high": min(high, last),
                "effect": cell.text,
                "span": cell.span,
                "dash": dash if mark.has_interval else RANGE_DASH,
                "shape": "diamond" if label in controls else "circle",
                "open": cell.is_open,
            }
        )
        if first < low:
            arrows.append({"backend": label, "x": low, "shape": "triangle-left"})
        if last > high:
            arrows.append({"backend": label, "x": high, "shape": "triangle-right"})
    return rows, arrows


def _key(
    rows: Sequence[Spec], arrows: Sequence[Spec], margin: Sequence[float], length: float
) -> Iterator[str]:
    """Yield what a reader must know of the marks that are there; `length` is that of the axis."""
    if any(row["open"] for row in rows):
        yield "hollow: no difference shown"
    if margin and margin[1] - margin[0] >= MIN_ZONE * length:
        yield "shaded: the margin"
    if any(row["shape"] == "diamond" for row in rows):
        yield "diamond: a control"
    if any(row["dash"] == RANGE_DASH for row in rows):
        yield "dotted: the range of the values"
    if arrows:
        yield "arrow: the interval goes on"


def _least_reach(column: Column, analysis: Analysis) -> float:
    """Return how far from no change the axis of a column reaches at least, in the unit of its marks.

    It is a fraction of the baseline's value, so that a difference as small as noise stays near no change.
    """
    if column.run_metric.is_ratio:
        return LEAST_REACH
    estimate = analysis.baseline.estimates.get(column.run_metric.column) if analysis.baseline else None
    return 0.0 if estimate is None else LEAST_REACH * abs(estimate.value)


def ratio_ticks(low: float, high: float) -> list[float]:
    """Return the ticks of a logarithmic axis that contains 1: 1, and others at readable distances.

    >>> ratio_ticks(0.9, 6), ratio_ticks(0.24, 1.05)
    ([1.0, 2.0, 5.0], [0.3, 0.5, 1.0])
    """
    gap = MIN_GAP * math.log(high / low)
    ticks = [1.0]
    for ratios in (RATIOS_ABOVE, RATIOS_BELOW):
        last = 1.0
        for ratio in ratios:
            if low <= ratio <= high and abs(math.log(ratio / last)) >= gap:
                ticks.append(ratio)
                last = ratio
    return sorted(ticks)
