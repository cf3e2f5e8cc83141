"""The page: one self-contained HTML file that asks the network for nothing.

The chart library, the style, the script and the data are all inside. A content security policy in the page
forbids every request and runs only the two scripts whose hashes it names; what comes from runs is text.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2

from ampcompare import __version__
from ampcompare.report import words
from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.analysis.judged import ELSEWHERE, OPEN, REFUTED, REPRODUCED
from ampcompare.report.charts.catalogue import OF_COMPARISONS, all_charts, has_data, missing_labels
from ampcompare.report.charts.parts import DATA, Spec
from ampcompare.report.charts.pictures import vl_version
from ampcompare.report.charts.published import published_charts
from ampcompare.report.page.pack import pack
from ampcompare.report.page.shown import Shown
from ampcompare.report.palette import CHIPS, Style
from ampcompare.report.runs.informative import information

HERE = Path(__file__).parent
SCRIPTS = ("charts.js", "runs_table.js", "columns.js", "page.js")
STYLES = ("page.css", "verdict.css", "tables.css")
CARDS = 12  # of more groups the rest is in the lines and the table alone
VERDICT_LOOKS = {REPRODUCED: "equivalent", REFUTED: "lower", OPEN: "undecided", ELSEWHERE: "undecided"}
# What the page uses of the bundle; vega-embed's interpreter evaluates expressions without `eval`.
BUNDLE_SNIPPET = "window.vegaEmbed = vegaEmbed;"


def render_page(
    analysis: Analysis,
    *,
    now: datetime | None = None,
    charts: Mapping[str, Spec] | None = None,
    beside: Mapping[str, Spec] | None = None,
    build: str = "",
) -> bytes:
    """The page as UTF-8, lone surrogates in names replaced. It computes no figure: all are the analysis's.

    `charts` and `beside` are those of `all_charts` and `published_charts` where the caller has them already.
    With a `build` the page asks its own server for `/build`, and reloads when the answer is another.
    """
    charts = all_charts(analysis) if charts is None else charts
    beside = published_charts(analysis) if beside is None else beside
    library = _chart_library()
    script = _inline_script("\n".join((HERE / name).read_text("utf-8") for name in SCRIPTS))
    drawn = [name for name, spec in charts.items() if has_data(spec)]
    context: dict[str, Any] = {"analysis": analysis, "styles": analysis.styles, "marks": CHIPS}
    context["quantities"] = analysis.quantities
    html = (
        _templates()
        .get_template("page.html.j2")
        .render(
            **context,
            view=Shown(analysis.view(), analysis.metric.tolerance),
            cards=analysis.groups[:CARDS],
            more=len(analysis.groups[CARDS:]),
            columns=_columns(analysis),
            size=_size_of_test_set(analysis),
            has_best=any(f.best_accuracy is not None for f in analysis.figures),
            charts=[_chart_entry(name, charts[name], analysis) for name in drawn],
            undrawn=_undrawn(charts),
            verdict_looks=VERDICT_LOOKS,
            beside=[_chart_entry(name, spec, None) for name, spec in beside.items() if has_data(spec)],
            build=build,
            policy=_policy(library, script, connect="'self'" if build else ""),
            library=library,
            script=script,
            style="\n".join((HERE / name).read_text("utf-8") for name in STYLES) + chip_styles(),
            now=now or datetime.now(UTC),
            version=__version__,
        )
    )
    return html.encode("utf-8", "replace")


def script_json(value: Any) -> str:
    """JSON that is safe inside a script element: ASCII without `<`, `>`, `&`. Raises ValueError on NaN."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def chip_styles() -> str:
    """The colours of the chips, on light and on dark paper; print is light."""

    def rules(side: str) -> str:
        looks = ((name, *getattr(chip, side)) for name, chip in CHIPS.items())
        return "\n".join(
            f".mark.{name} {{ background: {ground}; color: {ink}; }}" for name, ground, ink in looks
        )

    return f"{rules('light')}\n@media screen and (prefers-color-scheme: dark) {{\n{rules('dark')}\n}}\n"


def _columns(analysis: Analysis) -> list[tuple[str, str]]:
    """Name and head of each column of the table of groups."""
    return [
        ("name", words.listed(analysis.keys)),
        ("runs", "runs"),
        ("throughput", analysis.quantities.speed),
        ("speed", "speed-up"),
        ("steps", "step p50, ms"),
        ("peak", analysis.quantities.peak),
        ("memory", "memory change"),
        ("quality", analysis.metric.name),
        ("difference", analysis.metric.difference),
        ("equivalence", "equivalence, p"),
        ("target", "time to target" if analysis.target is None else f"time to {_target(analysis)}"),
        ("skipped", "skipped steps"),
        ("time", "training time"),
    ]


def _undrawn(charts: Mapping[str, Spec]) -> list[str]:
    """The titles of the charts for which nothing was recorded."""
    return [spec["title"]["text"].lower() for spec in charts.values() if not has_data(spec)]


def _target(analysis: Analysis) -> str:
    return f"{analysis.target:g}{' %' if analysis.metric.is_share else ''}"


def _size_of_test_set(analysis: Analysis) -> str:
    """How many images a value of the metric is of, and what that leaves to chance; nothing where unknown."""
    group = analysis.baseline or next((g for g in analysis.groups if g.counted), None)
    found = information(group.label, group.counted, analysis.metric) if group else None
    return found.size if found and found.images else ""


def _templates() -> jinja2.Environment:
    strict, loader = jinja2.StrictUndefined, jinja2.FileSystemLoader(HERE)
    blocks: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True}
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=strict, **blocks)
    environment.globals |= {"words": words, "dash_array": _dash_array, "sortable": _sortable}
    return environment


def _dash_array(style: Style) -> str:
    return " ".join(str(part) for part in style.dash) if style.dash != (1, 0) else "none"


@functools.cache
def _chart_library() -> str:
    """Vega, Vega-Lite (the version that Altair writes) and vega-embed as one script. Takes a second."""
    import vl_convert

    return _inline_script(vl_convert.javascript_bundle(BUNDLE_SNIPPET, vl_version=vl_version()))


def _inline_script(source: str) -> str:
    """A script as it can stand in a page: without its element's end and what the parser rewrites."""
    return source.replace("\r\n", "\n").replace("</script", r"<\/script").replace("<!--", r"<\!--")


def _policy(*scripts: str, connect: str = "") -> str:
    digests = (hashlib.sha256(script.encode("utf-8")).digest() for script in scripts)
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode('ascii')}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'" + (f"; connect-src {connect}" if connect else "")
    )


def _chart_entry(name: str, spec: Spec, analysis: Analysis | None) -> dict[str, Any]:
    """What the template needs of a chart; `spec` is safe JSON, `missing` the groups it lacks."""
    return {
        "name": name,
        "title": spec["title"]["text"],
        "spec": script_json(spec | {"datasets": {DATA: pack(spec["datasets"][DATA])}}),
        "missing": missing_labels(spec, analysis.groups) if analysis and name not in OF_COMPARISONS else [],
    }


def _sortable(value: float | None) -> str:
    return "" if value is None else repr(value)
