"""What loss scaling is for: the share of gradient elements that fp16 flushes to zero, with and without it."""

from __future__ import annotations

import re
from typing import Any

import altair as alt
import numpy as np

from ampcompare import metrics
from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.charts.curves import line_note
from ampcompare.report.charts.parts import Parts, Spec, drawn_styles, finish, quantity, steps, tip
from ampcompare.report.charts.series import curves
from ampcompare.report.runs.figures import LARGEST
from ampcompare.report.runs.groups import Group

WITH, WITHOUT = metrics.UNDERFLOW, metrics.UNDERFLOW_UNSCALED
SIDES = {WITH: "with loss scaling", WITHOUT: "without"}
ROW_HEIGHT = 13
MAX_GROUPS = 8  # in the chart by layer, which has a row for each of them in each layer
TITLE = "gradient elements flushed to zero, %"


def underflow(analysis: Analysis) -> Spec:
    """Share of non-zero gradient elements that fp16 flushes to zero: at the loss scale, and at 1 (dashed)."""
    rows = [
        row | {"side": side, "id": f"{row['id']} {side}"}
        for key, side in SIDES.items()
        for row in curves(analysis.groups, metrics.STEP, key, y_factor=100)
        if row["kind"] == "line"
    ]
    x, y = steps("optimizer step"), quantity(alt.Y, TITLE, zero=True)
    parts = Parts(rows, drawn_styles(analysis, rows), x, y)
    dash = alt.Scale(domain=list(SIDES.values()), range=[[1, 0], [4, 3]])
    # A symbol of its own: two legends for one field would be merged.
    symbol: dict[str, Any] = {"symbolType": "stroke", "symbolSize": 420, "symbolStrokeWidth": 2.5}
    legend = alt.Legend(title=None, orient="bottom", **symbol)
    side = alt.StrokeDash(field="side", type="nominal", scale=dash, legend=legend)
    layers: list[alt.Chart] = [parts.band()] if parts.has_intervals else []
    detail = alt.Detail(field="id", type="nominal")
    look: dict[str, Any] = {"color": parts.colour(), "strokeDash": side, "opacity": parts.dimmed(1.0)}
    line = parts.of("line").mark_line(strokeWidth=2.5, clip=True).encode(x=x, y=y, detail=detail, **look)
    layers.append(line.add_params(parts.pick, parts.zoom))
    for hover in parts.hover(".4~g"):
        hover.encoding.tooltip = [tip("side", "gradients"), *hover.encoding.tooltip]
        layers.append(hover)
    return finish(layers, analysis.setting, "Gradients that fp16 loses", rows, note=line_note(parts))


def layers_of(group: Group, key: str) -> list[str]:
    """The layer groups for which a metric is recorded, in the order in which one would list them."""
    start = f"{key}/"
    names = dict.fromkeys(str(name) for f in group.counted for name in f.run.logged)
    return sorted((n.removeprefix(start) for n in names if n.startswith(start)), key=_natural)


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Layers as one would list them: layer2 before layer10, the classifier last."""
    last = 1 if name in ("fc", "head", "classifier") else 0
    parts = re.split(r"(\d+)", name)
    return [(last, 0, ""), *((0, int(p), "") if p.isdigit() else (0, 0, p) for p in parts if p)]


def mean_percent(group: Group, key: str) -> float | None:
    """A share in percent: the mean over the runs that count of each one's mean over its steps."""
    found = (f.run.values(key) for f in group.counted)
    means = [float(np.mean(v)) for values in found if len(v := values[np.abs(values) <= LARGEST])]
    return float(f"{np.mean(means) * 100:.5g}") if means else None
