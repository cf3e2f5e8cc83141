"""`ampcompare why`: explain, diff, guard. Free of torch until one of them runs."""

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


# What is no option here is one of the run, as `--batch_size 4`: its own parser says what is wrong with it.
OPTIONS_OF_A_RUN = {"ignore_unknown_options": True}
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[--config NAME] KEY=VALUE", help="Options of a run, such as backend=native."),
]
Named = Annotated[str | None, typer.Option(metavar="NAME", help="A config, such as demo.")]
Json = Annotated[
    Path | None, typer.Option(metavar="FILE", dir_okay=False, help="Write it all, for programs.")
]


# What is looked at where nothing is chosen: it is there at once, on every machine.
SMALL = ("--config", "demo", "model.name=tiny", "device=cpu")


def _given(words: list[str] | None, config: str | None) -> list[str]:
    # Modules and ops are looked at one by one, which a compiled or captured step does not have.
    words = words or []
    chosen = ("model.", "data.", "published.", "--config")
    if config is None and not any(word.lstrip("+").startswith(chosen) for word in words):
        words = [*SMALL, *words]
    return [*(["--config", config] if config else []), *words, "execution=eager"]


@why.command(context_settings=OPTIONS_OF_A_RUN)
def explain(
    words: Words = None,
    config: Named = None,
    against: Annotated[
        str, typer.Option(metavar="BACKEND", help="The backend beside it; default: none, which is fp32.")
    ] = "none",
    seconds: Annotated[
        float, typer.Option(min=0, help="For steps of both in turn; 0: types and memory alone.")
    ] = 10.0,
    json: Json = None,
) -> None:
    """Types, memory and time of a step under two backends, and why."""
    from rich.console import Console

    from ampcompare.why.explain import run_explain

    run_explain(_given(words, config), against, seconds, json, Console(highlight=False))


@why.command(context_settings=OPTIONS_OF_A_RUN)
def diff(
    words: Words = None,
    config: Named = None,
    every: Annotated[bool, typer.Option("--all", help="Every module, not the worst 15.")] = False,
    json: Json = None,
) -> None:
    """Where a backend leaves fp32 in a training step: each module's errors, and where they arise."""
    from rich.console import Console

    from ampcompare.why.diff import run_diff

    run_diff(_given(words, config), Console(highlight=False), every=every, file=json)


@why.command(context_settings=OPTIONS_OF_A_RUN)
def guard(
    words: Words = None,
    config: Named = None,
    margin: Annotated[
        float, typer.Option(help="How far above fp32's loss is well, as a share of what fp32 learns.")
    ] = 0.05,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of a trial.")] = 40,
    json: Json = None,
) -> None:
    """Which modules must stay in fp32 for a loss near fp32's, found in few short trials.

    Exit code 1 where keeping modules does not help.
    """
    from rich.console import Console

    from ampcompare.why.fp32_search import run_guard

    console = Console(highlight=False)
    raise typer.Exit(run_guard(_given(words, config), console, margin=margin, steps=steps, file=json))
