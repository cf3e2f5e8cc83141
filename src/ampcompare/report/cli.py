"""`ampcompare report` and `ampcompare workspace`. Heavy imports happen when a command runs."""

import inspect
from typing import Annotated, Any, get_type_hints

import typer

from ampcompare.report.options import ReportOptions


def report(**values: Any) -> None:
    """Compare runs: a table here, a page in DIR. docs/reports.md has more options."""
    from rich.console import Console

    from ampcompare.report.pipeline import make_report

    options, console = ReportOptions(**values), Console(highlight=False)
    if options.watch:
        from ampcompare.report.watch import watch_report

        watch_report(options, console)
    elif status := make_report(options, console):
        raise typer.Exit(status)


# Typer reads the options and their help from the signature: the fields of ReportOptions.
_HINTS = get_type_hints(ReportOptions, include_extras=True)
_PARAMETERS = inspect.signature(ReportOptions).parameters
vars(report)["__signature__"] = inspect.Signature(
    [
        field.replace(annotation=_HINTS[name])
        for name, field in inspect.signature(ReportOptions).parameters.items()
    ]
)


def workspace(
    target: Annotated[str, typer.Argument(metavar="ENTITY/PROJECT", help="The W&B project.")],
    runs: Annotated[
        list[str] | None, typer.Option(metavar="SOURCE", help="Runs to compare, instead of the project's.")
    ] = None,
    report: Annotated[bool, typer.Option("--report", help="A W&B Report with the verdict, too.")] = False,
    baseline: Annotated[str | None, typer.Option(metavar="VALUE", help="As for report.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be saved, as JSON.")] = False,
) -> None:
    """Make or update a W&B view of live panels, with the page of the report."""
    from ampcompare.analysis import analyse_runs
    from ampcompare.report.wandb_workspace import preview_json, save, split_target
    from ampcompare.runs import load_runs

    entity, project = split_target(target)
    analysis = analyse_runs(load_runs(runs or [f"wandb:{entity}/{project}"]), baseline)
    if dry_run:
        typer.echo(preview_json(analysis, entity, project), nl=False)
    else:
        save(analysis, entity, project, with_report=report, say=typer.echo)
