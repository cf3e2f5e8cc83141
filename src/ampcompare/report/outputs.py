"""What a report consists of on disk, and which parts of it were asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ampcompare.errors import UserError
from ampcompare.report import PAGE_NAME, write_file
from ampcompare.report.analysis.verdict import Analysis

TABLES = ("csv", "md", "json")
PICTURES = ("png", "svg")
FORMATS = ("html", *TABLES, *PICTURES)
CHART_FOLDER = "charts"


def choose_formats(words: str) -> tuple[str, ...]:
    """The formats that `--format html,png` names. Raises UserError."""
    chosen = [word.strip().lower() for word in words.split(",") if word.strip()]
    if chosen == ["all"]:
        return FORMATS
    for word in chosen:
        if word not in FORMATS:
            raise UserError(f"--format {word!r}: expected some of {', '.join(FORMATS)}, or all")
    if not chosen:
        raise UserError(f"--format {words!r}: expected some of {', '.join(FORMATS)}, or all")
    return tuple(name for name in FORMATS if name in chosen)


def write_report(
    analysis: Analysis,
    folder: Path,
    formats: Sequence[str] = FORMATS,
    *,
    reproduce: str | None = None,
    build: str = "",
) -> list[Path]:
    """Write the chosen parts, the page first; returns what was written. Raises UserError."""
    from ampcompare.report.charts.catalogue import all_charts, has_data

    written = []
    published = None
    charts = all_charts(analysis) if {"html", *PICTURES} & set(formats) else {}
    if reproduce is not None:
        from ampcompare.report.charts import published as reproduction

        published = reproduction.reproduce(analysis, reproduce)
    if "html" in formats:
        from ampcompare.report.page.render import render_page

        content = render_page(analysis, charts=charts, published=published, build=build)
        written.append(write_file(folder / PAGE_NAME, content))
    if chosen := [name for name in TABLES if name in formats]:
        from ampcompare.report import exports

        makers = {"csv": exports.to_csv, "md": exports.to_markdown, "json": exports.to_json}
        for name in chosen:
            content = makers[name](analysis).encode("utf-8", "replace")
            written.append(write_file(folder / f"comparison.{name}", content))
    if kinds := tuple(name for name in PICTURES if name in formats):
        from ampcompare.report.charts.pictures import write_pictures

        everything = {**charts, **(published.charts if published else {})}
        drawn = {name: spec for name, spec in everything.items() if has_data(spec)}
        written += write_pictures(drawn, folder / CHART_FOLDER, kinds, write_file)
    return written
