"""`ampcompare report`: from what the reader asked for to the files on disk, and then the text."""

import sys
from pathlib import Path

from rich.console import Console

from ampcompare.errors import UserError, one_line, reason
from ampcompare.report.options import PICTURES, Request
from ampcompare.report.publish import publish
from ampcompare.report.text_renderer import print_table, to_summary
from ampcompare.report.writer import PAGE_NAME, write_report
from ampcompare.runtime.atomic_files import make_folder
from ampcompare.runtime.messages import messages_on

EXIT_NOT_SHOWN = 3  # what was required is not shown; 2 is a mistake in the words


def make_report(request: Request, console: Console) -> int:
    """The files, then the table in the terminal, whose reader may leave; returns the exit code: 3 where a
    requirement fails, or a published figure is not reproduced.
    """
    with messages_on(console):
        analysis = request.analyse()
        folder = make_folder(Path(request.out), f"--out {request.out!r}")
        written = write_report(analysis, folder, request.kinds)
    if request.summary is not None:
        _append(Path(request.summary), to_summary(analysis))
    published = publish(analysis, request.publish) if request.publish is not None else None
    print_table(analysis, console)
    if published is not None:
        say(console, f"published: {published}")
    tell(written, folder, console)
    failed = [answer.sentence for answer in analysis.gate_results if not answer.is_shown]
    failed += analysis.reproduction.refuted if analysis.reproduction is not None else []
    for sentence in failed:
        sys.stderr.write(f"{one_line(sentence)}\n")
    return EXIT_NOT_SHOWN if failed else 0


def _append(path: Path, block: str) -> None:
    """Add the block to the file, which others write to as well (GITHUB_STEP_SUMMARY). Raises UserError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8", errors="replace") as file:
            file.write(block)
    except OSError as problem:
        raise UserError(f"--summary {path}: {reason(problem)}; name a file that can be written") from None


def tell(written: list[Path], folder: Path, console: Console) -> None:
    """Say what was written, the page last."""
    pictures = sum(path.suffix[1:] in PICTURES for path in written)
    also = [path.name for path in written if path.stem == "comparison"]
    also += [f"{pictures} pictures in charts/"] if pictures else []
    if also:
        say(console, f"also: {', '.join(also)}")
    if folder / PAGE_NAME in written:
        say(console, f"page: {folder / PAGE_NAME}")


def say(console: Console, line: str) -> None:
    console.print(one_line(line), markup=False, soft_wrap=True)
