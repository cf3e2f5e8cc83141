"""How near activations come to the end of fp16: the largest magnitude by layer, against 65,504."""

from __future__ import annotations

import altair as alt
import numpy as np

from ampcompare import metrics
from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.charts.gradients import MAX_GROUPS, ROW_HEIGHT, layers_of, mean_percent
from ampcompare.report.charts.parts import (
    HEIGHT,
    ONCE,
    Parts,
    Spec,
    drawn_styles,
    finish,
    quantity,
    tip,
)
from ampcompare.report.charts.series import Datum
from ampcompare.report.runs.figures import LARGEST
from ampcompare.report.runs.groups import Group

KEY = metrics.ACTIVATION_LARGEST
TITLE = "largest activation"
END = 65504  # of fp16


def activations_by_layer(analysis: Analysis) -> Spec:
    """The largest magnitude of each layer group over the run, on a log axis with fp16's end as a line."""
    rows: list[Datum] = []
    beyond = False
    for group in analysis.groups[:MAX_GROUPS]:
        for layer in layers_of(group, KEY):
            largest, infinite = _largest(group, f"{KEY}/{layer}")
            beyond |= infinite
            if largest is None:
                continue
            head = {"backend": group.label, "layer": layer, "run": f"steps looked at, of {group.n} runs"}
            below = mean_percent(group, f"{metrics.ACTIVATION_SUBNORMAL}/{layer}")
            rows.append(head | {"kind": "largest", "x": largest, "below": below})
    drawn = drawn_styles(analysis, rows)
    order = list(dict.fromkeys(row["layer"] for row in rows))
    x = quantity(alt.X, TITLE, type="log")
    y = alt.Y(field="layer", type="nominal", sort=order, title=None, axis=alt.Axis(labelLimit=110))
    parts = Parts(rows, drawn, x, y, legend="symbols")
    offset = alt.YOffset(field="backend", type="nominal", sort=[style.label for style in drawn])
    tips = [tip("backend"), tip("layer"), tip("x", TITLE, ",.4~g")]
    tips += [tip("below", "below 2**-14, %", ".3~g"), tip("run", "over")]
    shared = {"x": x, "y": y, "yOffset": offset, "color": parts.colour(), "opacity": parts.dimmed(1.0)}
    points = parts.of("largest").mark_point(filled=True, size=55).encode(tooltip=tips, **shared)
    end = alt.Chart(ONCE).mark_rule(strokeDash=[4, 3]).encode(x=alt.datum(END))
    note = f"dashed: {END:,}, the largest number of fp16"
    if beyond:
        note += "; steps in which an activation was inf or nan are left out"
    height = max(HEIGHT, ROW_HEIGHT * len(drawn) * len(order))
    title = "Largest activations, by layer"
    layers = [end, points.add_params(parts.pick)] if rows else [points.add_params(parts.pick)]
    return finish(layers, analysis.setting, title, rows, note=note, height=height)


def _largest(group: Group, key: str) -> tuple[float | None, bool]:
    """The largest finite and positive value over the runs that count, and whether there was one that is not
    finite. None where there is nothing that a log axis could show.
    """
    values = [f.run.values(key) for f in group.counted]
    found = np.concatenate(values) if values else np.empty(0)
    finite = found[np.isfinite(found) & (found > 0) & (found <= LARGEST)]
    return (float(finite.max()) if len(finite) else None), any(
        len(f.run.nonfinite(key)) for f in group.counted
    )
