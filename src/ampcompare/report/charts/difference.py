"""The metric's difference to the baseline over training, with its 95 % band and the margin as a zone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from ampcompare import metrics
from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.analysis.comparison import Comparison
from ampcompare.report.analysis.course import course_of
from ampcompare.report.charts.parts import (
    LINE_WIDTH,
    Parts,
    Spec,
    finish,
    margin_zone,
    neutral_line,
    over,
    quantity,
    steps,
)
from ampcompare.report.charts.series import LINE_POINTS, Datum, shortened, thin
from ampcompare.report.words import capital

DIFFERENCE = "difference to the baseline"
BAND_OPACITY, MANY_BANDS_OPACITY = 0.13, 0.06  # several bands lie on each other
MANY_BANDS = 4
MARGINS_SHOWN, ROOM = 1.6, 1.2  # of the margin, of the largest mean difference near the end
BANDS_SHOWN = 1.8  # of the same; from two seeds a band is many times as wide
LATE = 0.7  # of the epochs; before that differences are larger and of less interest


def eval_difference(analysis: Analysis) -> Spec:
    """The metric minus the baseline's, by epoch, paired by seed; no band where one pair is all there is."""
    metric = analysis.metric
    rows = [row for comparison in analysis.comparisons for row in _rows(comparison)]
    reach = _reach(rows, metric.margin)
    rows = _baselines(rows, analysis.comparisons) + rows
    domain = {"domain": [-reach, reach], "nice": False, "zero": False}
    y = quantity(alt.Y, f"{DIFFERENCE}, {metric.unit or metric.name}", **domain)
    x = steps(metrics.EPOCH)
    parts = Parts(rows, list(analysis.styles.values()), x, y)
    layers = [*margin_zone(metric.margin, alt.Y), neutral_line(0, alt.Y)]
    if parts.has_intervals:
        layers += _bands(parts)
    dash = alt.StrokeDash(field="backend", type="nominal", scale=parts.scale("dash"), legend=parts.legend())
    line = parts.of("line").mark_line(strokeWidth=LINE_WIDTH, clip=True)
    line = line.encode(x=x, y=y, color=parts.colour(), strokeDash=dash, opacity=parts.dimmed(1.0))
    layers += [line.add_params(parts.pick, parts.zoom), *parts.hover(".2~f", ("95 % from", "to"))]
    title, note = f"{capital(metric.name)}: {DIFFERENCE}", _note(analysis, parts)
    return finish(layers, analysis.setting, title, rows, note=note, is_cut=True)


def _baselines(rows: Sequence[Datum], comparisons: Sequence[Comparison]) -> list[Datum]:
    """A line at 0 for each baseline, as long as the others."""
    if not rows:
        return []
    ends = min(row["x"] for row in rows), max(row["x"] for row in rows)
    head: Datum = {"kind": "line", "run": "the baseline", "id": "baseline", "n": 0}
    bases = dict.fromkeys(c.baseline.label for c in comparisons if c.baseline)
    return [{"backend": label} | head | {"x": x, "y": 0} for label in bases for x in ends]


def _bands(parts: Parts) -> list[alt.Chart]:
    """The bands; from two seeds, where they are many times as wide, their edges alone."""
    span: dict[str, Any] = {"x": parts.x, "y": over(parts.y, "low"), "y2": alt.Y2(field="high")}
    span |= {"detail": alt.Detail(field="id", type="nominal"), "color": parts.colour()}
    counts = {row["n"] for row in parts.rows if "low" in row}
    layers: list[alt.Chart] = []  # each with rows: without any Vega warns
    if max(counts) > 2:
        band = parts.spans("line").transform_filter("datum.n > 2").mark_area(clip=True)
        full = BAND_OPACITY if len(parts.styles) < MANY_BANDS else MANY_BANDS_OPACITY
        layers.append(band.encode(**span, fillOpacity=parts.dimmed(full, 0.02)))
    if 2 not in counts:
        return layers
    edge = parts.spans("line").transform_filter("datum.n == 2")
    edge = edge.mark_line(strokeWidth=1, strokeDash=[2, 2], clip=True)
    for end in ("low", "high"):
        drawn = edge.encode(x=parts.x, y=over(parts.y, end), color=parts.colour())
        layers.append(drawn.encode(opacity=parts.dimmed(0.6)))
    return layers


def _rows(comparison: Comparison) -> list[Datum]:
    course = course_of(comparison)
    values = np.array([estimate.value for _, estimate in course])
    rows: list[Datum] = []
    for i in thin(np.arange(len(values)), values, LINE_POINTS) if course else ():
        epoch, estimate = course[i]
        basis = f"n = {estimate.n}{', paired by seed' if estimate.paired else ''}"
        row: Datum = {"backend": comparison.group.label, "run": basis, "id": "difference", "kind": "line"}
        row |= {"n": estimate.n, "x": shortened(epoch, 8), "y": shortened(estimate.value)}
        if estimate.low is not None and estimate.high is not None:
            row |= {"low": shortened(estimate.low), "high": shortened(estimate.high)}
        rows.append(row)
    return rows


def _reach(rows: Sequence[Datum], margin: float | None) -> float:
    """How far from 0 the axis goes, for what counts: the end of training; wider bands are cut there."""
    last = max((row["x"] for row in rows), default=0)
    late = [row for row in rows if row["x"] >= LATE * last]
    means = max((abs(row["y"]) for row in late), default=0.0)
    ends = max((max(abs(row["low"]), abs(row["high"])) for row in late if "low" in row), default=0.0)
    least = max(MARGINS_SHOWN * (margin or 0.0), ROOM * means)
    return max(least, min(ends, BANDS_SHOWN * least)) or 1.0


def _note(analysis: Analysis, parts: Parts) -> str:
    said = ["line: mean over seeds, of the runs that finished"]
    if parts.has_intervals:
        said.append("band: 95 % at each epoch, paired by seed where seeds are shared")
    if any(row["n"] == 2 for row in parts.rows if "low" in row):
        said.append("dotted: its edges where it is from two seeds")
    if analysis.metric.margin is not None:
        said.append("grey zone: within the margin")
    return "; ".join(said)
