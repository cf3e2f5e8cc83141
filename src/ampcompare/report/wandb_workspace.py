"""The comparison on W&B: a saved workspace, a Report and the page, created once and then updated.

The panels are W&B's own, over the runs' metrics, grouped by the compared setting. They follow running runs.
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
REPORT_TITLE = "Mixed precision compared with fp32"  # part of the Report's address: no "?"
PAGE_RUN = "ampcompare-charts"  # id of the run with the page; reports do not read it as a training run
PAGE = "page"
WORKSPACE = "workspace"
REPORT = "report"  # keys of its summary: the page, and two URLs
FINISH_TIMEOUT_SECONDS = 60.0


def split_target(target: str) -> tuple[str, str]:
    """Return entity and project of `entity/project`.

    Raises:
        UserError: If the text has another form.
    """
    entity, _, project = map(str.strip, target.removeprefix("wandb:").partition("/"))
    if not entity or not project or "/" in project:
        raise UserError(f"{target!r}: expected ENTITY/PROJECT, as in the address of the project's page")
    return entity, project


def make_panels(analysis: Analysis) -> list[Any]:
    """Return the panels: lines by step, bars, quality against throughput, and the page."""
    import wandb_workspaces.reports.v2 as wr

    by = wr.Config(analysis.keys[0])
    group: dict[str, Any] = {"groupby": by, "groupby_aggfunc": "mean", "groupby_rangefunc": "minmax"}
    metric = analysis.metric.key
    titles = {key: declared.title for key, declared in metrics.METRICS.items()}
    titles[metric] = analysis.metric.title
    lines = (metric, metrics.LOSS, metrics.THROUGHPUT, metrics.SCALE, metrics.UNDERFLOW)
    throughput = wr.SummaryMetric(metrics.THROUGHPUT)
    panels: list[Any] = [
        wr.LinePlot(title=titles[k], x=metrics.STEP, y=[k], log_y=k == metrics.SCALE or None, **group)
        for k in lines
    ]
    bars = (metrics.THROUGHPUT, metrics.PEAK_MEMORY)
    panels += [wr.BarPlot(title=titles[k], metrics=[k], **group) for k in bars]
    panels += [
        wr.ScatterPlot(title=f"{titles[metric]} by throughput", x=throughput, y=wr.SummaryMetric(metric)),
        wr.RunComparer(diff_only=True),
        wr.MediaBrowser(title="Report page", media_keys=[PAGE]),
    ]
    for index, panel in enumerate(panels):
        panel.layout = wr.Layout(x=12 * (index % 2), y=9 * (index // 2), w=12, h=9)
    return panels


def make_workspace(analysis: Analysis, entity: str, project: str) -> Any:
    """Return the workspace: the panels, with the runs grouped by the compared settings."""
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces.expr import Config

    return ws.Workspace(
        entity=entity,
        project=project,
        name=TITLE,
        sections=[ws.Section(name=TITLE, panels=make_panels(analysis), is_open=True, pinned=True)],
        settings=ws.WorkspaceSettings(x_axis=metrics.STEP, max_runs=100),
        runset_settings=ws.RunsetSettings(groupby=[Config(key) for key in analysis.keys]),
    )


def preview_json(analysis: Analysis, entity: str, project: str) -> str:
    """Return workspace and verdict as JSON, without a request to the server."""
    view = dataclasses.asdict(make_workspace(analysis, entity, project))
    return json.dumps({"view": view, "verdict": to_markdown(analysis)}, indent=1, default=str) + "\n"


def save(
    analysis: Analysis, entity: str, project: str, *, with_report: bool, say: Callable[[str], None]
) -> None:
    """Create or update workspace, page and Report on W&B.

    Args:
        say: Prints a line.

    Raises:
        UserError: If W&B refuses.
    """
    import wandb
    import wandb_workspaces.reports.v2 as wr

    where: dict[str, Any] = {"entity": entity, "project": project}
    refusals: tuple[type[Exception], ...] = (*api_errors(), ValueError)  # ValueError: no such project
    try:
        page_runs = list(wandb.Api().runs(f"{entity}/{project}", filters={"name": PAGE_RUN}))
        known = dict(page_runs[0].summary) if page_runs else {}
        view = make_workspace(analysis, entity, project)
        saved = _saved(type(view), known.get(WORKSPACE))
        if saved is not None:
            saved.sections = view.sections
            saved.runset_settings.groupby = view.runset_settings.groupby
            view = saved
        urls = {WORKSPACE: view.save().url}
        if with_report:
            report = _saved(wr.Report, known.get(REPORT)) or wr.Report(**where)
            report.title = REPORT_TITLE
            report.description = analysis.headline
            report.width = "fluid"
            grid = wr.PanelGrid(runsets=[wr.Runset(**where)], panels=make_panels(analysis))
            report.blocks = [wr.MarkdownBlock(text=to_markdown(analysis)), grid]
            urls[REPORT] = report.save().url
    except refusals as problem:
        raise UserError(
            f"{entity}/{project}: W&B refused the request: {api_reason(problem)}; "
            f"check the name and `{shell_command('wandb', 'login')}`"
        ) from None
    for name, url in urls.items():
        say(f"{name}: {url}")
    _keep_page(analysis, where, urls, say)


def _saved(kind: Any, url: Any) -> Any:
    """Return the workspace or Report at a URL; None if there is none any more."""
    try:
        return kind.from_url(url) if isinstance(url, str) else None
    except ValueError:
        return None


def _keep_page(
    analysis: Analysis, where: dict[str, Any], urls: dict[str, str], say: Callable[[str], None]
) -> None:
    """Log the page in a run of its own, with the URLs of workspace and Report."""
    import wandb

    quiet: dict[str, Any] = {"console": "off", "quiet": True, "x_disable_stats": True, "disable_git": True}
    options: dict[str, Any] = {"id": PAGE_RUN, "job_type": CHARTS_JOB, "name": "page of AMP Compare", **where}
    options["settings"] = wandb.Settings(finish_timeout=FINISH_TIMEOUT_SECONDS, **quiet)
    page = wandb.Html(render_page(analysis).decode(), inject=False)
    try:
        with wandb.init(resume="allow", **options) as run:
            run.log({PAGE: page})
            run.summary.update(urls)
    except Exception as problem:  # any error of the client's upload: the workspace is saved already
        say(f"the report page was not uploaded ({reason(problem)}), so its panel stays empty")
