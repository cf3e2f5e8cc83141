"""`ampcompare sweep` and `ampcompare reproduce`. Heavy imports happen when a command runs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ampcompare.errors import UserError, reason
from ampcompare.runtime.atomic_files import make_folder
from ampcompare.runtime.paths import shell_command

SEEDS = 3  # runs of each arm of a publication


def sweep(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A W&B sweep file, or a bundled one.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Options for every run, such as epochs=1; seed=1,2 varies."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Runs at a time; default: GPUs, or one.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name and W&B group; default: the file's.")
    ] = None,
    control: Annotated[
        str | None, typer.Option(metavar="bookends", help="The baseline once more, first and last.")
    ] = None,
    until_decided: Annotated[
        bool, typer.Option("--until-decided", help="Add seeds until each claim is decided.")
    ] = False,
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME", help="slurm or ray; their options: slurm.time=60.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="With slurm: stay until the job array has ended.")
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="List what is left to do; also of wandb:E/P/SWEEP.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--rerun", help="Make new runs of what is neither finished nor running.")
    ] = False,
    changed_code: Annotated[
        bool, typer.Option("--changed-code", help="Continue although your own files have changed.")
    ] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Print the file, to change it or for wandb sweep.")
    ] = False,
) -> None:
    """Run a W&B sweep file without a server; the same command again continues."""
    from rich.console import Console

    from ampcompare.runs.loader import API_PREFIX
    from ampcompare.sweeps.prepare import SweepOptions
    from ampcompare.sweeps.sweep_file import read_sweep

    if show:
        typer.echo(read_sweep(file).path.read_text(encoding="utf-8"), nl=False)
        return
    if status and again:
        raise UserError("--status --rerun: --status only lists open runs, --rerun trains them; leave one out")

    console = Console(highlight=False)
    options = SweepOptions(workers, name, control, until_decided, cluster, wait, again, changed_code)
    if status or again:
        from ampcompare.sweeps.status import read_status, rerun, show_status

        if again:
            raise typer.Exit(rerun(file, words or [], console, options))
        raise typer.Exit(show_status(read_status(file, words or [], options), console))
    if file.startswith(API_PREFIX):
        todo = "add --status to list open runs or --rerun to train them here, or run wandb agent"
        raise UserError(f"{file}: this sweep is on W&B's server; {todo}")
    from ampcompare.sweeps.pipeline import run_sweep

    raise typer.Exit(run_sweep(file, words or [], console, options))


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
    """Run what others have published and judge it; the same command again continues.

    Exit code 3: a published figure is not reproduced.
    """
    from rich.console import Console

    from ampcompare.config.load import parse_override
    from ampcompare.sweeps.reproduce import describe_publications, sweep_file

    console, overrides = Console(highlight=False), words or []
    flags: dict[str, Any] = {"seeds": seeds, "scale": scale, "network": network, "write-sweep": write_sweep}
    flags |= {"workers": workers, "out": out, "runs": runs or None}
    if name is None:
        wrong, why = (
            "scale network write-sweep workers out runs",
            "needs the name of a publication; ampcompare reproduce lists them",
        )
    elif runs:
        wrong, why = (
            "scale network write-sweep workers seeds",
            "--runs compares runs that exist, so this option has no effect; leave it out",
        )
    else:
        wrong, why = (
            "out workers" if write_sweep else "",
            "--write-sweep only writes a file, so this option has no effect; leave it out",
        )
    unfit = [f"--{option} {flags[option]}" for option in wrong.split() if flags[option] is not None]
    if unfit := [*unfit, *(overrides if runs else ())]:
        raise UserError(f"{unfit[0]}: {why}")
    if name is None:
        typer.echo("\n".join(describe_publications(seeds or SEEDS)))
        return
    if runs:
        from ampcompare.report.options import ReportOptions
        from ampcompare.report.pipeline import make_report

        raise typer.Exit(make_report(ReportOptions([*runs], out or "report", reproduce=name), console))
    arguments = (name, seeds or SEEDS, 1.0 if scale is None else scale, network, overrides)
    if write_sweep is not None:
        _, text = sweep_file(*arguments, file=str(write_sweep))
        try:
            with write_sweep.open("x", encoding="utf-8") as created:
                created.write(text)
        except (OSError, ValueError) as problem:
            raise UserError(f"--write-sweep {write_sweep}: {reason(problem)}; name a new file") from None
        commands = (shell_command(program, "sweep", write_sweep) for program in ("ampcompare", "wandb"))
        typer.echo(f"{write_sweep}: {', or '.join(commands)}")
        return
    from ampcompare.sweeps.pipeline import run_sweep
    from ampcompare.sweeps.prepare import SweepOptions

    sweep_name, text = sweep_file(*arguments)
    output_dir = dict(map(parse_override, overrides)).get("output_dir")
    if out and output_dir:
        raise UserError(f"--out {out}: output_dir={output_dir} also names the folder; leave one out")
    folder = Path(out or output_dir or Path("runs") / sweep_name)
    file = make_folder(folder, f"--out {folder}") / "sweep.yaml"
    file.write_text(text, encoding="utf-8")
    options = SweepOptions(workers)
    raise typer.Exit(run_sweep(str(file), [*overrides, f"output_dir={folder}"], console, options))
