"""What a report consists of on disk: how each kind of file is made, and that it is written whole."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ampcompare.analysis.analysis import Analysis
from ampcompare.errors import UserError, reason
from ampcompare.report.charts import charts_of
from ampcompare.report.charts.vega import draw_pictures
from ampcompare.report.exports import to_csv, to_json
from ampcompare.report.options import FORMATS, PICTURES
from ampcompare.report.page.render import render_page
from ampcompare.report.text_renderer import to_markdown
from ampcompare.runtime.atomic_files import replacing

PAGE_NAME = "index.html"
FILES: Mapping[str, tuple[str, Callable[[Analysis], str | bytes]]] = {
    "csv": ("comparison.csv", to_csv),
    "md": ("comparison.md", to_markdown),
    "json": ("comparison.json", to_json),
}


def write_report(analysis: Analysis, folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write the chosen parts, the page first; returns what was written. Raises UserError."""
    kinds = [kind for kind in PICTURES if kind in formats]
    charts = charts_of(analysis) if kinds or "html" in formats else {}
    written = []
    if "html" in formats:
        written.append(write_file(folder / PAGE_NAME, render_page(analysis, charts=charts)))
    for name, make in (FILES[kind] for kind in FORMATS if kind in formats and kind in FILES):
        written.append(write_file(folder / name, make(analysis)))
    pictures = draw_pictures(charts, kinds) if kinds else {}
    for name, made in pictures.items():
        written += [write_file(folder / f"charts/{name}.{kind}", made[kind]) for kind in kinds]
    return written


def write_file(path: Path, content: str | bytes) -> Path:
    """Write it whole, in a folder that is made if need be; returns the path. Raises UserError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(content if isinstance(content, bytes) else content.encode("utf-8", "replace"))
    except OSError as problem:
        raise UserError(f"{path}: cannot be written: {reason(problem)}") from None
    return path
