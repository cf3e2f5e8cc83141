"""`ampcompare why`: explain, diff, guard. Torch is imported when one of them runs."""

from pathlib import Path
from typing import Annotated

import typer

from ampcompare.runtime.startup import let_threads_sleep

why = typer.Typer(
    name="why",
    help="Why mixed precision is as fast, small and exact as it is. Of a network in a setting, beside or "
    "before a training.",
)


@why.callback()
def _before_torch_is_loaded() -> None:
    let_threads_sleep()


# An unknown option may be one of the run, such as `--batch_size 4`: the run's own parser checks it.
RUN_OPTIONS = {"ignore_unknown_options": True}
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[--config NAME] KEY=VALUE", help="Options of a run, such as backend=native."),
]
ConfigName = Annotated[str | None, typer.Option(metavar="NAME", help="A config, such as demo.")]
JsonFile = Annotated[
    Path | None, typer.Option(metavar="FILE", dir_okay=False, help="Write it all, for programs.")
]


# The defaults where the options choose neither model nor data: quick, and on every machine.
SMALL = ("--config", "demo", "model.name=tiny", "device=cpu")


def _complete(overrides: list[str] | None, config: str | None) -> list[str]:
    """Return the options of the run: the given ones or SMALL, and eager execution.

    A compiled step or a CUDA graph has no single modules and ops to examine.
    """
    overrides = overrides or []
    chosen = ("model.", "data.", "published.", "--config")
    if config is None and not any(word.lstrip("+").startswith(chosen) for word in overrides):
        overrides = [*SMALL, *overrides]
    return [*(["--config", config] if config else []), *overrides, "execution=eager"]


@why.command(context_settings=RUN_OPTIONS)
def explain(
    words: Words = None,
    config: ConfigName = None,
    against: Annotated[
        str, typer.Option(metavar="BACKEND", help="The backend beside it; default: none, which is fp32.")
    ] = "none",
    seconds: Annotated[
        float, typer.Option(min=0, help="For steps of both in turn; 0: types and memory alone.")
    ] = 10.0,
    json: JsonFile = None,
) -> None:
    """Types, memory and time of a step under two backends, and why."""
    from rich.console import Console

    from ampcompare.why.explain import run_explain

    run_explain(_complete(words, config), against, seconds, json, Console(highlight=False))


@why.command(context_settings=RUN_OPTIONS)
def diff(
    words: Words = None,
    config: ConfigName = None,
    every: Annotated[bool, typer.Option("--all", help="Every module, not the worst 15.")] = False,
    json: JsonFile = None,
) -> None:
    """Where a backend leaves fp32 in a training step: each module's errors, and where they arise."""
    from rich.console import Console

    from ampcompare.why.diff import run_diff

    run_diff(_complete(words, config), Console(highlight=False), every=every, file=json)


@why.command(context_settings=RUN_OPTIONS)
def guard(
    words: Words = None,
    config: ConfigName = None,
    margin: Annotated[
        float, typer.Option(help="How far above fp32's loss is well, as a share of what fp32 learns.")
    ] = 0.05,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of a trial.")] = 40,
    json: JsonFile = None,
) -> None:
    """Which modules must stay in fp32 for a loss near fp32's, found in few short trials.

    Exit code 1 where keeping modules does not help.
    """
    from rich.console import Console

    from ampcompare.why.fp32_search import run_guard

    console = Console(highlight=False)
    raise typer.Exit(run_guard(_complete(words, config), console, margin=margin, steps=steps, file=json))
