"""`ampcompare report` and `ampcompare workspace`. Each imports what it needs when it runs."""

from __future__ import annotations

from typing import Annotated

import typer


def report(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="Folders of runs, .wandb files, wandb:ENTITY/PROJECT(/SWEEP), TensorBoard or CSV logs; "
            "NAME=SOURCE names the arm that it is.",
        ),
    ],
    out: Annotated[str, typer.Option(metavar="DIR", help="Folder for the report.")] = "report",
    baseline: Annotated[
        str | None, typer.Option(metavar="VALUE", help="What others are compared with; default: none.")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", help="Quality to compare, as KEY or KEY:min:percent; default: the runs' own."
        ),
    ] = None,
    throughput: Annotated[
        str | None, typer.Option(metavar="KEY", help="Throughput that other programs logged.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="KEY", help="Memory that other programs logged.")
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
    """Compare runs: a table here, a page with charts in DIR."""
    asked = {key: value for key, value in locals().items() if key not in ("watch", "port")}
    from rich.console import Console

    from ampcompare.report.command import make_report, watch_report
    from ampcompare.report.request import Request, chosen_formats, names_in

    asked["group_by"] = None if group_by is None else names_in(group_by)
    asked |= {"ignore": names_in(ignore), "formats": chosen_formats(formats), "require": tuple(require or ())}
    request = Request(**asked)
    console = Console(highlight=False)
    if watch:
        watch_report(request, console, port)
    elif status := make_report(request, console):
        raise typer.Exit(status)


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
    from ampcompare.records import load_runs
    from ampcompare.report import analyse_runs
    from ampcompare.report.on_wandb import as_json, save, split_target

    entity, project = split_target(target)
    analysis = analyse_runs(load_runs(runs or [f"wandb:{entity}/{project}"]), baseline)
    if dry_run:
        typer.echo(as_json(analysis, entity, project), nl=False)
    else:
        save(analysis, entity, project, with_report=report, say=typer.echo)
