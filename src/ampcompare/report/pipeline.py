"""`ampcompare report`: analyse the runs, write the report's files, print the table."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from ampcompare.analysis.analysis import Analysis
from ampcompare.errors import UserError, one_line, reason
from ampcompare.report.charts import charts_of
from ampcompare.report.charts.vega import draw, for_paper
from ampcompare.report.exports import to_csv, to_json
from ampcompare.report.options import FORMATS, PICTURES, ReportOptions
from ampcompare.report.page.render import render_page
from ampcompare.report.text_renderer import print_table, to_markdown, to_summary
from ampcompare.runtime.atomic_files import make_folder, write_file
from ampcompare.runtime.console import messages_on

EXIT_NOT_SHOWN = 3  # a gate fails, or a published value is not reproduced; 2 is bad input
PAGE_NAME = "index.html"
EXPORTS: Mapping[str, tuple[str, Callable[[Analysis], str]]] = {  # by format: file name, renderer
    "csv": ("comparison.csv", to_csv),
    "md": ("comparison.md", to_markdown),
    "json": ("comparison.json", to_json),
}


def make_report(options: ReportOptions, console: Console) -> int:
    """Write the report's files, then print the table.

    The files come first: the reader of the terminal may leave (`... | head`).

    Returns:
        The exit code: 0; EXIT_NOT_SHOWN where a gate fails or a published value is not reproduced.

    Raises:
        UserError: If the runs cannot be compared, or a file cannot be written.
    """
    with messages_on(console):
        analysis = options.analyse()
        folder = make_folder(Path(options.out), f"--out {options.out!r}")
        written = write_report(analysis, folder, options.chosen_formats)
    if options.summary is not None:
        _append(Path(options.summary), to_summary(analysis))
    print_table(analysis, console)
    print_written(written, folder, console)
    failed = [answer.sentence for answer in analysis.gate_results if not answer.is_shown]
    failed += analysis.reproduction.refuted if analysis.reproduction is not None else []
    for sentence in failed:
        sys.stderr.write(f"{one_line(sentence)}\n")
    return EXIT_NOT_SHOWN if failed else 0


def write_report(analysis: Analysis, folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write the files of a report, the page first.

    Args:
        formats: Some of FORMATS.

    Returns:
        The written files.

    Raises:
        UserError: If a file cannot be written.
    """
    picture_formats = [kind for kind in PICTURES if kind in formats]
    charts = charts_of(analysis) if picture_formats or "html" in formats else {}
    written = []
    if "html" in formats:
        written.append(write_file(folder / PAGE_NAME, render_page(analysis, charts=charts)))
    for name, render in (EXPORTS[kind] for kind in FORMATS if kind in formats and kind in EXPORTS):
        written.append(write_file(folder / name, render(analysis)))
    for name, spec in charts.items() if picture_formats else ():
        pictures = draw(for_paper(spec), picture_formats)
        written += [write_file(folder / f"charts/{name}.{kind}", pictures[kind]) for kind in picture_formats]
    return written


def _append(path: Path, block: str) -> None:
    """Append a block to a file that other programs also write to, such as GITHUB_STEP_SUMMARY.

    Raises:
        UserError: If the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8", errors="replace") as file:
            file.write(block)
    except OSError as problem:
        raise UserError(f"--summary {path}: {reason(problem)}; name a file that can be written") from None


def print_written(written: Sequence[Path], folder: Path, console: Console) -> None:
    """Print which files were written, the page last."""
    pictures = sum(path.suffix[1:] in PICTURES for path in written)
    names = [path.name for path in written if path.stem == "comparison"]
    if pictures:
        names.append(f"{pictures} pictures in charts/")
    if names:
        say(console, f"also: {', '.join(names)}")
    if folder / PAGE_NAME in written:
        say(console, f"page: {folder / PAGE_NAME}")


def say(console: Console, line: str) -> None:
    """Print one line as it is, without markup and without wrapping."""
    console.print(one_line(line), markup=False, soft_wrap=True)
