"""What a report consists of on disk: one entry for each kind of file, from which all else follows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ampcompare.errors import UserError
from ampcompare.report import exports
from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.files import PAGE_NAME, write_file


@dataclass(frozen=True)
class Draft:
    """What files are made of: the analysis and its charts, drawn once for all of them.

    `build` is the version of a page that asks its own server for newer ones, empty for one that is kept.
    """

    analysis: Analysis
    build: str = ""

    @cached_property
    def charts(self) -> dict[str, Any]:
        """The specifications of the charts by name, those without data too."""
        from ampcompare.report.charts.catalogue import all_charts

        return all_charts(self.analysis)

    @cached_property
    def published(self) -> dict[str, Any]:
        """The charts beside published figures."""
        from ampcompare.report.charts.published import published_charts

        return published_charts(self.analysis)


@dataclass(frozen=True)
class Output:
    """One kind of file: its path in the report's folder, its content type, and how it is made.

    A `*` in the path stands for the name of a chart: there is a file for each that has data.
    """

    path: str
    content_type: str
    make: Callable[[Draft], Mapping[str, bytes] | bytes | str]

    def holds(self, path: str) -> bool:
        """Whether a path is that of such a file."""
        return re.fullmatch(re.escape(self.path).replace(r"\*", "[a-z0-9-]+"), path) is not None


def _page(draft: Draft) -> bytes:
    from ampcompare.report.page.render import render_page

    return render_page(
        draft.analysis,
        charts=draft.charts,
        beside=draft.published,
        build=draft.build,
    )


def _pictures(kind: str) -> Callable[[Draft], Mapping[str, bytes]]:
    def make(draft: Draft) -> Mapping[str, bytes]:
        from ampcompare.report.charts.catalogue import has_data
        from ampcompare.report.charts.pictures import draw

        everything = draft.charts | draft.published
        return {name: draw(spec, kind) for name, spec in everything.items() if has_data(spec)}

    return make


# By the name that `--format` takes; the page is written first.
OUTPUTS = {
    "html": Output(PAGE_NAME, "text/html; charset=utf-8", _page),
    "csv": Output("comparison.csv", "text/csv; charset=utf-8", lambda d: exports.to_csv(d.analysis)),
    "md": Output("comparison.md", "text/markdown; charset=utf-8", lambda d: exports.to_markdown(d.analysis)),
    "json": Output("comparison.json", "application/json", lambda d: exports.to_json(d.analysis)),
    "png": Output("charts/*.png", "image/png", _pictures("png")),
    "svg": Output("charts/*.svg", "image/svg+xml", _pictures("svg")),
}
FORMATS = tuple(OUTPUTS)
PICTURES = tuple(name for name, output in OUTPUTS.items() if "*" in output.path)


def choose_formats(words: str) -> tuple[str, ...]:
    """The formats that `--format html,png` names. Raises UserError."""
    chosen = [word.strip().lower() for word in words.split(",") if word.strip()]
    if chosen == ["all"]:
        return tuple(OUTPUTS)
    unknown = [word for word in chosen if word not in OUTPUTS]
    if unknown or not chosen:
        wrong = unknown[0] if unknown else words
        raise UserError(f"--format {wrong!r}: expected some of {', '.join(OUTPUTS)}, or all")
    return tuple(name for name in OUTPUTS if name in chosen)


def output_of(path: str) -> Output | None:
    """The output that a path in the report's folder belongs to, None for what is no part of a report."""
    return next((output for output in OUTPUTS.values() if output.holds(path)), None)


def write_report(
    analysis: Analysis,
    folder: Path,
    formats: Sequence[str] = FORMATS,
    *,
    build: str = "",
) -> list[Path]:
    """Write the chosen parts; returns what was written. Raises UserError."""
    draft = Draft(analysis, build)
    written = []
    for output in (output for name, output in OUTPUTS.items() if name in formats):
        made = output.make(draft)
        files = made if isinstance(made, Mapping) else {"": made}
        for name, content in files.items():
            whole = content.encode("utf-8", "replace") if isinstance(content, str) else content
            written.append(write_file(folder / output.path.replace("*", name), whole))
    return written
