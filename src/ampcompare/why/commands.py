"""`ampcompare why`: explain, diff, guard. Free of torch until one of them runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

why = typer.Typer(
    name="why",
    help="Why mixed precision is as fast, as small, as exact as it is: of a network in a setting, beside or "
    "before a training.",
)


@why.command(context_settings={"ignore_unknown_options": True})
def guard(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[--config NAME] KEY=VALUE", help="Options of a run, such as backend=fp16."),
    ] = None,
    config: Annotated[str | None, typer.Option(metavar="NAME", help="A config, such as demo.")] = None,
    margin: Annotated[
        float, typer.Option(help="How far above the baseline's loss is well, as a share of it.")
    ] = 0.05,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of a trial.")] = 40,
    workers: Annotated[int, typer.Option(min=1, help="Trials side by side; on several GPUs one each.")] = 1,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the trials.")] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it all, for programs.")] = None,
) -> None:
    """Which modules must stay in fp32 for a loss near the baseline's, found in few short trials.

    Exit code 1 where keeping modules does not help. The same command again goes on where it was stopped.
    """
    from rich.console import Console

    from ampcompare.why.guard.command import run_guard

    given = [*(["--config", config] if config else []), *(words or [])]
    console = Console(highlight=False)
    status = run_guard(given, console, margin=margin, steps=steps, workers=workers, out=out, to=json)
    raise typer.Exit(status)


# What is no option here is one of the run, as `--batch_size 4`: its own parser says what is wrong with it.
@why.command(context_settings={"ignore_unknown_options": True})
def diff(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[--config NAME] KEY=VALUE", help="Options of a run, such as backend=native."),
    ] = None,
    config: Annotated[str | None, typer.Option(metavar="NAME", help="A config, such as demo.")] = None,
    against: Annotated[
        str, typer.Option(metavar="BACKEND", help="The backend beside it; default: none, which is fp32.")
    ] = "",
    steps: Annotated[int, typer.Option(min=1, help="Steps over which weights are followed.")] = 1,
    every: Annotated[bool, typer.Option("--all", help="Every module, not the worst 15.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A heat map by module: .png, .svg or .html.")
    ] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it all, for programs.")] = None,
) -> None:
    """Where two backends and fp64 part in a training step: each module's errors, and where they arise."""
    from rich.console import Console

    from ampcompare.why.diff.command import run_diff

    given = [*(["--config", config] if config else []), *(words or [])]
    how = {"against": against} if against else {}
    run_diff(given, Console(highlight=False), steps=steps, every=every, plot=plot, json=json, **how)
