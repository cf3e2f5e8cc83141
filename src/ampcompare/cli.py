"""`ampcompare`: the commands beside the training entrypoint. Each imports what it needs when it runs."""

from __future__ import annotations

import io
import os
import select
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ampcompare import __version__
from ampcompare.bench.commands import bench
from ampcompare.errors import EXIT_BAD_INPUT, UserError, exit_with
from ampcompare.program.stopping import EXIT_INTERRUPTED, leave
from ampcompare.program.utf8 import use_utf8
from ampcompare.reproduce.commands import reproduce
from ampcompare.why.commands import why

app = typer.Typer(
    name="ampcompare",
    help="Compare training runs under several precision backends. New here? `ampcompare demo` shows all of "
    "it in minutes, without account or data; `ampcompare doctor` says what this machine is good for.",
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ampcompare {__version__}")
        raise typer.Exit


@app.callback()
def _commands(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Compare training runs under several precision backends."""


# The words go to the training's own parser as they are, `--help` too.
AS_THEY_ARE = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []}


@app.command(context_settings=AS_THEY_ARE)
def run(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[--config NAME] KEY=VALUE", help="Options of the run.")
    ] = None,
) -> None:
    """Train one run under a backend and record it; `ampcompare run --help-all` lists every option."""
    from ampcompare.entrypoint import main as train

    leave(train(words or [], "ampcompare run"))


@app.command()
def doctor(
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it all into a file, for programs.")
    ] = None,
) -> None:
    """What this machine can do: device, types and their rates, compiler, W&B account, data."""
    from ampcompare.bench.doctor import run_doctor

    raise typer.Exit(run_doctor(typer.echo, json))


@app.command()
def demo(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Options of every run, such as epochs=1.")
    ] = None,
) -> None:
    """Train ResNet50 under three backends on synthetic data, offline, then write the comparison page."""
    from rich.console import Console

    from ampcompare.demo.run import run_demo
    from ampcompare.program.console import print_line

    console = Console(highlight=False)
    status = run_demo(
        words or [],
        lambda line: print_line(console, line),
        lambda folder, out: report([folder], out),
    )
    if status:
        raise typer.Exit(status)


@app.command()
def report(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="Folders of runs, .wandb files, wandb:ENTITY/PROJECT(/SWEEP); TensorBoard or CSV logs.",
        ),
    ],
    out: Annotated[str, typer.Option(metavar="DIR", help="Folder for the report.")] = "report",
    baseline: Annotated[
        str | None, typer.Option(metavar="VALUE", help="What others are compared with; default: none.")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", help="Quality to compare (KEY:min: less is better); default: the runs' own."
        ),
    ] = None,
    throughput: Annotated[
        str | None, typer.Option(metavar="KEY", help="Throughput that other programs logged.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="KEY", help="Memory that other programs logged.")
    ] = None,
    unit: Annotated[
        str | None, typer.Option(metavar="UNIT", help="How the metric is logged: percent, fraction, plain.")
    ] = None,
    goal: Annotated[
        str | None, typer.Option(metavar="GOAL", help="maximize or minimize; default: by the metric's name.")
    ] = None,
    step: Annotated[str | None, typer.Option(metavar="COLUMN", help="The step column of CSV files.")] = None,
    margin: Annotated[
        float | None, typer.Option(help="Difference that still counts as the same (accuracy: 0.5 points).")
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="Value that the time to target goes by; default: the baseline's.")
    ] = None,
    group_by: Annotated[
        str | None,
        typer.Option(metavar="KEYS", help="Settings in the labels; the first is compared. Default: backend."),
    ] = None,
    ignore: Annotated[
        str, typer.Option(metavar="KEYS", help="Settings that may differ between runs taken together.")
    ] = "",
    formats: Annotated[
        str, typer.Option("--format", metavar="LIST", help="Some of html, csv, md, json, png, svg, or all.")
    ] = "all",
    reproduce: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A publication, or its file: is it reproduced? Else exit 3."),
    ] = None,
    within: Annotated[float, typer.Option(help="Of a published ratio, what still counts as the same.")] = 0.1,
    publish: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write these runs as a publication: NAME.yaml.")
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(metavar="TERMS", help="'native: speedup >= 1.5, equivalent within 0.5'; else exit 3."),
    ] = None,
    summary: Annotated[
        str | None, typer.Option(metavar="FILE", help="Append the answer as Markdown, for a pull request.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Rebuild as runs go on; serve the page here.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of --watch; 0: any free one.")] = 0,
) -> None:
    """Compare runs: a table here, and a self-contained page with charts in DIR."""
    from rich.console import Console

    from ampcompare.report.command import Request, make_report, watch_report
    from ampcompare.report.outputs import choose_formats

    keys = None if group_by is None else _listed(group_by)
    ignored, chosen = _listed(ignore), choose_formats(formats)
    request = Request(
        sources,
        out,
        baseline,
        metric,
        margin,
        keys,
        ignored,
        chosen,
        reproduce,
        target,
        tuple(require or ()),
        summary,
        throughput,
        memory,
        unit,
        goal,
        step,
        within,
        publish,
    )
    console = Console(highlight=False)
    if watch:
        watch_report(request, console, port)
    elif status := make_report(request, console):
        raise typer.Exit(status)


def _listed(words: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in words.split(",") if word.strip()))


@app.command()
def workspace(
    target: Annotated[str, typer.Argument(metavar="ENTITY/PROJECT", help="The W&B project.")],
    runs: Annotated[
        list[str] | None, typer.Option(metavar="SOURCE", help="Runs to compare, instead of the project's.")
    ] = None,
    report: Annotated[bool, typer.Option("--report", help="A W&B Report with the verdict, too.")] = False,
    baseline: Annotated[str | None, typer.Option(metavar="VALUE", help="As for report.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be saved, as JSON.")] = False,
) -> None:
    """Create or update a saved W&B view with the charts of the report as panels."""
    from ampcompare.records import load_runs
    from ampcompare.report import analyse_runs
    from ampcompare.report.on_wandb.workspace import as_json, save, split_target

    entity, project = split_target(target)
    analysis = analyse_runs(load_runs(runs or [f"wandb:{entity}/{project}"]), baseline)
    if dry_run:
        typer.echo(as_json(analysis, entity, project), nl=False)
    else:
        save(analysis, entity, project, with_report=report, say=typer.echo)


@app.command()
def sweep(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A W&B sweep file, or a shipped one, as compare_backends.")
    ],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Options for every run, such as epochs=1.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Runs at a time; default: GPUs, or one.")] = None,
    storage: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Database machines share; default: a file in output_dir."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name and W&B group; by default the file's.")] = None,
    grace: Annotated[
        float, typer.Option(min=10, help="Seconds of silence after which another worker's run is taken over.")
    ] = 60.0,
    control: Annotated[
        str | None,
        typer.Option(metavar="bookends", help="The baseline once more, a seed each, first and last."),
    ] = None,
    until_decided: Annotated[
        bool,
        typer.Option("--until-decided", help="Add seeds, look by look, until each claim is decided."),
    ] = False,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="slurm", help="As one job array, by submitit; its words: slurm.time=60."),
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Print the file instead, to change it or for `wandb sweep`.")
    ] = False,
    missing: Annotated[
        bool,
        typer.Option("--missing", help="List what is missing or failed; also of wandb:ENTITY/PROJECT/SWEEP."),
    ] = False,
    fill: Annotated[
        bool, typer.Option("--fill", help="Run just that, here; exit code as of a sweep.")
    ] = False,
) -> None:
    """Run a W&B sweep file without a server. Started again, it goes on where it was."""
    from rich.console import Console

    from ampcompare.sweeps.file.sweep import read_sweep
    from ampcompare.sweeps.holes.command import refuse_server, see_holes
    from ampcompare.sweeps.run import find_sweep, run_sweep

    if show:
        typer.echo(read_sweep(find_sweep(file)).path.read_text(encoding="utf-8"), nl=False)
        return

    console = Console(highlight=False)
    options: dict[str, Any] = {"workers": workers, "storage": storage, "name": name, "grace_seconds": grace}
    options |= {"control": control, "until_decided": until_decided}
    if missing or fill:
        if cluster is not None:
            raise UserError(f"--cluster {cluster}: --missing looks and --fill runs here; leave --cluster out")
        raise typer.Exit(see_holes(file, words or [], console, fill=fill, missing=missing, **options))
    refuse_server(file)
    if cluster is not None:
        from ampcompare.sweeps.cluster.submit import submit_sweep

        raise typer.Exit(submit_sweep(file, words or [], console, cluster, **options))
    raise typer.Exit(run_sweep(file, words or [], console, **options))


app.command()(reproduce)
app.add_typer(bench, name="bench")
app.add_typer(why, name="why")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. A user's mistake, of usage or of input, is one line on stderr and exit code 2."""
    if arguments is None:
        use_utf8()
    command: Any = typer.main.get_command(app)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal that cannot show a character gets a ?
        sys.stdout.reconfigure(errors="replace")
    try:
        status = command.main(args=arguments, prog_name="ampcompare", standalone_mode=False)
    except UserError as error:
        exit_with(error)
    except (KeyboardInterrupt, typer.Abort):
        raise SystemExit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        if not _has_no_reader(sys.stdout):  # a pipe of ours broke
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except Exception as error:
        # Usage errors have no public common base across Typer's versions; they are what can word itself.
        if not hasattr(error, "format_message") or getattr(error, "exit_code", None) != EXIT_BAD_INPUT:
            raise
        place = getattr(getattr(error, "ctx", None), "command_path", "ampcompare")
        said = error.format_message().rstrip(".")
        begin = (
            ", or begin with ampcompare demo" if said == "Missing command" and place == app.info.name else ""
        )
        exit_with(UserError(f"{said}; see {place} --help{begin}"))
    raise SystemExit(status if isinstance(status, int) else 0)


def _has_no_reader(stream: Any) -> bool:
    """Whether nobody reads what is written there any more: `ampcompare report ... | head`."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLOUT)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (OSError, ValueError):  # no file of the system
        return False


if __name__ == "__main__":
    main()
