"""`ampcompare report` and `ampcompare workspace`. Heavy imports happen when a command runs."""

import inspect
from typing import Annotated, Any, get_type_hints

import typer

from ampcompare.analysis.options import COMMA_SEPARATED, AnalysisOptions
from ampcompare.command_help import epilog
from ampcompare.report.options import ReportOptions
from ampcompare.runtime.help_text import BAD_INPUT, STOPPED

REPORT_EPILOG = epilog(
    {
        "All runs below a folder; the page is report/index.html": "ampcompare report runs",
        "Quality from the runs, speed from a benchmark": "ampcompare report runs --bench bench.json",
        "Runs of other programs, with named arms": (
            "ampcompare report fp32=logs/a bf16=logs/b --metric val_acc:max:fraction"
        ),
        "Runs on W&B's server": "ampcompare report wandb:ENTITY/PROJECT",
        "As a check in CI: exit code 3 unless the runs show it": (
            "ampcompare report runs --require 'native: speedup >= 1.5'"
        ),
    },
    {
        0: "the report was written",
        **BAD_INPUT,
        3: "a --require is not met, or a published result is not reproduced",
        **STOPPED,
    },
)
WORKSPACE_EPILOG = epilog(
    {
        "A view of all runs of the project": "ampcompare workspace ENTITY/PROJECT",
        "Also a W&B Report": "ampcompare workspace ENTITY/PROJECT --report",
        "Print the view of local runs, without an account": (
            "ampcompare workspace ENTITY/PROJECT --runs runs --dry-run"
        ),
    },
    {0: "success", **BAD_INPUT, **STOPPED},
)


def report(**values: Any) -> None:
    """Compare runs and write the comparison page.

    Prints a table, and writes the page, charts, CSV, JSON and Markdown into a folder. Runs that differ only
    in their seed are pooled. docs/reports.md explains how the report decides.
    """
    from rich.console import Console

    from ampcompare.report.pipeline import make_report

    options = ReportOptions.from_command_line(values)
    console = Console(highlight=False)
    if status := make_report(options, console):
        raise typer.Exit(status)


def _parameters() -> list[inspect.Parameter]:
    """Return the parameters of `ampcompare report`, from which Typer reads the options and their help.

    They are the fields of ReportOptions. Its field `analysis` stands for the fields of AnalysisOptions.
    """
    parameters: dict[str, inspect.Parameter] = {}
    for name, parameter in _annotated_parameters(ReportOptions).items():
        if name == "analysis":
            parameters |= _annotated_parameters(AnalysisOptions)
        else:
            parameters[name] = parameter
    return list(parameters.values())


def _annotated_parameters(options: type) -> dict[str, inspect.Parameter]:
    """Return the fields of a class of options as parameters with their Typer annotations.

    Typer knows no `Sequence[str]`: it becomes text that commas separate, or an option that may be repeated.
    """
    hints = get_type_hints(options, include_extras=True)
    parameters = {}
    for name, parameter in inspect.signature(options).parameters.items():
        annotation = hints[name]
        default = parameter.default
        if name in COMMA_SEPARATED:
            annotation = Annotated[str | None, *annotation.__metadata__]
            default = None if default is None else ""
        elif default == ():
            annotation = Annotated[list[str] | None, *annotation.__metadata__]
            default = None
        parameters[name] = parameter.replace(
            kind=inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
        )
    return parameters


vars(report)["__signature__"] = inspect.Signature(_parameters())


def workspace(
    target: Annotated[
        str, typer.Argument(metavar="ENTITY/PROJECT", help="W&B project in which the view is saved.")
    ],
    runs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SOURCE",
            help="Runs to compare instead of those of the project. May be given several times.",
        ),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Also make a W&B Report with the verdict.")
    ] = False,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="VALUE",
            help="Baseline of the comparison, such as none or tf32. Default: none, which is strict fp32.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the view as JSON and save nothing.")
    ] = False,
) -> None:
    """Save the comparison as a view of a W&B project.

    The view has live panels and the comparison page. A view that exists is updated. Needs a W&B account.
    """
    from ampcompare.analysis import analyse_runs
    from ampcompare.report.wandb_workspace import preview_json, save, split_target
    from ampcompare.runs import load_runs

    entity, project = split_target(target)
    analysis = analyse_runs(load_runs(runs or [f"wandb:{entity}/{project}"]), baseline)
    if dry_run:
        typer.echo(preview_json(analysis, entity, project), nl=False)
    else:
        save(analysis, entity, project, with_report=report, say=typer.echo)
