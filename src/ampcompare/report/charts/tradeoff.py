"""What it costs: the quality reached against the speed at which it was reached."""

from __future__ import annotations

import altair as alt

from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.charts.parts import Parts, Spec, drawn_styles, finish, over, quantity, tip
from ampcompare.report.charts.series import Datum
from ampcompare.report.statistics.samples import mean
from ampcompare.report.words import capital

ROOM = 0.35  # of the range of the points, on each side


def accuracy_against_throughput(analysis: Analysis) -> Spec:
    """The metric at the end of training against throughput: means, 95 % intervals, single runs faint."""
    metric = analysis.metric
    rows: list[Datum] = []
    for group in analysis.groups:
        head = {"backend": group.label}
        speed = group.means["images_per_second"]
        quality = mean(group.per_seed("quality", metric.factor))
        if group.is_unfinished or group.shares_machine or speed is None or quality is None:
            continue
        basis = "one seed" if speed.n == 1 else f"mean of {speed.n} seeds"
        row: Datum = head | {"kind": "mean", "run": basis, "x": speed.value, "y": quality.value}
        if speed.low is not None and quality.low is not None:
            row |= {"x_low": speed.low, "x_high": speed.high, "low": quality.low, "high": quality.high}
        rows.append(row)
        if len(group.timed) > 1:
            for f in group.timed:
                if f.images_per_second is not None and f.quality is not None:
                    point = {"kind": "run", "run": str(f.run.name), "x": f.images_per_second}
                    rows.append(head | point | {"y": f.quality * metric.factor})
    title = f"{capital(metric.name)} against throughput"
    x = quantity(alt.X, analysis.quantities.speed, domain=_around([row["x"] for row in rows]), nice=True)
    y = quantity(alt.Y, metric.axis, domain=_around([row["y"] for row in rows]), nice=True)
    parts = Parts(rows, drawn_styles(analysis, rows), x, y, legend="symbols")
    shape = alt.Shape(field="backend", type="nominal", scale=parts.scale("marker"), legend=parts.legend())
    tips = [
        tip("backend"),
        tip("run"),
        tip("x", analysis.quantities.speed, ",.4~r"),
        tip("y", metric.axis, ".4~g"),
    ]
    shared = {"x": x, "y": y, "color": parts.colour(), "shape": shape, "tooltip": tips}
    layers = []
    if parts.has("run"):
        runs = parts.of("run").mark_point(filled=True, size=40, clip=True)
        layers.append(runs.encode(**shared, opacity=parts.dimmed(0.4, 0.05)))
    if parts.has_intervals:
        rule = parts.spans("mean").mark_rule(strokeWidth=1.6, clip=True)
        drawn = {"color": parts.colour(), "opacity": parts.dimmed(0.8)}
        layers.append(rule.encode(x=over(x, "x_low"), x2=alt.X2(field="x_high"), y=y, **drawn))
        layers.append(rule.encode(x=x, y=over(y, "low"), y2=alt.Y2(field="high"), **drawn))
    points = parts.of("mean").mark_point(filled=True, size=170, clip=True, stroke="white", strokeWidth=1)
    layers.append(points.encode(**shared, opacity=parts.dimmed(1.0)).add_params(parts.pick, parts.zoom))
    intervals = f"95 % {analysis.interval_kind} intervals over runs, of quality over seeds"
    note = f"cross: {intervals}; small: single runs"
    return finish(layers, analysis.setting, title, rows, note=note if parts.has("run") else None)


def _around(values: list[float]) -> list[float]:
    """A domain with room around the points; intervals that are longer are cut at its ends."""
    if not values:
        return [0.0, 1.0]
    room = ROOM * (max(values) - min(values)) or 0.05 * abs(values[0]) or 1.0
    low = min(values) - room
    return [low if min(values) < 0 else max(0.0, low), max(values) + room]
