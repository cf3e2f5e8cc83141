"""The comparison on W&B: a saved workspace, a Report and the page, made once and updated from then on.

Panels are W&B's own over the runs' metrics, grouped by what is compared: they follow runs as they go on.
"""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from ampcompare import metrics
from ampcompare.analysis.analysis import CHARTS_JOB, Analysis
from ampcompare.errors import UserError, reason
from ampcompare.report.page.render import render_page
from ampcompare.report.text_renderer import to_markdown
from ampcompare.runtime.paths import shell_command
from ampcompare.wandb_client.client import api_errors, api_reason

TITLE = "AMP Compare"
REPORT_TITLE = "What mixed precision buys"  # W&B's client makes its address of it: a "?" would end that
PAGE_RUN = "ampcompare-charts"  # id of the run that holds the page; no report reads it as a training run
PAGE, WORKSPACE, REPORT = "page", "workspace", "report"  # in its summary: the page, where the other two are
FINISH_TIMEOUT_SECONDS = 60.0


def split_target(target: str) -> tuple[str, str]:
    """`entity/project` in two. Raises UserError."""
    entity, _, project = map(str.strip, target.removeprefix("wandb:").partition("/"))
    if not entity or not project or "/" in project:
        raise UserError(f"{target!r}: expected ENTITY/PROJECT, as in the address of the project's page")
    return entity, project


def panels_of(analysis: Analysis) -> list[Any]:
    """Lines by step, bars, quality against throughput, and the page. Needs no server."""
    import wandb_workspaces.reports.v2 as wr

    by = wr.Config(analysis.keys[0])
    group: dict[str, Any] = {"groupby": by, "groupby_aggfunc": "mean", "groupby_rangefunc": "minmax"}
    metric = analysis.metric.key
    titles = {key: one.title for key, one in metrics.METRICS.items()}
    titles[metric] = analysis.metric.title
    lines = (metric, metrics.LOSS, metrics.THROUGHPUT, metrics.SCALE, metrics.UNDERFLOW)
    x, y = wr.SummaryMetric(metrics.THROUGHPUT), wr.SummaryMetric(metric)
    panels: list[Any] = [
        wr.LinePlot(title=titles[k], x=metrics.STEP, y=[k], log_y=k == metrics.SCALE or None, **group)
        for k in lines
    ]
    bars = (metrics.THROUGHPUT, metrics.PEAK_MEMORY)
    panels += [wr.BarPlot(title=titles[k], metrics=[k], **group) for k in bars]
    panels += [wr.ScatterPlot(title=f"{titles[metric]} against throughput", x=x, y=y)]
    panels += [wr.RunComparer(diff_only=True)]
    panels += [wr.MediaBrowser(title="Page of the report", media_keys=[PAGE])]
    for place, panel in enumerate(panels):
        panel.layout = wr.Layout(x=12 * (place % 2), y=9 * (place // 2), w=12, h=9)
    return panels


def workspace_of(analysis: Analysis, entity: str, project: str) -> Any:
    """The view: the panels, runs grouped by what is compared. Needs no server."""
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces.expr import Config

    return ws.Workspace(
        entity=entity,
        project=project,
        name=TITLE,
        sections=[ws.Section(name=TITLE, panels=panels_of(analysis), is_open=True, pinned=True)],
        settings=ws.WorkspaceSettings(x_axis=metrics.STEP, max_runs=100),
        runset_settings=ws.RunsetSettings(groupby=[Config(key) for key in analysis.keys]),
    )


def as_json(analysis: Analysis, entity: str, project: str) -> str:
    """View and verdict as they would be saved, for a look without a server."""
    view = dataclasses.asdict(workspace_of(analysis, entity, project))
    return json.dumps({"view": view, "verdict": to_markdown(analysis)}, indent=1, default=str) + "\n"


def save(
    analysis: Analysis, entity: str, project: str, *, with_report: bool, say: Callable[[str], None]
) -> None:
    """Create or update view, page and, if asked for, Report. Raises UserError where W&B refuses."""
    import wandb
    import wandb_workspaces.reports.v2 as wr

    where: dict[str, Any] = {"entity": entity, "project": project}
    refusals: tuple[type[Exception], ...] = (*api_errors(), ValueError)  # ValueError: no such project
    try:
        found = list(wandb.Api().runs(f"{entity}/{project}", filters={"name": PAGE_RUN}))
        known = dict(found[0].summary) if found else {}
        view = workspace_of(analysis, entity, project)
        if (saved := _saved(type(view), known.get(WORKSPACE))) is not None:
            saved.sections, saved.runset_settings.groupby = view.sections, view.runset_settings.groupby
            view = saved
        urls = {WORKSPACE: view.save().url}
        if with_report:
            report = _saved(wr.Report, known.get(REPORT)) or wr.Report(**where)
            report.title, report.description, report.width = REPORT_TITLE, analysis.headline, "fluid"
            grid = wr.PanelGrid(runsets=[wr.Runset(**where)], panels=panels_of(analysis))
            report.blocks = [wr.MarkdownBlock(text=to_markdown(analysis)), grid]
            urls[REPORT] = report.save().url
    except refusals as problem:
        what = f"{api_reason(problem)}; check the name and `{shell_command('wandb', 'login')}`"
        raise UserError(f"{entity}/{project}: W&B does not take it: {what}") from None
    for name, url in urls.items():
        say(f"{name}: {url}")
    _keep_page(analysis, where, urls, say)


def _saved(kind: Any, url: Any) -> Any:
    """What was saved there before; None where nothing was, or it is gone."""
    try:
        return kind.from_url(url) if isinstance(url, str) else None
    except ValueError:
        return None


def _keep_page(
    analysis: Analysis, where: dict[str, Any], urls: dict[str, str], say: Callable[[str], None]
) -> None:
    """Log the page in the run that is kept for it, with where view and Report are."""
    import wandb

    quiet: dict[str, Any] = {"console": "off", "quiet": True, "x_disable_stats": True, "disable_git": True}
    what: dict[str, Any] = {"id": PAGE_RUN, "job_type": CHARTS_JOB, "name": "page of AMP Compare", **where}
    what["settings"] = wandb.Settings(finish_timeout=FINISH_TIMEOUT_SECONDS, **quiet)
    page = wandb.Html(render_page(analysis).decode(), inject=False)
    try:
        with wandb.init(resume="allow", **what) as run:
            run.log({PAGE: page})
            run.summary.update(urls)
    except Exception as problem:  # whatever the client has against an upload: the view is saved
        say(f"the page could not be uploaded ({reason(problem)}): its panel stays empty")
