"""A publication's ratios of each figure, ours beside theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampcompare.report.charts.draw import GREY, HEIGHT, NUMBER, Spec, chart, quantity, tip
from ampcompare.report.charts.rows import shortened

if TYPE_CHECKING:
    from ampcompare.report.analysis.published import Reproduction

THEIRS, OURS = "published", "these runs"
BLUE = "#2a86c8"
ROW = 30  # pixels


def published_ratios(beside: Reproduction) -> Spec | None:
    """Each published ratio with its rounding, ours with its interval, whole, on one log axis."""
    rows = []
    for row in beside.rows:
        if not row.relation.is_ratio:  # differences in accuracy have another axis; the table has them
            continue
        head = {"row": f"{row.arm}: {row.relation.figure}", "verdict": row.verdict}
        for source, found in ((THEIRS, row.theirs), (OURS, row.ours)):
            if found is not None and found.value > 0:
                ends = {"x": found.value, "low": found.low or found.value, "high": found.high or found.value}
                rows.append(head | {"from": source} | {key: shortened(value) for key, value in ends.items()})
    if not rows:
        return None
    colour: Spec = {"field": "from", "type": "nominal", "legend": None}
    colour["scale"] = {"domain": [THEIRS, OURS], "range": [GREY, BLUE]}
    y = {"field": "row", "type": "nominal", "sort": None, "axis": {"title": None, "labelLimit": 240}}
    offset = {"field": "from", "type": "nominal", "sort": [THEIRS, OURS]}
    x = quantity("x", {"grid": True}, type="log", nice=False, padding=8)
    tips = [tip("row", "figure"), tip("from"), tip("x", "ratio", format=NUMBER)]
    tips += [tip("low", "from", format=NUMBER), tip("high", "to", format=NUMBER), tip("verdict")]
    spans = {"mark": {"type": "rule", "strokeWidth": 2.5}}
    spans["encoding"] = {"x": x | {"field": "low"}, "x2": {"field": "high"}, "y": y, "yOffset": offset}
    marks = {"mark": {"type": "point", "filled": True, "size": 80, "opacity": 1}}
    shape: Spec = {"field": "from", "type": "nominal", "legend": None}
    shape["scale"] = {"domain": [THEIRS, OURS], "range": ["diamond", "circle"]}
    marks["encoding"] = {"x": x, "y": y, "yOffset": offset, "shape": shape, "tooltip": tips}
    same = {"data": {"values": [{"x": 1}]}, "mark": {"type": "rule"}}
    same["encoding"] = {"x": x, "color": {"value": GREY}}
    more = {"height": max(HEIGHT, ROW * len({row["row"] for row in rows})), "encoding": {"color": colour}}
    subtitle = "ratio to the baseline; ◆ published, as it was rounded; ● these runs, with their interval"
    return chart("Beside the published", subtitle, [same, spans, marks], rows, **more)
