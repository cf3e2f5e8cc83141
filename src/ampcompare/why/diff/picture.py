"""The errors as a heat map: a row for each module in the order of the forward, a column for each measure."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ampcompare.errors import UserError
from ampcompare.report.charts.draw import FONT, PPI, SCHEMA, VEGA_LITE, Spec
from ampcompare.why.diff.answer import Difference
from ampcompare.why.diff.as_json import write
from ampcompare.why.diff.compare import Errors

KINDS = ("png", "svg", "html")
FLOOR = 1e-9  # relative errors below are of one colour, as is none
ROW, COLUMN = 14, 74  # pixels
WHAT = ("its own error", "output", "gradient", "update")


def check_kind(path: Path) -> None:
    """Raise UserError for a file of another kind."""
    if path.suffix.lower().lstrip(".") not in KINDS:
        raise UserError(f"--plot {path}: expected a file that ends in .png, .svg or .html")


def chart(found: Difference) -> Spec:
    """The heat map: colour is the relative error against fp64, by powers of ten; black is not finite."""
    rows = [
        {
            "module": f"{line.title} {line.kind}",
            "column": f"{what}, {side.label}",
            "error": shown,
            "text": text,
        }
        for line in found.lines
        for side in found.sides
        if side.label in line.errors
        for what in WHAT
        for shown, text in [_shown(line.errors[side.label], what)]
        if shown is not None
    ]
    columns = [f"{what}, {side.label}" for what in WHAT for side in found.sides]
    modules = list(dict.fromkeys(f"{line.title} {line.kind}" for line in found.lines))
    names = " and ".join(side.label for side in found.sides)
    where = [
        f"{found.network} on {found.data}, {found.samples} samples, seed {found.seed}",
        f"{found.environment['device_name']}, PyTorch {found.environment['torch']}",
        "its own: of the module alone, on fp64's inputs; black: not finite",
    ]

    def nominal(field: str, order: list[str], **axis: Any) -> Spec:
        shown = {"title": None, "domain": False, "ticks": False, **axis}
        scale = {"domain": order}
        return {"field": field, "type": "nominal", "sort": order, "scale": scale, "axis": shown}

    scale = {"type": "log", "domain": [FLOOR, 1], "clamp": True, "scheme": "viridis", "reverse": True}
    legend = {"title": "relative error", "format": "~e", "orient": "bottom", "gradientLength": 240}
    colour = {"field": "error", "type": "quantitative", "scale": scale, "legend": legend}
    known = {"transform": [{"filter": "datum.error >= 0"}], "mark": "rect", "encoding": {"color": colour}}
    broken = {"transform": [{"filter": "datum.error < 0"}], "mark": {"type": "rect", "color": "black"}}
    return {
        "$schema": SCHEMA,
        "title": {
            "text": f"Errors of {names} against fp64",
            "subtitle": where,
            "anchor": "start",
            "frame": "bounds",
        },
        "width": COLUMN * len(columns),
        "height": ROW * len(modules),
        "background": "white",
        "config": {"font": FONT, "view": {"stroke": None}, "axis": {"labelFontSize": 10.5}},
        "data": {"values": rows},
        "encoding": {
            "x": nominal("column", columns, orient="top", labelAngle=-35, labelLimit=220),
            "y": nominal("module", modules, labelLimit=320),
            "tooltip": [{"field": field, "type": "nominal"} for field in ("module", "column", "text")],
        },
        "layer": [known, broken],
    }


def _shown(errors: Errors, what: str) -> tuple[float | None, str]:
    """The error to colour by, -1 for what is not finite, None for nothing to show; and in words."""
    of = {
        "its own error": errors.own.size,
        "output": errors.output.size if errors.output else -1.0,
        "gradient": errors.gradient.size if errors.gradient else -1.0,
        "update": errors.update.size if errors.update else -1.0,
    }
    size = of[what]
    if size < 0:
        return None, ""
    if math.isinf(size):
        return -1.0, "not finite"
    return max(size, FLOOR), f"{size:.2e}"


def write_picture(found: Difference, path: Path) -> None:
    """Write the heat map as the file's name says. Raises UserError."""
    import vl_convert

    spec, kind = chart(found), path.suffix.lower().lstrip(".")
    if kind == "html":
        content = vl_convert.vegalite_to_html(spec, vl_version=VEGA_LITE, bundle=True).encode()
    elif kind == "svg":
        content = vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE).encode()
    else:
        content = vl_convert.vegalite_to_png(spec, vl_version=VEGA_LITE, ppi=PPI, scale=1)
    write(path, content, "--plot")
