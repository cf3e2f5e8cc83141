"""The errors as a heat map: a row for each module in the order of the forward, a column for each measure."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import altair as alt

from ampcompare.errors import UserError
from ampcompare.report.charts.pictures import FONT, PPI, vl_version
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


def chart(found: Difference) -> alt.Chart:
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
    x: Any = alt.X("column:N", sort=columns, title=None, scale=alt.Scale(domain=columns))
    x.axis = alt.Axis(orient="top", labelAngle=-35, labelLimit=220, domain=False, ticks=False)
    y: Any = alt.Y("module:N", sort=modules, title=None, scale=alt.Scale(domain=modules))
    y.axis = alt.Axis(labelLimit=320, domain=False, ticks=False)
    scale = alt.Scale(type="log", domain=[FLOOR, 1], clamp=True, scheme="viridis", reverse=True)
    legend = alt.Legend(title="relative error", format="~e", orient="bottom", gradientLength=240)
    base = alt.Chart(alt.Data(values=rows)).encode(x=x, y=y, tooltip=["module:N", "column:N", "text:N"])
    known = base.transform_filter("datum.error >= 0").mark_rect()
    colour = alt.Color("error:Q", scale=scale, legend=legend)
    broken = base.transform_filter("datum.error < 0").mark_rect(color="black")
    names = " and ".join(side.label for side in found.sides)
    where = [
        f"{found.network} on {found.data}, {found.samples} samples, seed {found.seed}",
        f"{found.environment['device_name']}, PyTorch {found.environment['torch']}",
        "its own: of the module alone, on fp64's inputs; black: not finite",
    ]
    title = alt.Title(f"Errors of {names} against fp64", subtitle=where, anchor="start", frame="bounds")
    return (
        alt.layer(known.encode(color=colour), broken)
        .properties(width=COLUMN * len(columns), height=ROW * len(modules), title=title, background="white")
        .configure(font=FONT)
        .configure_view(stroke=None)
        .configure_axis(labelFontSize=10.5)
    )


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

    drawn, kind = chart(found), path.suffix.lower().lstrip(".")
    if kind == "html":
        content = drawn.to_html(inline=True).encode()
    elif kind == "svg":
        content = vl_convert.vegalite_to_svg(drawn.to_dict(), vl_version=vl_version()).encode()
    else:
        spec = drawn.to_dict()
        content = vl_convert.vegalite_to_png(spec, vl_version=vl_version(), ppi=PPI, scale=1)
    write(path, content, "--plot")
