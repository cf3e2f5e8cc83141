"""`ampcompare why`: explain, diff, guard. Free of torch until one of them runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

why = typer.Typer(
    name="why",
    help="Why mixed precision is as fast, as small, as exact as it is: for a network and a setting, beside "
    "or before a training.",
    no_args_is_help=True,
)

# Options of a run, `--config demo` among them, stand between those of the command.
WORDS = {"ignore_unknown_options": True, "allow_extra_args": True}


@why.command(context_settings=WORDS)
def explain(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Options of the run, `--config NAME` too.")
    ] = None,
    on: Annotated[
        str,
        typer.Option(metavar="DEVICE", help="A device by its data sheet, as H100; default: this machine."),
    ] = "",
    against: Annotated[str, typer.Option(metavar="BACKEND", help="What it is compared with.")] = "none",
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it all into a file, for the report's page.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0, help="For timing single ops here; 0: by the rates of the probe alone.")
    ] = 10.0,
    measure: Annotated[
        int, typer.Option(metavar="ROUNDS", min=0, help="Run the step so often, beside the forecast.")
    ] = 0,
) -> None:
    """Types, memory and time of a step under two backends, and why: without training, data or the device."""
    from rich.console import Console

    from ampcompare.why.explain.command import run_explain

    console = Console(highlight=False)
    raise typer.Exit(run_explain(words or [], against, on, json, seconds, measure, console))
