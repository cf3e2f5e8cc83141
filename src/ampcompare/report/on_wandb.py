"""The comparison on W&B: a saved workspace, a Report and the page, made once and updated from then on.

Panels are W&B's own over the runs' metrics, grouped by what is compared: they follow runs as they go on.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from ampcompare import metrics
from ampcompare.errors import UserError, reason
from ampcompare.program.place import as_typed
from ampcompare.report.analysis.analysis import CHARTS_JOB, Analysis
from ampcompare.report.text import to_markdown
from ampcompare.report.words import capital
from ampcompare.wandb_client.client import api_errors, api_reason

TITLE = "AMP Compare"
REPORT_TITLE = "What mixed precision buys"  # W&B's client makes its address of it: a "?" would end that
PAGE_RUN = "ampcompare-charts"  # id of the run that holds the page; no report reads it as a training run
PAGE, WORKSPACE, REPORT = "page", "workspace", "report"  # in its summary: the page, where the other two are
FINISH_TIMEOUT_SECONDS = 60.0


def split_target(target: str) -> tuple[str, str]:
    """`entity/project` in two. Raises UserError."""
    parts = target.removeprefix("wandb:").split("/")
    if len(parts) != 2 or not all(part.strip() for part in parts):
        raise UserError(f"{target!r}: expected ENTITY/PROJECT, as in the address of the project's page")
    return parts[0].strip(), parts[1].strip()


def panels_of(analysis: Analysis) -> list[Any]:
    """Lines by step, bars, quality against throughput, and the page. Needs no server."""
    import wandb_workspaces.reports.v2 as wr

    group: dict[str, Any] = {"groupby_aggfunc": "mean", "groupby_rangefunc": "minmax"}
    group["groupby"] = wr.Config(analysis.keys[0])
    metric = analysis.metric.key
    titles = {key: listed.title for key, listed in metrics.METRICS.items()}
    titles[metric] = capital(analysis.metric.name)
    lines = (metric, metrics.LOSS, metrics.THROUGHPUT, metrics.SCALE, metrics.UNDERFLOW)
    bars = (metrics.THROUGHPUT, metrics.PEAK_MEMORY)
    x, y = wr.SummaryMetric(metrics.THROUGHPUT), wr.SummaryMetric(metric)
    panels = [
        *(
            wr.LinePlot(title=titles[k], x=metrics.STEP, y=[k], log_y=(k == metrics.SCALE) or None, **group)
            for k in lines
        ),
        *(wr.BarPlot(title=titles[key], metrics=[key], **group) for key in bars),
        wr.ScatterPlot(title=f"{titles[metric]} against throughput", x=x, y=y),
        wr.RunComparer(diff_only=True),
        wr.MediaBrowser(title="Page of the report", media_keys=[PAGE]),
    ]
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
    view = dataclasses.asdict(
        workspace_of(analysis, entity, project),
        dict_factory=lambda pairs: {k: v for k, v in pairs if v is not None and not k.startswith("_")},
    )
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
        advice = f"check the name and `{as_typed('wandb', 'login')}`"
        what = f"W&B does not take it: {api_reason(problem)}; {advice}"
        raise UserError(f"{entity}/{project}: {what}") from None
    for name, url in urls.items():
        say(f"{name}: {url}")
    _keep_page(analysis, entity, project, urls, say)


def _saved(kind: Any, url: Any) -> Any:
    """What was saved there before; None where nothing was, or it is gone."""
    try:
        return kind.from_url(url) if isinstance(url, str) else None
    except ValueError:
        return None


def _keep_page(
    analysis: Analysis, entity: str, project: str, urls: dict[str, str], say: Callable[[str], None]
) -> None:
    """Log the page in the run that is kept for it, with where view and Report are."""
    import wandb

    from ampcompare.report.page.render import render_page

    quiet: dict[str, Any] = {"console": "off", "quiet": True, "x_disable_stats": True, "disable_git": True}
    settings = wandb.Settings(finish_timeout=FINISH_TIMEOUT_SECONDS, **quiet)
    what: dict[str, Any] = {"id": PAGE_RUN, "name": "page of AMP Compare", "job_type": CHARTS_JOB}
    page = wandb.Html(render_page(analysis).decode(), inject=False)
    try:
        with wandb.init(entity=entity, project=project, resume="allow", settings=settings, **what) as run:
            run.log({PAGE: page})
            run.summary.update(urls)
    except Exception as problem:  # whatever the client has against an upload: the view is saved
        say(f"the page could not be uploaded ({reason(problem)}): its panel stays empty")
