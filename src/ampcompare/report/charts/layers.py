"""How near activations come to the end of fp16: the largest magnitude by layer, against 65,504."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from ampcompare import metrics
from ampcompare.report.charts.draw import (
    GREY,
    HEIGHT,
    NUMBER,
    Spec,
    by_backend,
    chart,
    if_picked,
    quantity,
    tip,
)
from ampcompare.report.charts.rows import shortened

if TYPE_CHECKING:
    from ampcompare.report.analysis.analysis import Analysis

START = f"{metrics.ACTIVATION_LARGEST}/"
END = 65504  # the largest number of fp16
ROW = 15  # pixels a layer


def largest_activations(of: Analysis) -> Spec | None:
    """The largest magnitude of each layer group over all steps and runs, a dot a backend, on a log axis."""
    runs = [(group.label, run) for group in of.groups for run in group.records]
    keys = sorted({key for _, run in runs for key in run.logged if key.startswith(START)})
    largest: dict[tuple[str, str], float] = {}
    for label, run in runs:
        for key in keys:
            values = run.values(key)
            for value in values[np.isfinite(values) & (values > 0)]:  # what a log axis can show
                largest[key, label] = max(float(value), largest.get((key, label), 0.0))
    if not largest:
        return None
    order = sorted((key.removeprefix(START) for key in {key for key, _ in largest}), key=_natural)
    rows = [
        {"backend": label, "layer": key.removeprefix(START), "x": shortened(value)}
        for (key, label), value in largest.items()
    ]
    labels = [group.label for group in of.groups if any(group.label == row["backend"] for row in rows)]
    x = quantity("x", {"grid": True, "values": [10.0**n for n in range(-6, 39)]}, type="log", nice=False)
    y = {"field": "layer", "type": "nominal", "sort": order, "axis": {"title": None, "labelLimit": 110}}
    offset = {"field": "backend", "type": "nominal", "sort": labels}
    tips = [tip("backend"), tip("layer"), tip("x", "largest", format=NUMBER)]
    shown = {"x": x, "y": y, "yOffset": offset, "opacity": if_picked(1, 0.1), "tooltip": tips}
    dots = {"mark": {"type": "point", "filled": True, "size": 45, "opacity": 1}, "encoding": shown}
    end = {"data": {"values": [{"x": END}]}, "mark": {"type": "rule", "strokeDash": [4, 3]}}
    end["encoding"] = {"x": x, "color": {"value": GREY}}
    is_beyond = any(len(run.nonfinite(key)) for _, run in runs for key in keys)
    subtitle = f"dashed: {END:,}, the end of fp16{'; inf left out' if is_beyond else ''}"
    more: Spec = {"height": max(HEIGHT, ROW * len(order))}
    more["encoding"] = {"color": by_backend(labels, of.styles, "colour")}
    return chart("Largest activations by layer", subtitle, [end, dots], rows, **more)


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Layers as one would list them: layer2 before layer10, the classifier last."""
    last = 1 if name in ("fc", "head", "classifier") else 0
    parts = re.split(r"(\d+)", name)
    return [(last, 0, ""), *((0, int(p), "") if p.isdigit() else (0, 0, p) for p in parts if p)]
