"""`ampcompare demo`. It imports what it needs when it runs."""

from __future__ import annotations

from typing import Annotated

import typer


def demo(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Options of every run, such as epochs=1.")
    ] = None,
) -> None:
    """Train and compare three backends on synthetic data. ResNet50, offline, up to the comparison page."""
    from rich.console import Console

    from ampcompare.demo.run import run_demo
    from ampcompare.program.console import print_line
    from ampcompare.report.command import make_report
    from ampcompare.report.request import Request

    console = Console(highlight=False)
    status = run_demo(
        words or [],
        lambda line: print_line(console, line),
        lambda folder, out: make_report(Request([folder], out), console),
    )
    if status:
        raise typer.Exit(status)
