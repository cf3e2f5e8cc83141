"""`ampcompare report`: from what the reader asked for to the files on disk, and then the text."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from ampcompare.errors import UserError, one_line, reason
from ampcompare.records.sources import split_arm
from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.outputs import PAGE_NAME, prepare_folder, write_report
from ampcompare.report.publish import publish
from ampcompare.report.request import PICTURES, Request
from ampcompare.report.text import print_table, to_summary
from ampcompare.report.words import plural

EXIT_NOT_SHOWN = 3  # what was required is not shown; 2 is a mistake in the words


def make_report(request: Request, console: Console) -> int:
    """The files, then the table in the terminal, whose reader may leave; returns the exit code: 3 where a
    requirement fails, or a published figure is not reproduced.
    """
    said: list[str] = []
    analysis = request.analyse(said.append)
    folder = prepare_folder(request.out)
    written = write_report(analysis, folder, request.kinds)
    if request.summary is not None:
        _append(Path(request.summary), to_summary(analysis))
    published = publish(analysis, request.publish) if request.publish is not None else None
    for line in said:
        _say(console, line)
    print_table(analysis, console)
    if published is not None:
        _say(console, f"published: {published}")
    _tell(written, folder, console)
    failed = [answer.sentence for answer in analysis.requirements if not answer.is_shown]
    if analysis.published is not None:
        failed += analysis.published.refuted
    for sentence in failed:
        sys.stderr.write(f"{one_line(sentence)}\n")
    return EXIT_NOT_SHOWN if failed else 0


def watch_report(request: Request, console: Console) -> None:
    """The page, served and rebuilt until interrupted; the pictures at the end."""
    from ampcompare.report.watch import watch

    folder = prepare_folder(request.out)
    latest: list[Analysis] = []
    last_line = ""

    def build() -> None:
        nonlocal last_line
        analysis = request.analyse()
        write_report(analysis, folder, [kind for kind in request.kinds if kind not in PICTURES])
        latest[:] = [analysis]
        line = f"{plural(len(analysis.table), 'run')}: {analysis.headline}"
        if line != last_line:
            _say(console, line)
        last_line = line

    try:
        places = [split_arm(source)[1] for source in request.sources]
        watch(places, folder, build, lambda line: _say(console, line), request.port)
    finally:
        if latest:
            _tell(write_report(latest[0], folder, request.kinds), folder, console)


def _append(path: Path, block: str) -> None:
    """Add the block to the file, which others write to as well (GITHUB_STEP_SUMMARY). Raises UserError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8", errors="replace") as file:
            file.write(block)
    except OSError as problem:
        raise UserError(f"--summary {path}: {reason(problem)}; name a file that can be written") from None


def _tell(written: list[Path], folder: Path, console: Console) -> None:
    pictures = sum(path.suffix[1:] in PICTURES for path in written)
    also = [path.name for path in written if path.stem == "comparison"]
    also += [f"{pictures} pictures in charts/"] if pictures else []
    if also:
        _say(console, f"also: {', '.join(also)}")
    if folder / PAGE_NAME in written:
        _say(console, f"page: {folder / PAGE_NAME}")


def _say(console: Console, line: str) -> None:
    console.print(one_line(line), markup=False, soft_wrap=True)
