"""What a report consists of on disk: how each kind of file is made, and that it is written whole."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ampcompare.errors import UserError, reason
from ampcompare.program.files import replacing
from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.charts import charts_of
from ampcompare.report.charts.draw import picture
from ampcompare.report.exports import to_csv, to_json
from ampcompare.report.page.render import render_page
from ampcompare.report.request import FORMATS
from ampcompare.report.text import to_markdown

PAGE_NAME = "index.html"
FILES: Mapping[str, tuple[str, Callable[[Analysis], str | bytes]]] = {
    "html": (PAGE_NAME, render_page),
    "csv": ("comparison.csv", to_csv),
    "md": ("comparison.md", to_markdown),
    "json": ("comparison.json", to_json),
}


def write_report(analysis: Analysis, folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write the chosen parts, the page first; returns what was written. Raises UserError."""
    written = []
    for kind in (kind for kind in FORMATS if kind in formats):
        if kind in FILES:
            name, make = FILES[kind]
            written.append(write_file(folder / name, make(analysis)))
        else:
            charts = charts_of(analysis).items()
            written += [
                write_file(folder / f"charts/{name}.{kind}", picture(spec, kind)) for name, spec in charts
            ]
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
