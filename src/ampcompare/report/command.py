"""`ampcompare report`: from what the reader asked for to the files on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ampcompare import metrics
from ampcompare.errors import UserError
from ampcompare.records import load_runs
from ampcompare.report.analysis.analysis import Analysis, analyse_runs
from ampcompare.report.analysis.published import published
from ampcompare.report.files import PAGE_NAME, prepare_folder
from ampcompare.report.outputs import FORMATS, PICTURES, write_report
from ampcompare.report.terminal import print_table
from ampcompare.report.words import plural


@dataclass(frozen=True)
class Request:
    """What is to be reported, as on the command line."""

    sources: list[str]
    out: str = "report"
    baseline: str = "none"
    metric: str = metrics.EVAL_ACCURACY
    margin: float | None = None
    group_by: tuple[str, ...] = ("backend",)
    ignore: tuple[str, ...] = ()
    formats: tuple[str, ...] = FORMATS
    reproduce: str | None = None

    def __post_init__(self) -> None:
        if not self.group_by:
            raise UserError("--group-by '': expected keys such as backend or backend,batch_size")
        name, key = self.reproduce, self.group_by[0]
        if name is not None and key != "backend":
            raise UserError(f"--reproduce {name}: compares backends; leave --group-by {key} out")
        if name is not None:
            published(name)

    def analyse(self) -> Analysis:
        """Read the runs and compare them."""
        return analyse_runs(
            load_runs(self.sources),
            self.baseline,
            metric=self.metric,
            margin=self.margin,
            group_by=self.group_by,
            ignore=self.ignore,
            reproduce=self.reproduce,
        )


def make_report(request: Request, console: Console) -> None:
    """The table in the terminal, then the files."""
    analysis = request.analyse()
    folder = prepare_folder(request.out)
    print_table(analysis, console)
    _tell(write_report(analysis, folder, request.formats), folder, console)


def watch_report(request: Request, console: Console, port: int) -> None:
    """The page, served and rebuilt until interrupted; the pictures, and a page for the shelf, at the end."""
    from ampcompare.report.page.watch import watch

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


def _tell(written: list[Path], folder: Path, console: Console) -> None:
    pictures = sum(path.suffix[1:] in PICTURES for path in written)
    tables = [path.name for path in written if path.stem == "comparison"]
    if tables or pictures:
        also = [*tables, *([f"{pictures} pictures in charts/"] if pictures else [])]
        console.print(f"also: {', '.join(also)}", markup=False, soft_wrap=True)
    if folder / PAGE_NAME in written:
        console.print(f"page: {folder / PAGE_NAME}", soft_wrap=True, markup=False)
