"""Throughput over the wall clock of the whole sweep: what the machine did while the backends took turns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import altair as alt
import numpy as np

from ampcompare import metrics
from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.analysis.figures import RunFigures, steady_rows
from ampcompare.report.analysis.groups import Group
from ampcompare.report.charts.parts import (
    CUT,
    Parts,
    Spec,
    drawn_styles,
    finish,
    neutral_line,
    quantity,
    time_unit,
    tip,
)
from ampcompare.report.charts.series import Datum, shortened, thin

DOTS = 2_400  # of all runs together
FEWEST_DOTS = 8  # of one run
ROOM = 1.6  # of the largest change of a run, for the spread of its windows
LEAST_REACH = 1.5  # percent


def throughput_over_sweep(analysis: Analysis) -> Spec:
    """Each run's throughput against the mean of its group, in percent, where it lies in the sweep's time.

    Relative to its own group, so that what moves all of them alike is seen: a bar for each run from its start
    to its end, at its median, and behind it dots for its log intervals after warm-up.
    """
    runs = list(_placed(analysis.groups))
    begin = min((start for _, _, start in runs), default=0.0)
    rows = [row for group, f, start in runs for row in _rows(group, f, start - begin, len(runs))]
    unit, seconds = time_unit(max((row["x2"] for row in rows if row["kind"] == "bar"), default=0.0))
    for row in rows:
        for end in ("x", "x2"):
            row[end] = shortened(row[end] / seconds)
    reach = max([LEAST_REACH, *(ROOM * abs(row["y"]) for row in rows if row["kind"] == "bar")])
    title = "against the mean of its own group, %"
    y = quantity(alt.Y, title, domain=[-reach, reach], nice=False)
    x = quantity(alt.X, f"wall-clock time since the first run began, {unit}", nice=False)
    parts = Parts(rows, drawn_styles(analysis, rows), x, y)
    tips = [tip("backend"), tip("run"), tip("x", f"from, {unit}", ".4~r"), tip("x2", "to", ".4~r")]
    tips += [tip("speed", "images/s", ",.4~r"), tip("y", title, "+.2~f")]
    layers = [neutral_line(0, alt.Y)]
    if parts.has("dot"):
        dots = parts.of("dot").mark_circle(size=9, clip=True)
        layers.append(dots.encode(x=x, y=y, color=parts.colour(), opacity=parts.dimmed(0.28, 0.03)))
    bars = parts.of("bar").mark_rule(strokeWidth=5, strokeCap="round", clip=True)
    bars = bars.encode(x=x, x2=alt.X2(field="x2"), y=y, color=parts.colour(), tooltip=tips)
    layers.append(bars.encode(opacity=parts.dimmed(1.0)).add_params(parts.pick, parts.zoom))
    note = "bar: a run from its start to its end, at its median; dots: its log intervals after warm-up"
    title = "Throughput over the whole sweep"
    return finish(layers, analysis.setting, title, rows, note=note) | CUT


def _placed(groups: Sequence[Group]) -> Iterable[tuple[Group, RunFigures, float]]:
    """The runs of which it is known when they began, with that time in seconds."""
    for group in groups:
        for figures in group.runs:
            began = figures.run.started_at
            if isinstance(began, datetime):
                aware = began if began.tzinfo else began.replace(tzinfo=UTC)
                yield group, figures, aware.timestamp()


def _rows(group: Group, figures: RunFigures, start: float, runs: int) -> list[Datum]:
    speed, mean = figures.images_per_second, group.means["images_per_second"]
    run = figures.run
    clock, windows = run.numbers(metrics.ELAPSED), run.numbers(metrics.THROUGHPUT)
    known = clock[np.isfinite(clock)]
    if speed is None or mean is None or mean.value <= 0 or not len(known):
        return []

    def percent(value: float) -> float:
        return 100 * (value / mean.value - 1)

    head: Datum = {"backend": group.label, "run": str(run.name)}
    bar: Datum = {"kind": "bar", "x": start, "x2": start + float(known.max()), "y": shortened(percent(speed))}
    rows = [head | bar | {"speed": shortened(speed)}]
    usable = np.isfinite(clock) & np.isfinite(windows) & steady_rows(run)
    at, values = start + clock[usable], windows[usable]
    if len(values) and not figures.clock_jumps:
        for i in thin(at, values, max(FEWEST_DOTS, DOTS // runs)):
            dot = {"kind": "dot", "x": float(at[i]), "x2": float(at[i]), "y": shortened(percent(values[i]))}
            rows.append(head | dot | {"speed": shortened(values[i])})
    return rows
