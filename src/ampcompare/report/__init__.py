"""The comparison of runs as a page, a table and a verdict. Reads records; never imports torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ampcompare.errors import UserError
from ampcompare.records import RunRecord

if TYPE_CHECKING:
    from ampcompare.report.verdict import Analysis

PAGE_NAME = "index.html"


def analyse_runs(runs: Sequence[RunRecord], baseline: str = "none") -> Analysis:
    """Compare the runs by backend with the backend labelled `baseline`."""
    from ampcompare.report.figures import figures_of
    from ampcompare.report.setting import describe
    from ampcompare.report.verdict import analyse

    figures = [figures_of(run) for run in runs]
    return analyse(figures, describe(figures), baseline)


def prepare_folder(out: str | Path) -> Path:
    """The folder for the report, created if need be. Raises UserError where it cannot be written to."""
    folder = Path(out)
    probe = folder / f".{PAGE_NAME}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except (OSError, ValueError) as problem:  # ValueError: a NUL in the name
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise UserError(f"--out {str(out)!r}: cannot be written to ({reason}); name another folder") from None
    return folder


def write_page(analysis: Analysis, folder: Path) -> Path:
    """Write `index.html` into the folder, whole or not at all; returns its path. Raises UserError."""
    from ampcompare.report.page import render_page

    path = folder / PAGE_NAME
    half = folder / f".{PAGE_NAME}.{os.getpid()}"
    content = render_page(analysis)
    try:
        half.write_bytes(content)
        half.replace(path)
    except OSError as problem:
        half.unlink(missing_ok=True)
        raise UserError(f"{path}: cannot be written: {problem.strerror}") from None
    return path
