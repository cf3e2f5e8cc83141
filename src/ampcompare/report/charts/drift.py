"""Throughput over the wall clock of the whole sweep: what the machine did while the backends took turns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import altair as alt
import numpy as np

from ampcompare import metrics
from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.charts.parts import (
    Parts,
    Spec,
    drawn_styles,
    finish,
    neutral_line,
    over,
    quantity,
    time_unit,
    tip,
)
from ampcompare.report.charts.series import Datum, shortened
from ampcompare.report.runs.figures import RunFigures, steady_rows
from ampcompare.report.runs.groups import Group

FEWEST_WINDOWS = 4  # of which a middle half is shown
ENDS = ("first", "last")  # arms of an A/A control: the baseline once more at both ends of the sweep
ROOM = 1.35  # of what is drawn
LEAST_REACH, WIDEST_REACH = 1.5, 30.0  # percent


def throughput_over_sweep(analysis: Analysis) -> Spec:
    """Each run's throughput against the mean of its group, in percent, where it lies in the sweep's time.

    Relative to its own group, so that what moves all of them alike is seen: a line for each run from its
    start to its end, at its median, and behind it the middle half of its log intervals after warm-up.
    """
    runs = list(_placed(analysis.groups))
    begin = min((start for _, _, start in runs), default=0.0)
    rows = [row for group, f, start in runs for row in _rows(group, f, start - begin, len(runs))]
    unit, seconds = time_unit(max((row["x2"] for row in rows if row["kind"] == "bar"), default=0.0))
    for row in rows:
        row |= {end: shortened(row[end] / seconds) for end in ("x", "x2")}
        row["middle"] = (row["x"] + row["x2"]) / 2
    drawn = [abs(row[end]) for row in rows for end in ("y", "low", "high") if end in row]
    reach = min(max([LEAST_REACH, *(ROOM * size for size in drawn)]), WIDEST_REACH)
    title = "against the mean of its own group, %"
    y = quantity(alt.Y, title, domain=[-reach, reach], nice=False)
    x = quantity(alt.X, f"wall-clock time since the first run began, {unit}", nice=False)
    parts = Parts(rows, drawn_styles(analysis, rows), x, y)
    tips = [tip("backend"), tip("run"), tip("x", f"from, {unit}", ".4~r"), tip("x2", "to", ".4~r")]
    tips += [tip("speed", analysis.quantities.speed, ",.4~r"), tip("y", title, "+.2~f")]
    layers = [neutral_line(0, alt.Y)]
    if parts.has("half"):
        half = parts.of("half").mark_rect(clip=True)
        ends = {"x": x, "x2": alt.X2(field="x2"), "y": over(y, "low"), "y2": alt.Y2(field="high")}
        layers.append(half.encode(**ends, color=parts.colour(), opacity=parts.dimmed(0.22, 0.03)))
    bars = parts.of("bar").mark_rule(strokeWidth=5, clip=True)
    bars = bars.encode(x=x, x2=alt.X2(field="x2"), y=y, color=parts.colour(), tooltip=tips)
    layers.append(bars.encode(opacity=parts.dimmed(1.0)).add_params(parts.pick, parts.zoom))
    note = "line: a run from start to end, at its median; pale: the middle half of its log intervals"
    if any("text" in row for row in rows):
        names = parts.of("bar").transform_filter("isValid(datum.text)").mark_text(dy=-11, fontWeight=600)
        text = alt.Text(field="text", type="nominal")
        middle = over(x, "middle")
        layers.append(names.encode(x=middle, y=y, text=text, color=parts.colour(), opacity=parts.dimmed(1.0)))
        note += "; A/A: the baseline once more"
    title = "Throughput over the whole sweep"
    return finish(layers, analysis.setting, title, rows, note=note, is_cut=True)


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
    if run.option("plan.arm") in ENDS:
        rows[0]["text"] = "A/A"
    usable = windows[np.isfinite(windows) & steady_rows(run)]
    if len(usable) >= FEWEST_WINDOWS:
        low, high = (shortened(percent(float(np.percentile(usable, q)))) for q in (25, 75))
        rows.append(rows[0] | {"kind": "half", "low": low, "high": high})
    return rows
