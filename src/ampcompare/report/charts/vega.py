"""Build Vega-Lite specifications, and draw them as pictures.

A specification has title and data, but no theme. `config` returns the theme: for the page in its colour
scheme, for a picture on white. A test validates specifications with Vega; a report does not.
"""

import json
import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ampcompare.report.palette import Style  # imports pandas; `bench` draws without it

Spec = dict[str, Any]
VEGA_LITE = "6.1"  # the oldest 6.x version that vl-convert has
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
HEIGHT = 170  # of every chart on the page
# A column of 12 cm, in pixels of 1/96 inch.
WIDTH = 460
PICTURE_HEIGHT = 250
PPI = 300  # dots per inch of a PNG
FONT = "DejaVu Sans, Arial, Helvetica, sans-serif"
LINE_WIDTH = 2
NAMES = {"title": None, "labelLimit": 110}  # an axis with names
# What fits WIDTH.
SUBTITLE_CHARS = 76
LEGEND_CHARS = 60
GREY = "#767c88"  # on white and on near-black
PAPER = "paper"  # the signal with the colour of the ground
PICK = "pick"  # the signal with the label that the reader selected; null for none
NUMBER = ",.6~r"  # decimal without trailing zeros: an axis from 0.16 has no label 0.2
# Control characters, which XML cannot hold, and characters that Vega would halve where it shortens a label.
NOT_PRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd]")


def chart(
    title: str, subtitle: str, layers: Sequence[Spec], values: Sequence[Mapping[str, Any]], **more: Any
) -> Spec:
    """Return a chart of layers over one list of data.

    Args:
        layers: From the lowest to the topmost.
        values: One datum per row; a layer may have data of its own instead.
        **more: Further entries of the specification, or others in place of these.
    """
    return {
        "$schema": SCHEMA,
        "title": {"text": title, "subtitle": subtitle},
        "background": "transparent",
        "width": "container",
        "height": HEIGHT,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"values": list(values)},
        "params": [{"name": PICK, "value": None}],
        "layer": list(layers),
        **more,
    }


def nominal(field: str, **more: Any) -> Spec:
    """Return a channel of names."""
    return {"field": field, "type": "nominal", **more}


def point(size: int, **more: Any) -> Spec:
    """Return the mark of a filled point."""
    return {"type": "point", "filled": True, "size": size, "opacity": 1, **more}


def by_backend(labels: Sequence[str], styles: "Mapping[str, Style]", attribute: str) -> Spec:
    """Return a channel from label to an attribute of its style; the page has one legend for all charts."""
    values = [getattr(styles[label], attribute) for label in labels]
    range_ = [list(value) if isinstance(value, tuple) else value for value in values]
    scale = {"domain": list(labels), "range": range_}
    return nominal("backend", scale=scale, legend=None)


def quantity(field: str, axis: Spec | None = None, **scale: Any) -> Spec:
    """Return a quantitative channel without a title, whose axis need not begin at 0."""
    shown = {"format": NUMBER, "title": None, **(axis or {})}
    zero = {} if scale.get("type") == "log" else {"zero": False}
    return {"field": field, "type": "quantitative", "axis": shown, "scale": zero | scale}


def tip(field: str, title: str | None = None, **more: Any) -> Spec:
    """Return one line of a tooltip; with `format`, the field is a number."""
    kind = {"type": "quantitative"} if "format" in more else {"type": "nominal"}
    return {"field": field, "title": title or field, **kind, **more}


def if_picked(full: float, faint: float) -> Spec:
    """Return an opacity: `full` unless the reader selected another backend."""
    return {
        "condition": {"test": f"{PICK} === null || {PICK} === datum.backend", "value": full},
        "value": faint,
    }


PICKED = if_picked(1, 0.1)  # the opacity of points and lines


def zone(x: Spec, low: float, high: float) -> Spec:
    """Return a layer that shades a part of the x axis."""
    return {
        "data": {"values": [{"low": low, "high": high}]},
        "mark": {"type": "rect", "opacity": 0.12},
        "encoding": {"x": x | {"field": "low"}, "x2": {"field": "high"}, "color": {"value": GREY}},
    }


