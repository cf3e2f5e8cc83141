"""The comparison on W&B: a saved workspace view and a Report, made once and updated from then on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ampcompare import metrics
from ampcompare.errors import UserError, reason
from ampcompare.program.place import as_typed
from ampcompare.report.analysis.analysis import CHARTS_JOB, Analysis
from ampcompare.report.charts.catalogue import all_charts, has_data
from ampcompare.report.charts.parts import DATA, Spec
from ampcompare.report.exports import to_markdown
from ampcompare.report.on_wandb.charts import columns_of, custom_chart, preset_name, table_of
from ampcompare.report.words import capital
from ampcompare.wandb_client.client import api_errors, api_reason

VIEW_TITLE = "AMP Compare"
VIEW_NAME = "nw-ampcompare-v"  # W&B's own form of a view's name; the same each time, so that there is one
REPORT_TITLE = "What does mixed precision buy?"
FINISH_TIMEOUT_SECONDS = 60.0
CHARTS_RUN = "ampcompare-charts"  # id of the run that holds the tables of the charts
FIND_VIEWS = """
query AmpCompareViews($entityName: String, $projectName: String, $viewType: String) {
  project(name: $projectName, entityName: $entityName) {
    allViews(viewType: $viewType) { edges { node { id name displayName } } }
  }
}
"""


def split_target(target: str) -> tuple[str, str]:
    """`entity/project` in two. Raises UserError."""
    parts = target.removeprefix("wandb:").split("/")
    if len(parts) != 2 or not all(part.strip() for part in parts):
        raise UserError(f"{target!r}: expected ENTITY/PROJECT, as in the address of the project's page")
    return parts[0].strip(), parts[1].strip()


def drawn_charts(analysis: Analysis) -> dict[str, Spec]:
    """The charts that have something to show."""
    return {name: spec for name, spec in all_charts(analysis).items() if has_data(spec)}


def custom_panels(charts: Mapping[str, Spec], entity: str) -> list[Any]:
    """Each chart of the page as a panel: its preset over its table in the charts' run."""
    import wandb_workspaces.reports.v2 as wr

    return [
        wr.CustomChart(
            query={"summaryTable": {"tableKey": table_key(name)}},
            chart_name=f"{entity}/{preset_name(name, custom_chart(spec))}",
            chart_fields={name: name for name in columns_of(spec["datasets"][DATA])},
            chart_strings={},
            layout=wr.Layout(x=12 * (place % 2), y=9 * (place // 2), w=12, h=9),
        )
        for place, (name, spec) in enumerate(charts.items())
    ]


def live_panels(analysis: Analysis) -> list[Any]:
    """W&B's own panels over the same metrics, grouped by the compared key; they follow runs as they go on."""
    import wandb_workspaces.reports.v2 as wr

    group: dict[str, Any] = {"groupby_aggfunc": "mean", "groupby_rangefunc": "minmax"}
    group["groupby"] = wr.Config(analysis.keys[0])
    metric = analysis.metric.key
    titles = {key: listed.title for key, listed in metrics.METRICS.items()}
    titles[metric] = capital(analysis.metric.name)
    lines = (metrics.LOSS, metric, metrics.SCALE, metrics.THROUGHPUT, metrics.UNDERFLOW)
    panels: list[Any] = [
        wr.LinePlot(title=titles[key], x=metrics.STEP, y=[key], log_y=(key == metrics.SCALE) or None, **group)
        for key in lines
    ]
    bars = (metrics.THROUGHPUT, metrics.PEAK_MEMORY)
    panels += [wr.BarPlot(title=titles[key], metrics=[key], **group) for key in bars]
    x, y = wr.SummaryMetric(metrics.THROUGHPUT), wr.SummaryMetric(metric)
    trade = wr.ScatterPlot(title=f"{titles[metric]} against throughput", x=x, y=y)
    return [*panels, trade, wr.RunComparer(diff_only=True)]


def build_workspace(analysis: Analysis, entity: str, project: str, charts: Mapping[str, Spec]) -> Any:
    """The view: the page's charts, then live panels, runs grouped by the compared key. Needs no server."""
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces.expr import Config

    sections = [ws.Section(name="Live", panels=live_panels(analysis), is_open=True)]
    if charts:
        ours = custom_panels(charts, entity)
        sections.insert(0, ws.Section(name=VIEW_TITLE, panels=ours, is_open=True, pinned=True))
    view = ws.Workspace(
        entity=entity,
        project=project,
        name=VIEW_TITLE,
        sections=sections,
        settings=ws.WorkspaceSettings(x_axis=metrics.STEP, max_runs=100),
        runset_settings=ws.RunsetSettings(groupby=[Config(key) for key in analysis.keys]),
    )
    view._internal_name = VIEW_NAME
    return view


def build_report(analysis: Analysis, entity: str, project: str, charts: Mapping[str, Spec]) -> Any:
    """The Report: the verdict, its table and cautions, then the charts. Its run set asks the server."""
    import wandb_workspaces.reports.v2 as wr

    panels = custom_panels(charts, entity) or live_panels(analysis)
    return wr.Report(
        entity=entity,
        project=project,
        title=REPORT_TITLE,
        description=analysis.verdict.headline,
        width="fluid",
        blocks=[
            wr.MarkdownBlock(text=to_markdown(analysis)),
            wr.PanelGrid(runsets=[wr.Runset(entity=entity, project=project)], panels=panels),
        ],
    )


def as_json(analysis: Analysis, entity: str, project: str) -> str:
    """View, charts and verdict as they would be saved, for a look without a server."""
    charts = drawn_charts(analysis)
    model = build_workspace(analysis, entity, project, charts)._to_model()
    view = model.model_dump(by_alias=True, exclude_none=True)
    specs = {name: custom_chart(spec) for name, spec in charts.items()}
    return json.dumps({"view": view, "charts": specs, "verdict": to_markdown(analysis)}, indent=1) + "\n"


def save(
    analysis: Analysis, entity: str, project: str, *, with_report: bool, say: Callable[[str], None]
) -> None:
    """Create or update charts, view and, if asked for, Report. Raises UserError where W&B refuses."""
    import wandb

    try:
        api = wandb.Api()
        charts = drawn_charts(analysis)
        if problem := _keep_presets(api, entity, charts):
            say(f"W&B does not take custom charts here ({problem}): its own panels alone are saved")
            charts = {}
        view = build_workspace(analysis, entity, project, charts)
        view._internal_id = _find(api, entity, project, "project-view", VIEW_NAME, VIEW_TITLE)
        say(f"workspace: {view.save().url}")
        if with_report:
            report = build_report(analysis, entity, project, charts)
            report.id = _find(api, entity, project, "runs", "", REPORT_TITLE)
            say(f"report: {report.save().url}")
        if charts:
            _log_tables(charts, entity, project, say)
    except api_errors() as problem:
        advice = f"check the name and `{as_typed('wandb', 'login')}`"
        raise UserError(
            f"{entity}/{project}: W&B does not take it: {api_reason(problem)}; {advice}"
        ) from None


def table_key(name: str) -> str:
    """Where a chart's table is found in the summary of the charts' run."""
    return f"charts/{name}"


def _keep_presets(api: Any, entity: str, charts: Mapping[str, Spec]) -> str | None:
    """Create the charts' presets; returns why W&B does not take them, or None.

    One of the same name has the very same content, so that it is there already is fine.
    """
    for name, spec in charts.items():
        chart = custom_chart(spec)
        title = f"AMP Compare: {chart['title']['text']}"
        try:
            api.create_custom_chart(entity, preset_name(name, chart), title, "vega2", "private", chart)
        except api_errors() as problem:
            if not any(word in str(problem).lower() for word in ("exist", "duplicate")):
                return api_reason(problem)
    return None


def _log_tables(charts: Mapping[str, Spec], entity: str, project: str, say: Callable[[str], None]) -> None:
    """Put the tables into the one run that is kept for them; no report reads it as a training run."""
    import wandb

    what: dict[str, Any] = {"id": CHARTS_RUN, "name": "charts of AMP Compare", "job_type": CHARTS_JOB}
    quiet: dict[str, Any] = {"console": "off", "quiet": True, "x_disable_stats": True, "disable_git": True}
    settings = wandb.Settings(finish_timeout=FINISH_TIMEOUT_SECONDS, **quiet)
    try:
        run = wandb.init(entity=entity, project=project, resume="allow", settings=settings, **what)
        for name, spec in charts.items():
            columns, cells = table_of(spec["datasets"][DATA])
            run.log({table_key(name): wandb.Table(columns=[*columns], data=cells, allow_mixed_types=True)})
        run.finish()
    except Exception as problem:  # tables are artifacts, of which the client asks much; the view is saved
        why = f"could not be uploaded ({reason(problem)})"
        say(f"the data of the custom charts {why}: their panels stay empty")


def _find(api: Any, entity: str, project: str, kind: str, name: str, title: str) -> str:
    """The id of the view of that name or, failing it, that title; empty where there is none yet."""
    from wandb_workspaces._graphql import execute_graphql

    wanted = {"entityName": entity, "projectName": project, "viewType": kind}
    if (found := execute_graphql(api, FIND_VIEWS, wanted).get("project")) is None:
        raise UserError(f"{entity}/{project}: no such project, or it may not be read with this key")
    nodes = [edge["node"] for edge in (found.get("allViews") or {}).get("edges") or []]
    named = [node["id"] for node in nodes if name and node.get("name") == name]
    titled = [node["id"] for node in nodes if node.get("displayName") == title]
    return next(iter(named + titled), "")
