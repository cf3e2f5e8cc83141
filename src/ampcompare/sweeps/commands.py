"""`ampcompare sweep`. It imports what it needs when it runs."""

from typing import Annotated

import typer

from ampcompare.errors import UserError


def sweep(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A W&B sweep file, or a shipped one.")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Options for every run, such as epochs=1.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Runs at a time; default: GPUs, or one.")
    ] = None,
    storage: Annotated[
        str | None, typer.Option(metavar="URL", help="Database that machines share; default: a file.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name and W&B group; default: the file's.")
    ] = None,
    grace: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=10, show_default=False, help="Silence until a run is taken over: 60."
        ),
    ] = 60.0,
    control: Annotated[
        str | None, typer.Option(metavar="bookends", help="The baseline once more, first and last.")
    ] = None,
    until_decided: Annotated[
        bool, typer.Option("--until-decided", help="Add seeds until each claim is decided.")
    ] = False,
    cluster: Annotated[
        str | None, typer.Option(metavar="slurm", help="As one job array; its words: slurm.time=60.")
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Print the file, to change it or for wandb sweep.")
    ] = False,
    missing: Annotated[
        bool, typer.Option("--missing", help="List what is missing; also of wandb:E/P/SWEEP.")
    ] = False,
    fill: Annotated[bool, typer.Option("--fill", help="Run just that, here or with --cluster.")] = False,
) -> None:
    """Run a W&B sweep file without a server; started again, it goes on."""
    from rich.console import Console

    from ampcompare.records.sources import API_PREFIX
    from ampcompare.sweeps.file import read_sweep
    from ampcompare.sweeps.run import Request, run_sweep

    if show:
        typer.echo(read_sweep(file).path.read_text(encoding="utf-8"), nl=False)
        return

    console = Console(highlight=False)
    request = Request(workers, storage, name, grace, control, until_decided)
    if missing and cluster is not None:
        raise UserError(f"--cluster {cluster} --missing: leave --cluster out; it is looked at from here")
    if missing or (fill and cluster is None):
        from ampcompare.sweeps.holes.command import see_holes

        raise typer.Exit(see_holes(file, words or [], console, request, fill=fill, missing=missing))
    if file.startswith(API_PREFIX):
        todo = "--missing lists its holes, --fill runs them here, wandb agent runs the rest"
        raise UserError(f"{file}: is on W&B's server; {todo}")
    if cluster is not None:
        from ampcompare.sweeps.cluster.submit import submit_sweep

        raise typer.Exit(submit_sweep(file, words or [], console, request, cluster, fill=fill))
    raise typer.Exit(run_sweep(file, words or [], console, request))
