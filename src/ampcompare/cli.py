"""`ampcompare`: the commands beside the training entrypoint. Each imports what it needs when it runs."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated, Any

import typer

from ampcompare.bench.commands import bench
from ampcompare.errors import EXIT_BAD_INPUT, UserError, exit_with

EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="ampcompare",
    help="Compare training runs under several precision backends.",
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _commands() -> None:
    """Compare training runs under several precision backends."""


@app.command()
def report(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="Folders of runs (output_dir), .wandb files, wandb:ENTITY/PROJECT, wandb:ENTITY/PROJECT/SWEEP.",
        ),
    ],
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="Folder for index.html.")] = "report",
    baseline: Annotated[
        str, typer.Option("--baseline", metavar="BACKEND", help="Backend that the others are compared with.")
    ] = "none",
) -> None:
    """Compare runs: a table here, and a self-contained page with charts in DIR."""
    from rich.console import Console

    from ampcompare.records import load_runs
    from ampcompare.report import analyse_runs, prepare_folder, write_page
    from ampcompare.report.table import print_table

    analysis = analyse_runs(load_runs(sources), baseline)
    folder = prepare_folder(out)
    console = Console(highlight=False)
    print_table(analysis, console)
    path = write_page(analysis, folder)
    console.print(f"page: {path}", soft_wrap=True, markup=False)


@app.command()
def sweep(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A W&B sweep file, such as sweeps/compare_backends.yaml.")
    ],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Options for every run, such as epochs=1.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; by default one for each GPU, or one.")
    ] = None,
    storage: Annotated[
        str | None, typer.Option(metavar="URL", help="Database that machines share; by default a file in output_dir.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The sweep's name and W&B group; by default the file's.")] = None,
    grace: Annotated[
        float, typer.Option(min=2, help="Seconds of silence after which another worker's run is taken over.")
    ] = 60.0,
) -> None:
    """Run a W&B sweep file without a server. Started again, it goes on where it was."""
    from rich.console import Console

    from ampcompare.sweeps.run import run_sweep

    console = Console(highlight=False)
    code = run_sweep(file, words or [], console, workers=workers, storage=storage, name=name, grace_seconds=grace)
    raise typer.Exit(code)


app.add_typer(bench, name="bench")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. A user's mistake, of usage or of input, is one line on stderr and exit code 2."""
    command: Any = typer.main.get_command(app)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal that cannot show a character gets a ?
        sys.stdout.reconfigure(errors="replace")
    try:
        status = command.main(args=arguments, prog_name="ampcompare", standalone_mode=False)
    except UserError as error:
        exit_with(error)
    except (KeyboardInterrupt, typer.Abort):
        raise SystemExit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:  # `ampcompare report ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except Exception as error:
        # Usage errors have no public common base across Typer's versions; they are what can word itself.
        if not hasattr(error, "format_message") or getattr(error, "exit_code", None) != EXIT_BAD_INPUT:
            raise
        exit_with(UserError(f"{error.format_message().rstrip('.')}; see ampcompare --help"))
    raise SystemExit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
