"""How near activations come to the end of fp16: the largest magnitude by layer, against 65,504."""

from __future__ import annotations

import re

import numpy as np

from ampcompare import metrics
from ampcompare.records import RunRecord
from ampcompare.report.charts.curves import Groups, Styles
from ampcompare.report.charts.draw import (
    GREY,
    HEIGHT,
    NUMBER,
    Spec,
    by_backend,
    if_picked,
    quantity,
    specification,
    tip,
)
from ampcompare.report.charts.rows import shortened
from ampcompare.report.runs.groups import Group
from ampcompare.report.runs.metric import ComparedMetric
from ampcompare.report.runs.quantities import Quantities

START = f"{metrics.ACTIVATION_LARGEST}/"
END = 65504  # the largest number of fp16
ROW = 15  # pixels a layer


def largest_activations(
    groups: Groups, styles: Styles, metric: ComparedMetric, quantities: Quantities
) -> Spec | None:
    """The largest magnitude of each layer group over all steps and runs, a dot a backend, on a log axis."""
    rows = [
        {"backend": group.label, "layer": layer, "x": shortened(largest)}
        for group in groups
        for layer in _layers(group)
        if (largest := _largest(group, layer))
    ]
    if not rows:
        return None
    order = list(dict.fromkeys(row["layer"] for row in rows))
    labels = list(dict.fromkeys(row["backend"] for row in rows))
    x = quantity("x", {"grid": True, "values": [10.0**n for n in range(-6, 39)]}, type="log", nice=False)
    y = {"field": "layer", "type": "nominal", "sort": order, "axis": {"title": None, "labelLimit": 110}}
    offset = {"field": "backend", "type": "nominal", "sort": labels}
    dots = {"mark": {"type": "point", "filled": True, "size": 45, "opacity": 1}}
    dots["encoding"] = {"x": x, "y": y, "yOffset": offset, "opacity": if_picked(1, 0.1)}
    dots["encoding"]["tooltip"] = [tip("backend"), tip("layer"), tip("x", "largest", format=NUMBER)]
    end = {"data": {"values": [{"x": END}]}, "mark": {"type": "rule", "strokeDash": [4, 3]}}
    end["encoding"] = {"x": x, "color": {"value": GREY}}
    subtitle = f"by layer; dashed: {END:,}, the largest number of fp16"
    if any(len(run.nonfinite(key)) for group in groups for run in group.records for key in _keys(run)):
        subtitle += "; inf and nan left out"
    colour = {"color": by_backend(labels, styles, "colour")}
    height = max(HEIGHT, ROW * len(order))
    return specification("Largest activations", subtitle, [end, dots], rows, height=height, encoding=colour)


def _layers(group: Group) -> list[str]:
    """The layer groups that were looked at, in the order in which one would list them."""
    names = dict.fromkeys(key.removeprefix(START) for run in group.records for key in _keys(run))
    return sorted(names, key=_natural)


def _keys(run: RunRecord) -> list[str]:
    return [key for key in map(str, run.logged) if key.startswith(START)]


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Layers as one would list them: layer2 before layer10, the classifier last."""
    last = 1 if name in ("fc", "head", "classifier") else 0
    parts = re.split(r"(\d+)", name)
    return [(last, 0, ""), *((0, int(p), "") if p.isdigit() else (0, 0, p) for p in parts if p)]


def _largest(group: Group, layer: str) -> float | None:
    """The largest finite value above 0, which is what a log axis can show."""
    values = [run.values(START + layer) for run in group.records]
    found = np.concatenate(values)
    found = found[np.isfinite(found) & (found > 0)]
    return float(found.max()) if len(found) else None
