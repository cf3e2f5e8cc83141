"""`ampcompare reproduce`: the list, the runs with their report, a sweep file, or runs that exist judged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ampcompare.errors import UserError, reason
from ampcompare.program.files import make_folder
from ampcompare.program.place import as_typed

SEEDS = 3


def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The publication, or a YAML file; none: lists them.")
    ] = None,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Options of every run, as device=cuda.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of each arm; 3 by default.")] = None,
    scale: Annotated[
        float | None, typer.Option(help="For a look: that much of its epochs, images and batch size.")
    ] = None,
    network: Annotated[str | None, typer.Option(metavar="tiny", help="For a look: another network.")] = None,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder of the runs; with --runs, of the report.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Runs at a time; default: GPUs, or one.")] = None,
    runs: Annotated[
        list[str] | None, typer.Option(metavar="SOURCE", help="Judge these runs instead, as report does.")
    ] = None,
    write_sweep: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it as a sweep file instead, for W&B too.")
    ] = None,
) -> None:
    """Run what others have published and judge it. Started again, it goes on.

    Exit code 3: a published figure is not reproduced.
    """
    from rich.console import Console

    from ampcompare.config.load import split_override
    from ampcompare.reproduce.as_sweep import sweep_file
    from ampcompare.reproduce.listing import lines

    console, given = Console(highlight=False), words or []
    asked: dict[str, object] = {
        "seeds": seeds,
        "scale": scale,
        "network": network,
        "write-sweep": write_sweep,
    }
    asked |= {"workers": workers, "out": out, "runs": runs, "words": " ".join(given)}
    if name is None:
        taken, why = ["seeds"], "of which publication? give its name"
    elif runs:
        taken, why = ["runs", "out"], "--runs judges runs that exist; leave it out"
    elif write_sweep:
        taken, why = (
            ["write-sweep", "seeds", "scale", "network", "words"],
            "--write-sweep runs nothing; leave it out",
        )
    else:
        taken, why = [*asked], ""
    for option, value in asked.items():
        if value not in (None, [], "") and option not in taken:
            raise UserError(f"{'' if option == 'words' else f'--{option} '}{value}: {why}")
    if name is None:
        typer.echo("\n".join(lines(seeds or SEEDS)))
        return
    if runs:
        from ampcompare.report.command import make_report
        from ampcompare.report.request import Request

        raise typer.Exit(make_report(Request([*runs], out or "report", reproduce=name), console))
    way = (name, seeds or SEEDS, 1.0 if scale is None else scale, network, given)
    if write_sweep is not None:
        if write_sweep.exists():
            raise UserError(f"--write-sweep {write_sweep}: there is such a file; name another, or remove it")
        _, text = sweep_file(*way, file=str(write_sweep))
        try:
            write_sweep.write_text(text, encoding="utf-8")
        except (OSError, ValueError) as problem:
            todo = "name a file that can be written"
            raise UserError(f"--write-sweep {write_sweep}: {reason(problem)}; {todo}") from None
        ways = (as_typed(program, "sweep", write_sweep) for program in ("ampcompare", "wandb"))
        typer.echo(f"{write_sweep}: {', or '.join(ways)}")
        return
    from ampcompare.sweeps import run

    called, text = sweep_file(*way)
    there = dict(map(split_override, given)).get("output_dir")
    if out and there:
        raise UserError(f"--out {out}: output_dir={there} says it too; leave one out")
    folder = Path(out or there or Path("runs") / called)
    file = make_folder(folder, f"--out {folder}") / "sweep.yaml"
    file.write_text(text, encoding="utf-8")
    request = run.Request(workers)
    raise typer.Exit(run.run_sweep(str(file), [*given, f"output_dir={folder}"], console, request))
