"""The comparison of runs as a page, charts, tables and a verdict. Reads records; never imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ampcompare.errors import UserError, reason
from ampcompare.program.files import make_folder, replacing
from ampcompare.records import RunRecord

if TYPE_CHECKING:
    from ampcompare.report.analysis.verdict import Analysis

PAGE_NAME = "index.html"
CHARTS_JOB = "ampcompare-charts"  # job type of the run that holds the charts' tables on W&B; no training


def analyse_runs(
    runs: Sequence[RunRecord],
    baseline: str = "none",
    *,
    metric: str = "eval/accuracy",
    margin: float | None = None,
    group_by: Sequence[str] = ("backend",),
    ignore: Sequence[str] = (),
) -> Analysis:
    """Compare the runs by the first key of `group_by` with the baseline, the value `baseline` of that key.

    `metric` is the quality that is compared, `margin` what still counts as the same (0.5 points for
    accuracies), `ignore` settings that may differ within a group. Raises UserError.
    """
    from ampcompare.report.analysis.figures import figures_of
    from ampcompare.report.analysis.groups import check_keys
    from ampcompare.report.analysis.metric import choose_metric
    from ampcompare.report.analysis.settings import describe
    from ampcompare.report.analysis.verdict import analyse

    runs = [run for run in runs if run.job_type != CHARTS_JOB]
    if not runs:
        raise UserError(
            "the sources hold no training runs, only the charts of an earlier report; name others"
        )
    chosen = choose_metric(metric, margin, runs)
    figures = [figures_of(run, metric) for run in runs]
    check_keys("--group-by", group_by, figures)
    check_keys("--ignore", ignore, figures)
    return analyse(figures, describe(figures), baseline, chosen, tuple(group_by), frozenset(ignore))


def prepare_folder(out: str | Path) -> Path:
    """The folder for the report, created if need be. Raises UserError where it cannot be written to."""
    return make_folder(Path(out), f"--out {str(out)!r}")


def write_file(path: Path, content: bytes) -> Path:
    """Write a file whole or not at all; returns its path. Raises UserError."""
    try:
        with replacing(path) as file:
            file.write(content)
    except OSError as problem:
        raise UserError(f"{path}: cannot be written: {reason(problem)}") from None
    return path


def write_page(analysis: Analysis, folder: Path) -> Path:
    """Write `index.html` into the folder; returns its path. Raises UserError."""
    from ampcompare.report.page.render import render_page

    return write_file(folder / PAGE_NAME, render_page(analysis))
