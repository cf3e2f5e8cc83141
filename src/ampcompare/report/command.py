"""`ampcompare report`: from what the reader asked for to the files on disk."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ampcompare.errors import UserError, one_line, reason
from ampcompare.published.publication import load
from ampcompare.records import load_runs
from ampcompare.report.analysis.analysis import Analysis, analyse_runs
from ampcompare.report.analysis.published import WITHIN
from ampcompare.report.analysis.require import parse
from ampcompare.report.files import PAGE_NAME, prepare_folder
from ampcompare.report.markdown import to_summary
from ampcompare.report.outputs import FORMATS, PICTURES, write_report
from ampcompare.report.publish import check_target, publish
from ampcompare.report.terminal import print_table
from ampcompare.report.words import plural

EXIT_NOT_SHOWN = 3  # what was required is not shown; 2 is a mistake in the words


@dataclass(frozen=True)
class Request:
    """What is to be reported, as on the command line."""

    sources: list[str]
    out: str = "report"
    baseline: str | None = None
    metric: str | None = None
    margin: float | None = None
    group_by: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    formats: tuple[str, ...] = FORMATS
    reproduce: str | None = None
    target: float | None = None
    require: tuple[str, ...] = ()
    summary: str | None = None
    throughput: str | None = None
    memory: str | None = None
    unit: str | None = None
    goal: str | None = None
    step: str | None = None  # the step column of CSV files
    within: float = WITHIN  # what of a published ratio still counts as the same
    publish: str | None = None

    def __post_init__(self) -> None:
        if self.group_by is not None and not self.group_by:
            raise UserError("--group-by '': expected keys such as backend or backend,batch_size")
        if self.reproduce is not None:
            load(self.reproduce)
        if not 0 < self.within < 1:
            raise UserError(f"--within {self.within:g}: expected a fraction above 0 and below 1, such as 0.1")
        if self.publish is not None:
            check_target(self.publish)
        if self.target is not None and not math.isfinite(self.target):
            raise UserError(f"--target {self.target}: expected a value of the metric, such as 0.93")
        parse(self.require)

    def analyse(self, say: Callable[[str], None] = lambda line: None) -> Analysis:
        """Read the runs and compare them; `say` is told what was read but W&B's records, or passed over."""
        return analyse_runs(
            load_runs(self.sources, step=self.step, say=say),
            self.baseline,
            metric=self.metric,
            margin=self.margin,
            group_by=self.group_by,
            ignore=self.ignore,
            reproduce=self.reproduce,
            within=self.within,
            target=self.target,
            require=self.require,
            throughput=self.throughput,
            memory=self.memory,
            unit=self.unit,
            goal=self.goal,
        )


def make_report(request: Request, console: Console) -> int:
    """The table in the terminal, then the files; returns the exit code: 3 where a requirement fails, or a
    published figure is not reproduced.
    """
    analysis = request.analyse(lambda line: console.print(one_line(line), markup=False, soft_wrap=True))
    folder = prepare_folder(request.out)
    print_table(analysis, console)
    _tell(write_report(analysis, folder, request.formats), folder, console)
    if request.summary is not None:
        _append(Path(request.summary), to_summary(analysis))
    if request.publish is not None:
        written = publish(analysis, request.publish)
        console.print(f"published: {written}", soft_wrap=True, markup=False)
    failed = [answer.sentence for answer in analysis.requirements if not answer.is_shown]
    if analysis.published is not None:
        failed += analysis.published.refuted
    for sentence in failed:
        sys.stderr.write(f"{one_line(sentence)}\n")
    return EXIT_NOT_SHOWN if failed else 0


def watch_report(request: Request, console: Console, port: int) -> None:
    """The page, served and rebuilt until interrupted; the pictures, and a page for the shelf, at the end."""
    from ampcompare.report.page.watch import watch

    at_end = {"--require": request.require, "--summary": request.summary, "--publish": request.publish}
    for option in (name for name, value in at_end.items() if value):
        raise UserError(f"{option}: is answered once, when all runs are there; leave --watch out")
    if "html" not in request.formats:
        raise UserError("--watch: shows the page; add html to --format")
    folder = prepare_folder(request.out)
    quick = [name for name in request.formats if name not in PICTURES]
    latest: list[Analysis] = []
    said: list[str] = []

    def build(version: str) -> None:
        analysis = request.analyse()
        write_report(analysis, folder, quick, build=version)
        latest[:] = [analysis]
        line = f"{plural(len(analysis.figures), 'run')}: {analysis.verdict.headline}"
        if said != [line]:
            said[:] = [line]
            say(line)

    def say(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    try:
        watch(request.sources, folder, build, say, port)
    finally:
        if latest:  # whatever ended it, the page that stays asks no server for a newer one
            _tell(write_report(latest[0], folder, request.formats), folder, console)


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
    tables = [path.name for path in written if path.stem == "comparison"]
    if tables or pictures:
        also = [*tables, *([f"{pictures} pictures in charts/"] if pictures else [])]
        console.print(f"also: {', '.join(also)}", markup=False, soft_wrap=True)
    if folder / PAGE_NAME in written:
        console.print(f"page: {folder / PAGE_NAME}", soft_wrap=True, markup=False)
