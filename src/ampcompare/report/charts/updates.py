"""Updates of half weights that rounding swallows: by step, and by layer."""

from __future__ import annotations

import altair as alt

from ampcompare import metrics
from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.charts.curves import line_chart
from ampcompare.report.charts.gradients import MAX_GROUPS, ROW_HEIGHT, layers_of, mean_percent
from ampcompare.report.charts.parts import HEIGHT, Parts, Spec, drawn_styles, finish, quantity, steps, tip
from ampcompare.report.charts.series import Datum, curves

LOST = metrics.LOST_UPDATES
TITLE = "weights whose update is lost, %"
MEANING = "lost: weight plus update rounds back to the weight, which stays as it was"
# What the figure of a backend that does not round to nearest is.
STOCHASTIC = "bf16_sr"
INSTEAD = f"{STOCHASTIC}: of one step; stochastic rounding loses none in the mean of many"


def lost_updates(analysis: Analysis) -> Spec:
    """Share of half weights whose update is lost to rounding, by optimizer step."""
    rows = curves(analysis.groups, metrics.STEP, LOST, y_factor=100)
    y = quantity(alt.Y, TITLE, domainMin=0, domainMax=100)
    title = "Updates lost to rounding"
    note = _note(analysis, rows)
    return line_chart(analysis, title, rows, steps("optimizer step"), y, ".4~g", note=note)


def lost_updates_by_layer(analysis: Analysis) -> Spec:
    """The same for each layer group, the mean over the run."""
    rows: list[Datum] = []
    for group in analysis.groups[:MAX_GROUPS]:
        for layer in layers_of(group, LOST):
            if (lost := mean_percent(group, f"{LOST}/{layer}")) is None:
                continue
            head = {"backend": group.label, "layer": layer, "run": f"mean over steps of {group.n} runs"}
            rows.append(head | {"kind": "mean", "x": lost})
    drawn = drawn_styles(analysis, rows)
    order = list(dict.fromkeys(row["layer"] for row in rows))
    x = quantity(alt.X, TITLE, domainMin=0, domainMax=100)
    y = alt.Y(field="layer", type="nominal", sort=order, title=None, axis=alt.Axis(labelLimit=110))
    parts = Parts(rows, drawn, x, y, legend="symbols")
    offset = alt.YOffset(field="backend", type="nominal", sort=[style.label for style in drawn])
    tips = [tip("backend"), tip("layer"), tip("x", TITLE, ".4~g"), tip("run", "over")]
    shared = {"x": x, "y": y, "yOffset": offset, "color": parts.colour(), "opacity": parts.dimmed(1.0)}
    stem = parts.of("mean").mark_rule(strokeWidth=2).encode(x2=alt.datum(0), **shared)
    head_of_it = parts.of("mean").mark_point(filled=True, size=55).encode(tooltip=tips, **shared)
    height = max(HEIGHT, ROW_HEIGHT * len(drawn) * len(order))
    layers = [stem, head_of_it.add_params(parts.pick)]
    title = "Updates lost to rounding, by layer"
    return finish(layers, analysis.setting, title, rows, note=_note(analysis, rows), height=height)


def _note(analysis: Analysis, rows: list[Datum]) -> str:
    drawn = {row["backend"] for row in rows}
    runs = (f.run for g in analysis.groups if g.label in drawn for f in g.runs)
    return f"{MEANING}; {INSTEAD}" if any(r.option("backend") == STOCHASTIC for r in runs) else MEANING
