"""The charts as PNG and SVG for a paper: white ground, one column wide, 300 dots an inch."""

from __future__ import annotations

import copy
import functools
import re
from typing import Any

import altair as alt

from ampcompare.report.charts.parts import Spec, is_for_screens

WIDTH = 460  # pixels of 1/96 inch: a column of 12 cm
PPI = 300
FONT = "DejaVu Sans, Arial, Helvetica, sans-serif"
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def paper_spec(spec: Spec) -> Spec:
    """The chart at a fixed width, on white, without what only a reader at a screen can use."""
    paper: Spec = copy.deepcopy({key: value for key, value in spec.items() if key != "datasets"})
    paper["datasets"] = spec["datasets"]
    paper |= {"width": WIDTH, "background": "white", "autosize": {"type": "pad", "contains": "padding"}}
    paper["padding"] = 10
    paper["params"] = [param for param in paper["params"] if param["name"] != "zoom"]  # it would clip as well
    # Clipping is for zooming, intervals aside, which may be longer than the axis; each clipped mark costs the
    # rasteriser a layer of its own: 5.9 s for 13 charts with, 1.2 s without.
    paper["layer"] = [layer for layer in paper["layer"] if not is_for_screens(layer)] or paper["layer"]
    for layer in paper["layer"]:
        if layer["mark"]["type"] != "rule" and not paper.get("usermeta", {}).get("cut"):
            layer["mark"].pop("clip", None)
    paper["config"]["font"] = FONT
    return _printable(paper)


def _printable(value: Any) -> Any:
    """The value with its texts as XML can hold them; names of runs may have control characters."""
    if isinstance(value, str):
        return NOT_XML.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {_printable(key): _printable(inner) for key, inner in value.items()}
    return [_printable(inner) for inner in value] if isinstance(value, list) else value


def draw(spec: Spec, kind: str) -> bytes:
    """One chart as `png` or `svg`."""
    import vl_convert

    paper, version = paper_spec(spec), vl_version()
    if kind == "svg":
        return vl_convert.vegalite_to_svg(paper, vl_version=version).encode("utf-8", "replace")
    return vl_convert.vegalite_to_png(paper, vl_version=version, ppi=PPI, scale=1)


@functools.cache
def vl_version() -> str:
    """The Vega-Lite version that Altair writes, as vl-convert names it."""
    return ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
