"""The page: one self-contained HTML file that asks the network for nothing.

The chart library, the style, the script and the data are all inside. A content security policy in the page forbids
every request and runs only the two scripts whose hashes it names; names and settings from the runs are text.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import altair as alt
import jinja2

from ampcompare import __version__
from ampcompare.report import words
from ampcompare.report.charts import Spec, all_charts, has_data, missing_labels
from ampcompare.report.figures import RunFigures, environment_of
from ampcompare.report.palette import Style, styles
from ampcompare.report.setting import device_words
from ampcompare.report.verdict import Analysis

HERE = Path(__file__).parent
# What the page uses of the bundle; vega-embed's interpreter evaluates expressions without `eval`.
BUNDLE_SNIPPET = "window.vegaEmbed = vegaEmbed;"


def render_page(analysis: Analysis, *, now: datetime | None = None) -> bytes:
    """The page as UTF-8, lone surrogates in names replaced."""
    charts = all_charts(analysis)
    library, script = _chart_library(), _inline_script((HERE / "page.js").read_text("utf-8"))
    template = _templates().get_template("page.html.j2")
    html = template.render(
        analysis=analysis,
        charts=[_chart_entry(name, spec, analysis) for name, spec in charts.items()],
        looks={style.label: style for style in styles(g.label for g in analysis.groups)},
        environments=_environments(analysis),
        policy=_policy(library, script),
        library=library,
        script=script,
        style=(HERE / "page.css").read_text("utf-8"),
        now=now or datetime.now(UTC),
        version=__version__,
        device_words=device_words,
    )
    return html.encode("utf-8", "replace")


def script_json(value: Any) -> str:
    """JSON that is safe inside a script element: no `<`, `>` or `&`, nothing but ASCII. Raises ValueError on NaN."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["words"] = words
    environment.filters["dash_array"] = _dash_array
    return environment


def _dash_array(style: Style) -> str:
    return " ".join(str(part) for part in style.dash) if style.dash != (1, 0) else "none"


@functools.cache
def _chart_library() -> str:
    """Vega, Vega-Lite and vega-embed as one script, in the Vega-Lite version that Altair writes. Takes a second."""
    import vl_convert

    major_minor = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    return _inline_script(vl_convert.javascript_bundle(BUNDLE_SNIPPET, vl_version=major_minor))


def _inline_script(source: str) -> str:
    """A script as it can stand in a page: it must not end its element, nor hold what the HTML parser rewrites."""
    return source.replace("\r\n", "\n").replace("</script", r"<\/script").replace("<!--", r"<\!--")


def _policy(*scripts: str) -> str:
    hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


def _chart_entry(name: str, spec: Spec, analysis: Analysis) -> dict[str, Any]:
    """What the template needs of a chart; `spec` is safe JSON, empty where there is nothing to draw."""
    drawn = has_data(spec)
    return {
        "name": name,
        "title": spec["title"]["text"],
        "spec": script_json(spec) if drawn else "",
        "missing": missing_labels(spec, analysis.groups) if drawn else [],
    }


def _environments(analysis: Analysis) -> list[dict[str, Any]]:
    """Each distinct environment once, with the runs that had it."""
    found: dict[str, dict[str, Any]] = {}
    for figures in analysis.figures:
        environment = dict(environment_of(figures.run))
        key = json.dumps(environment, sort_keys=True, default=str)
        entry = found.setdefault(key, _environment_entry(environment, figures))
        entry["runs"].append(figures)
    return list(found.values())


def _environment_entry(environment: dict[str, Any], figures: RunFigures) -> dict[str, Any]:
    packages = environment.pop("packages", None)
    return {
        "device": device_words(figures),
        "items": [(str(k).replace("_", " "), _value(v)) for k, v in environment.items() if v is not None],
        "packages": {str(k): _value(v) for k, v in packages.items()} if isinstance(packages, dict) else {},
        "runs": [],
    }


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