def line_at(x: Spec, value: float, **mark: Any) -> Spec:
    """Return a layer with a vertical line."""
    return {
        "data": {"values": [{"x": value}]},
        "mark": {"type": "rule", **mark},
        "encoding": {"x": x, "color": {"value": GREY}},
    }


def config(ink: str, soft: str, line: str, paper: str, font: str) -> Spec:
    """Return the theme of a chart in these colours."""
    return {
        "params": [{"name": PAPER, "value": paper}],
        "font": font,
        "axis": {
            "labelColor": soft,
            "titleColor": soft,
            "gridColor": line,
            "domainColor": line,
            "tickColor": line,
            "labelFontSize": 11,
            "titleFontSize": 11,
            "titleFontWeight": "normal",
            "domain": False,
            "ticks": False,
            "labelPadding": 5,
            "titlePadding": 6,
            "labelOverlap": True,
        },
        "view": {"stroke": None},
        "axisX": {"grid": False, "labelSeparation": 8, "labelFlush": True},
        "axisQuantitative": {"tickCount": 5},
        "legend": {"labelColor": ink, "title": None, "orient": "top", "labelLimit": 210, "offset": 8},
        "title": {
            "color": ink,
            "subtitleColor": soft,
            "anchor": "start",
            "frame": "bounds",
            "offset": 12,
            "fontSize": 14,
            "subtitleFontSize": 11,
            "subtitlePadding": 5,
        },
        "rule": {"color": soft},
        "text": {"color": ink},
    }


def for_paper(spec: Spec) -> Spec:
    """Return the chart for a paper: on white, with title, legend and setting inside."""
    where = textwrap.wrap(spec.get("description", ""), SUBTITLE_CHARS)
    title = {
        "text": spec["title"]["text"],
        "subtitle": [*textwrap.wrap(spec["title"]["subtitle"], SUBTITLE_CHARS), *where],
    }
    height = max(PICTURE_HEIGHT, spec["height"]) if isinstance(spec["height"], int) else spec["height"]
    paper = spec | {"title": title, "width": WIDTH, "height": height, "background": "white", "padding": 10}
    paper |= {"autosize": "pad", "config": config("#1c2330", "#5b6472", "#dfe3e9", "white", FONT)}
    drawn = [layer for layer in spec["layer"] if "params" not in layer]  # the others react to a pointer
    symbol = "stroke" if any(layer["mark"]["type"] == "line" for layer in drawn) else "circle"
    paper["layer"] = [layer | {"encoding": _with_legends(layer["encoding"], symbol)} for layer in drawn]
    paper["encoding"] = _with_legends(spec["encoding"], symbol)
    printable: Spec = _printable(paper)
    return printable


def draw(paper: Spec, kinds: Collection[str]) -> dict[str, bytes]:
    """Return the pictures of a specification by format, which are some of `svg` and `png`."""
    import vl_convert

    svg = vl_convert.vegalite_to_svg(json.dumps(paper), vl_version=VEGA_LITE)
    pictures = {}
    if "svg" in kinds:
        pictures["svg"] = svg.encode("utf-8", "replace")
    if "png" in kinds:
        pictures["png"] = vl_convert.svg_to_png(svg, ppi=PPI, scale=1)
    return pictures


def _with_legends(encoding: Spec, symbol: str) -> Spec:
    """Return the encoding with a legend of the backends."""
    result = dict(encoding)
    for name in [name for name in ("color", "strokeDash") if result.get(name, {}).get("field") == "backend"]:
        labels = result[name]["scale"]["domain"]
        columns = max(1, min(len(labels), LEGEND_CHARS // (min(30, max(map(len, labels))) + 7)))
        look = {"symbolType": symbol, "symbolStrokeWidth": LINE_WIDTH, "columns": columns}
        legend = look | {"symbolSize": 420 if symbol == "stroke" else 60}
        result[name] = result[name] | {"legend": legend}
    return result


def _printable(value: Any) -> Any:
    """Return the value with texts that a picture can show; names of runs may have any character."""
    if isinstance(value, str):
        return NOT_PRINTABLE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {_printable(key): _printable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_printable(inner) for inner in value]
    return value
