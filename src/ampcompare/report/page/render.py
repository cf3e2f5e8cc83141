"""Render the pages of a comparison and of a ranking: self-contained HTML files without network requests.

The chart library, the style, the script and the data are all inside. A content security policy in the page
forbids every request and allows the page's own scripts, by their hashes. Everything that comes from runs is
text.
"""

import base64
import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2

from ampcompare import __version__
from ampcompare.analysis.analysis import Analysis
from ampcompare.analysis.grouping.backend_info import display_name
from ampcompare.analysis.reproduction import REFUTED, REPRODUCED
from ampcompare.analysis.run_ranking import RunRanking
from ampcompare.report.charts import NUMERICS, PUBLISHED, TRAINING, charts_of
from ampcompare.report.charts.forest import FOREST
from ampcompare.report.charts.vega import VEGA_LITE, Spec, config
from ampcompare.report.comparison_table import (
    TextRows,
    comparison_table,
    machines_table,
    recipe_table,
    runs_table,
)
from ampcompare.report.palette import styles_of
from ampcompare.report.text_renderer import SHOWN_CAVEATS
from ampcompare.runtime import formatting
from ampcompare.runtime.atomic_files import cache_folder, replacing

HERE = Path(__file__).parent
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
TONES = {REPRODUCED: "good", REFUTED: "bad"}
# What the page uses of the bundle; vega-embed's interpreter evaluates expressions without `eval`.
BUNDLE_SNIPPET = "window.vegaEmbed = vegaEmbed;"


def render_page(
    analysis: Analysis, now: datetime | None = None, charts: Mapping[str, Spec] | None = None
) -> bytes:
    """Return the page as UTF-8, lone surrogates in names replaced.

    No value is computed here: all come from the analysis.

    Args:
        now: The date that the page shows; None for today.
        charts: `charts_of(analysis)`, if these exist already.
    """
    if charts is None:
        charts = charts_of(analysis)
    table = comparison_table(analysis)
    styles = styles_of(analysis)
    colours = {label: f"var(--c{number})" for number, label in enumerate(styles)}
    library = _chart_library()
    script = _inline_script((HERE / "page.js").read_text("utf-8"))
    style = config("var(--ink)", "var(--soft)", "var(--line)", "var(--paper)", FONT)
    drawn = {name: _on_page(spec, colours) for name, spec in charts.items()}
    return _render(
        "page.html.j2",
        [library, script],
        analysis=analysis,
        styles=styles,
        table=table,
        runs=runs_table(analysis),
        machines=machines_table(analysis),
        recipe=recipe_table(analysis),
        charts=charts,
        forests=[name for name in charts if name.startswith(FOREST)],
        training=[name for name in TRAINING if name in charts],
        numerics=[(NUMERICS[key][0] if key else "", text) for key, text in analysis.numerics.items()],
        published=PUBLISHED,
        colours=colours,
        loud=SHOWN_CAVEATS,
        tones=TONES,
        specifications=script_json({"config": style, "charts": drawn}),
        library=library,
        script=script,
        now=now or datetime.now(UTC),
        formatting=formatting,
        display_name=display_name,
    )


def render_ranking(ranking: RunRanking, rows: TextRows, notes: Sequence[str]) -> bytes:
    """Return the page of a ranking as UTF-8.

    Args:
        rows: The table of the runs.
        notes: Sentences above the table.
    """
    return _render("ranking.html.j2", [], ranking=ranking, rows=rows, notes=notes)


def _render(template: str, scripts: Sequence[str], **content: Any) -> bytes:
    """Return a page as UTF-8 with the common head and style; its policy allows these scripts."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["unbroken"] = formatting.unbroken
    html = environment.get_template(template).render(
        policy=_policy(scripts),
        style=(HERE / "page.css").read_text("utf-8"),
        version=__version__,
        **content,
    )
    return html.encode("utf-8", "replace")


def script_json(value: Any) -> str:
    """Return JSON that is safe inside a script element: ASCII without `<`, `>` and `&`.

    Raises:
        ValueError: For NaN.
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def _on_page(spec: Spec, colours: Mapping[str, str]) -> Spec:
    """Return the chart in the page's colours, which differ in dark mode, without title and description."""
    spec = {name: part for name, part in spec.items() if name not in ("title", "description", "$schema")}
    channel = spec["encoding"]["color"]
    labels = channel["scale"]["domain"]
    if all(label in colours for label in labels):
        scale = {"domain": labels, "range": [colours[label] for label in labels]}
        spec["encoding"] = spec["encoding"] | {"color": channel | {"scale": scale}}
    return spec


def _chart_library() -> str:
    """Return Vega, Vega-Lite and vega-embed as one script.

    It takes 2.4 s to make, so it is kept in the cache.
    """
    name = f"vega-{version('vl-convert-python')}-{VEGA_LITE}.js"
    with contextlib.suppress(OSError):  # not made yet, or there is no home folder
        return (cache_folder() / "charts" / name).read_text("utf-8")
    import vl_convert

    bundle = _inline_script(vl_convert.javascript_bundle(BUNDLE_SNIPPET, vl_version=VEGA_LITE))
    with contextlib.suppress(OSError):  # it is made again next time
        path = cache_folder() / "charts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(bundle.encode("utf-8"))
    return bundle


def _inline_script(source: str) -> str:
    """Return a script that a page can contain: without its end tag, and with Unix line ends."""
    return source.replace("\r\n", "\n").replace("</script", r"<\/script").replace("<!--", r"<\!--")


def _policy(scripts: Sequence[str]) -> str:
    digests = (hashlib.sha256(script.encode("utf-8")).digest() for script in scripts)
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode('ascii')}'" for digest in digests)
    allowed = hashes or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
