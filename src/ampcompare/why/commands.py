"""`ampcompare why`: explain, diff, guard. Free of torch until one of them runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

why = typer.Typer(
    name="why",
    help="Why mixed precision is as fast, small and exact as it is. Of a network in a setting, beside or "
    "before a training.",
)

# What is no option here is one of the run, as `--batch_size 4`: its own parser says what is wrong with it.
OPTIONS_OF_A_RUN = {"ignore_unknown_options": True}
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[--config NAME] KEY=VALUE", help="Options of a run, such as backend=native."),
]
Named = Annotated[str | None, typer.Option(metavar="NAME", help="A config, such as demo.")]
Json = Annotated[Path | None, typer.Option(metavar="FILE", help="Write it all, for programs.")]


def _given(words: list[str] | None, config: str | None) -> list[str]:
    return [*(["--config", config] if config else []), *(words or [])]


@why.command(context_settings=OPTIONS_OF_A_RUN)
def explain(
    words: Words = None,
    config: Named = None,
    on: Annotated[
        str,
        typer.Option(metavar="DEVICE", help="A device by its data sheet, as H100; default: this machine."),
    ] = "",
    against: Annotated[
        str, typer.Option(metavar="BACKEND", help="The backend beside it; default: none, which is fp32.")
    ] = "none",
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write it all, for programs and for report --explain."),
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
    given = _given(words, config)
    raise typer.Exit(run_explain(given, against, on, json, seconds, measure, console))


@why.command(context_settings=OPTIONS_OF_A_RUN)
def diff(
    words: Words = None,
    config: Named = None,
    against: Annotated[
        str, typer.Option(metavar="BACKEND", help="The backend beside it; default: none, which is fp32.")
    ] = "",
    steps: Annotated[int, typer.Option(min=1, help="Steps over which weights are followed.")] = 1,
    every: Annotated[bool, typer.Option("--all", help="Every module, not the worst 15.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A heat map by module: .png, .svg or .html.")
    ] = None,
    json: Json = None,
) -> None:
    """Where two backends and fp64 part in a training step: each module's errors, and where they arise."""
    from rich.console import Console

    from ampcompare.why.diff.command import run_diff

    how = {"against": against} if against else {}
    given = _given(words, config)
    run_diff(given, Console(highlight=False), steps=steps, every=every, plot=plot, json=json, **how)


@why.command(context_settings=OPTIONS_OF_A_RUN)
def guard(
    words: Words = None,
    config: Named = None,
    margin: Annotated[
        float, typer.Option(help="How far above the baseline's loss is well, as a share of it.")
    ] = 0.05,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of a trial.")] = 40,
    workers: Annotated[int, typer.Option(min=1, help="Trials side by side; on several GPUs one each.")] = 1,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the trials.")] = None,
    json: Json = None,
) -> None:
    """Which modules must stay in fp32 for a loss near the baseline's, found in few short trials.

    Exit code 1 where keeping modules does not help. The same command again goes on where it was stopped.
    """
    from rich.console import Console

    from ampcompare.why.guard.command import run_guard

    console = Console(highlight=False)
    given = _given(words, config)
    status = run_guard(given, console, margin=margin, steps=steps, workers=workers, out=out, to=json)
    raise typer.Exit(status)
