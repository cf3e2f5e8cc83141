"""`ampcompare sweep` and `ampcompare reproduce`. Heavy imports happen when a command runs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ampcompare.command_help import epilog
from ampcompare.errors import UserError, reason
from ampcompare.runtime.atomic_files import make_folder
from ampcompare.runtime.help_text import BAD_INPUT
from ampcompare.runtime.paths import find_shipped, shell_command

SEEDS = 3  # runs of each arm of a publication
SWEEP_EPILOG = epilog(
    {
        "Three backends, five seeds each, five epochs": "ampcompare sweep compare_backends epochs=5",
        "Your own network and data": (
            "ampcompare sweep compare_backends model.name=./net.py:build data.source=./data.py:build epochs=5"
        ),
        "Other backends and seeds than in the file": (
            "ampcompare sweep compare_backends backend=none,native seed=1,2,3"
        ),
        "What the sweep can decide, and how long it takes": "ampcompare sweep compare_backends --plan",
        "Add seeds until every claim is decided": "ampcompare sweep compare_backends --until-decided",
        "List the runs that are left": "ampcompare sweep runs/compare_backends --status",
        "A copy of a bundled sweep file, to change": (
            "ampcompare sweep compare_backends --show > my_sweep.yaml"
        ),
        "Submit the runs as a Slurm job array": (
            "ampcompare sweep compare_backends --cluster slurm slurm.time=60"
        ),
    },
    {
        0: "all runs finished; with --status or --rerun: nothing is left to do",
        1: "runs failed, or there is no report",
        **BAD_INPUT,
        3: "with --status or --rerun: runs are left to do",
        "128+": "stopped by a signal, such as 130 for Ctrl-C",
    },
)
REPRODUCE_EPILOG = epilog(
    {
        "List the publications, and what each needs": "ampcompare reproduce",
        "Repeat one with three seeds of each arm, on a GPU": "ampcompare reproduce ignite device=cuda",
        "A quick try that is not compared with the published results": (
            "ampcompare reproduce ignite --scale 0.01 --network tiny --seeds 1"
        ),
        "Compare runs that already exist": "ampcompare reproduce ignite --runs runs",
        "Write a sweep file, for `ampcompare sweep` or `wandb sweep`": (
            "ampcompare reproduce ignite --write-sweep ignite.yaml"
        ),
    },
    {
        0: "success",
        1: "runs failed",
        **BAD_INPUT,
        3: "a published result is not reproduced",
        "128+": "stopped by a signal, such as 130 for Ctrl-C",
    },
)
WORKERS_HELP = "Number of runs at the same time. Default: the number of GPUs, or 1 without a GPU."


def sweep(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A W&B sweep file, or the name of a bundled one, such as compare_backends. With --status or "
            "--rerun also the folder of a sweep, such as runs/compare_backends.",
        ),
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Options for every run, such as epochs=1. For a parameter of the sweep, such as seed, the "
            "values replace those of the file: seed=1,2.",
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option(metavar="N", min=1, help=WORKERS_HELP)] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Name of the sweep and of its W&B group. Default: the name in the file."
        ),
    ] = None,
    control: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Repeat the baseline runs. bookends: before and after all other runs, which shows what the "
            "machine does (A/A control). chaos: with the last bits of the initial weights changed, which "
            "shows how much the baseline differs from itself.",
        ),
    ] = None,
    until_decided: Annotated[
        bool,
        typer.Option(
            "--until-decided",
            help="Add seeds until the report has decided each claim, up to the plan's limits.",
        ),
    ] = False,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Run on a cluster: slurm or ray. Cluster options are written like slurm.time=60.",
        ),
    ] = None,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait", help="With --cluster slurm: wait until all jobs have ended, then write the report."
        ),
    ] = False,
    status: Annotated[
        bool,
        typer.Option(
            "--status",
            help="List the runs that are left to do. Start nothing. Also works for "
            "wandb:ENTITY/PROJECT/SWEEP.",
        ),
    ] = False,
    again: Annotated[
        bool,
        typer.Option("--rerun", help="Make new runs for all runs that are neither finished nor running."),
    ] = False,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan",
            help="Print how many runs the sweep makes, how long they take and what they can decide. Start "
            "nothing.",
        ),
    ] = False,
    bench: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Take the speed from this file of `ampcompare bench --json`, in the plan and in the report.",
        ),
    ] = None,
    seeds_per_process: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Train up to N seeds one after the other in one process, which starts, loads the data and "
            "compiles once. Speed and memory then have one measurement for each process.",
        ),
    ] = None,
    show: Annotated[
        bool,
        typer.Option("--show", help="Print the sweep file, to change it or to give it to `wandb sweep`."),
    ] = False,
) -> None:
    """Run the runs of a W&B sweep file on this machine or a cluster.

    W&B's server is not needed. When all runs have ended, the comparison page is written. To continue an
    interrupted sweep, give the same command again: finished runs are kept.
    """
    from rich.console import Console

    from ampcompare.config.load import check_split_lists
    from ampcompare.runs.loader import API_PREFIX
    from ampcompare.sweeps.sweep_command import SweepCommand, SweepOptions, command_of_folder
    from ampcompare.sweeps.sweep_file import read_sweep

    if show:
        typer.echo(read_sweep(file).path.read_text(encoding="utf-8"), nl=False)
        return
    if status and again:
        raise UserError("--status --rerun: --status only lists open runs, --rerun trains them; leave one out")

    options = SweepOptions(
        workers,
        name,
        control,
        until_decided,
        cluster,
        wait,
        again,
        bench=bench,
        seeds_per_process=seeds_per_process,
    )
    if Path(file).is_dir() and not find_shipped(file, "sweeps"):
        recorded = command_of_folder(file, SweepCommand(file, tuple(words or ()), options))
        if not (status or again):
            raise UserError(
                f"{file}: this is the folder of a sweep; --status lists its runs, --rerun repeats failed "
                f"ones; to continue it: {recorded.text()}"
            )
        file, words, options = recorded.file, [*recorded.overrides], recorded.options
    if any("=" not in word for word in words or ()) and not file.startswith(API_PREFIX):
        check_split_lists(words or [], [parameter.key for parameter in read_sweep(file).parameters])
    console = Console(highlight=False)
    if status or again:
        from ampcompare.sweeps.status import read_status, rerun, show_status

        if again:
            raise typer.Exit(rerun(file, words or [], console, options))
        raise typer.Exit(show_status(read_status(file, words or [], options), console))
    if file.startswith(API_PREFIX):
        raise UserError(
            f"{file}: this sweep is on W&B's server; add --status to list open runs or --rerun to train "
            "them here, or run wandb agent"
        )
    if plan:
        from ampcompare.sweeps.decision_plan import print_plan
        from ampcompare.sweeps.prepare import prepare

        print_plan(prepare(file, words or [], options), console, bench)
        return
    from ampcompare.sweeps.pipeline import run_sweep

    raise typer.Exit(run_sweep(file, words or [], console, options))


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Name of a publication, or a YAML file. Without it, all publications are listed.",
        ),
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Options for every run, such as device=cuda."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of seeds for each arm. Default: 3.")
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option(
            metavar="FRACTION",
            help="For a quick try: the fraction of epochs, images and batch size to use. The results are "
            "then "
            "not compared with the published ones.",
        ),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            metavar="tiny",
            help="For a quick try: a tiny network. The results are then not compared with the published "
            "ones.",
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder for the runs. With --runs: folder for the report."),
    ] = None,
    workers: Annotated[int | None, typer.Option(metavar="N", min=1, help=WORKERS_HELP)] = None,
    runs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SOURCE",
            help="Train nothing; compare these runs with the publication. A source as for `ampcompare "
            "report`.",
        ),
    ] = None,
    write_sweep: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Train nothing; write the runs as a W&B sweep file.")
    ] = None,
) -> None:
    """Repeat a published comparison and compare the results.

    Trains every arm of the publication and reports which published results are reproduced. To continue an
    interrupted reproduction, give the same command again: finished runs are kept.
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
        from ampcompare.analysis.options import AnalysisOptions
        from ampcompare.report.options import ReportOptions
        from ampcompare.report.pipeline import make_report

        comparison = ReportOptions([*runs], out or "report", AnalysisOptions(reproduce=name))
        raise typer.Exit(make_report(comparison, console))
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
    from ampcompare.sweeps.sweep_command import SweepOptions

    sweep_name, text = sweep_file(*arguments)
    output_dir = dict(map(parse_override, overrides)).get("output_dir")
    if out and output_dir:
        raise UserError(f"--out {out}: output_dir={output_dir} also names the folder; leave one out")
    folder = Path(out or output_dir or Path("runs") / sweep_name)
    file = make_folder(folder, f"--out {folder}") / "sweep.yaml"
    file.write_text(text, encoding="utf-8")
    options = SweepOptions(workers)
    raise typer.Exit(run_sweep(str(file), [*overrides, f"output_dir={folder}"], console, options))
