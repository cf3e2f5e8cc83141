"""Runs read from W&B's server by its public API; `wandb` is imported when a source asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from ampcompare import metrics
from ampcompare.errors import UserError, reason
from ampcompare.program.place import as_typed
from ampcompare.records.downloads import Downloads
from ampcompare.records.observed import Observed
from ampcompare.records.predictions import keeps_predictions
from ampcompare.records.run import RunRecord
from ampcompare.records.table import Table, with_floats
from ampcompare.records.tree import flatten
from ampcompare.wandb_client.client import api_errors, api_reason, end_service

API_PREFIX = "wandb:"
SWEEP_FORM = "wandb:ENTITY/PROJECT/SWEEP"
FORMS = f"wandb:ENTITY/PROJECT or {SWEEP_FORM}"
MANY_ROWS = 1_000_000
SERVICE_SECONDS = 5.0
Objective = tuple[str, str]  # a metric, and maximize, minimize or nothing

# W&B's further states, as one of ours and in words.
OTHER_STATES = {
    "killed": ("failed", "was stopped before its end (Ctrl-C, its page, a sweep's early termination)"),
    "preempted": ("crashed", "lost its machine"),
    "preempting": ("running", "is about to lose its machine"),
    "pending": ("running", "is queued and has not begun"),
}


def read_server(source: str) -> list[RunRecord]:
    """The runs of a project or of one sweep, read whole.

    Raises UserError for a source of another form, for a project or sweep that is not there or is empty, and
    where the server cannot be asked.
    """
    found = read_server_sweep(source) if parse_source(source)[2] else (None, _read_source(source))
    if not (runs := found[1]):
        what = "sweep" if found[0] is not None else "project"
        raise UserError(f"{source}: no runs in this {what}; name another {what}, or a folder of runs")
    return runs


def read_server_sweep(source: str, *, brief: bool = False) -> tuple[dict[str, Any], list[RunRecord]]:
    """The configuration of a sweep on the server, and its runs, of which there may be none.

    `brief` runs have one row, the last values: enough to say how they ended, and read in a moment. Raises
    UserError as `read_server`, and for a source that names no sweep.
    """
    known = read_sweep_config(source)
    runs = _read_source(source, brief=brief)
    for run in runs:
        run.sweep_config = known
    return known, runs


def read_sweep_config(source: str) -> dict[str, Any]:
    """The configuration of a sweep on the server, empty where it tells none. Raises UserError as
    `read_server_sweep`.
    """
    entity, project, sweep = parse_source(source)
    if not sweep:
        raise UserError(f"{source}: names no sweep; expected {SWEEP_FORM}")
    with _told_in_one_line(source):
        config = getattr(_api().sweep(f"{entity}/{project}/{sweep}"), "config", None)
    return dict(config) if isinstance(config, Mapping) else {}


def _read_source(source: str, *, brief: bool = False) -> list[RunRecord]:
    entity, project, sweep = parse_source(source)

    def ask(question: Callable[[Any], None]) -> None:
        with _told_in_one_line(source):
            question(_api())

    downloads, observed = Downloads(metrics.PREDICTIONS_FILE, ask), Observed(ask)
    with _told_in_one_line(source):
        found = _find_runs(entity, project, sweep)
        return [_read_run(run, downloads, observed, goal, brief=brief) for run, goal in found]


def parse_source(source: str) -> tuple[str, str, str]:
    """Entity, project and sweep (or an empty text) of `wandb:entity/project[/sweep]`. Raises UserError."""
    parts = source.removeprefix(API_PREFIX).split("/")
    if len(parts) not in (2, 3) or not all(part.strip() == part != "" for part in parts):
        raise UserError(f"{source}: not a source of runs on W&B's server; expected {FORMS}")
    return parts[0], parts[1], parts[2] if len(parts) == 3 else ""


@contextmanager
def _told_in_one_line(source: str) -> Iterator[None]:
    """Errors of W&B's client as a UserError."""
    import wandb

    # ValueError: what is not there, and an answer that is no JSON.
    known: tuple[type[Exception], ...] = (*api_errors(), ValueError)
    try:
        yield
    except wandb.errors.UsageError as problem:
        raise UserError(
            f"{source}: {reason(problem)}, or name a folder of runs (wandb.mode=offline)"
        ) from None
    except wandb.errors.AuthenticationError as problem:
        todo = f"see WANDB_BASE_URL, WANDB_API_KEY and `{as_typed('wandb', 'login')}`"
        raise UserError(f"{source}: W&B's server cannot be asked: {api_reason(problem)}; {todo}") from None
    except known as problem:
        raise UserError(f"{source}: W&B's server says: {api_reason(problem)}; expected {FORMS}") from None
    finally:
        # Leave the process as it was: the client holds a service and what it read of settings.
        if wandb.run is None:
            end_service(SERVICE_SECONDS)


def _api() -> Any:
    import wandb

    if wandb.run is None:  # a run of the caller's keeps its settings
        wandb.setup(wandb.Settings(silent=True))  # a word of W&B's about its key is no part of a report
    return wandb.Api()


def _find_runs(entity: str, project: str, sweep: str) -> Iterator[tuple[Any, Objective | None]]:
    """The runs, each with the objective of the sweep that was asked for."""
    api = _api()
    if not sweep:
        for run in api.runs(f"{entity}/{project}", order="+created_at", lazy=False):
            yield run, None
        return
    found = api.sweep(f"{entity}/{project}/{sweep}")
    name, objective = found.id, _objective(getattr(found, "config", None))
    filters = {"$and": [{"sweep": name}]}
    for run in api.runs(f"{entity}/{project}", filters=filters, order="+created_at", lazy=False):
        if (_text(run, "sweep_name") or name) == name:  # a server may not know the filter
            yield run, objective


def _objective(config: Any) -> Objective | None:
    """The metric of a sweep's configuration, which may hold anything."""
    metric = config.get("metric") if isinstance(config, Mapping) else None
    name, goal = (metric.get("name"), metric.get("goal")) if isinstance(metric, Mapping) else (None, None)
    if not isinstance(name, str) or not name:
        return None
    # Where it is left out, the name of the metric says it better than W&B's default, minimize.
    return name, goal if goal in ("maximize", "minimize") else ""


def _read_run(
    run: Any,
    downloads: Downloads,
    observed: Observed,
    objective: Objective | None = None,
    *,
    brief: bool = False,
) -> RunRecord:
    import pandas as pd

    problems: list[str] = []
    table = Table()
    for row in _last_row(run) if brief else _rows(run, problems):
        table.add_values(flatten(row))
    columns = table.arrays()
    # As Series: pandas 3 would make a text dtype of an object array of texts, pandas 2 not.
    history = {name: pd.Series(column, dtype=column.dtype) for name, column in sorted(columns.items())}
    summary = _plain(run, "summary_metrics")
    texts: dict[str, Any] = {name: _text(run, name) for name in ("group", "job_type", "notes")}
    place = f"{run.entity}/{run.project}/{run.id}"
    return RunRecord(
        id=run.id,
        name=_text(run, "name") or run.id,
        state=_state(_text(run, "state"), problems),
        ended_as=_text(run, "state") if _text(run, "state") in OTHER_STATES else "",
        config=_plain(run, "config"),
        summary=summary,
        history=pd.DataFrame(history),  # in the order of names: the server's is by chance
        problems=problems,
        nan_rows=table.nan_rows(),
        project=run.project,
        entity=run.entity,
        sweep_id=_text(run, "sweep_name"),
        tags=tuple(getattr(run, "tags", None) or ()),
        started_at=_moment(_text(run, "created_at")),
        download=downloads.of(place) if keeps_predictions(summary) else None,
        observe=observed.of(place, problems),
        objective=objective,
        **texts,
    )


def _rows(run: Any, problems: list[str]) -> list[dict[str, Any]]:
    """Every row of the history in order, each once."""
    rows = list(run.scan_history(use_cache=False))
    logged = getattr(run, "history_line_count", None)
    if not rows and logged != 0:
        # `scan_history` reads nothing where the server tells no last step; this does, but may be a sample.
        rows = run.history(samples=logged or MANY_ROWS, pandas=False)
    found: dict[Any, dict[str, Any]] = {}
    for number, row in enumerate(rows):
        found.setdefault(row.get("_step", f"row {number}"), row)
    if logged and len(found) < logged:
        problems.append(f"W&B's server has {logged:,} rows of it and gave {len(found):,}.")
    return list(found.values())


def _last_row(run: Any) -> list[dict[str, Any]]:
    """The last values of a run that logged any."""
    summary = _plain(run, "summary_metrics")
    logged = getattr(run, "history_line_count", None)
    return [summary] if (logged or (logged is None and "_step" in summary)) else []


def _state(said: str, problems: list[str]) -> str:
    if said in ("finished", "failed", "crashed", "running"):
        return said
    state, words = OTHER_STATES.get(said, ("crashed", "is in a state that is not known here"))
    problems.append(f"W&B calls it {said or 'nothing'}: it {words}.")
    return state


def _plain(run: Any, name: str) -> dict[str, Any]:
    tree = getattr(run, name, None) or {}
    return {key: with_floats(value) for key, value in tree.items() if key != "_wandb"}


def _text(run: Any, name: str) -> str:
    """An attribute that the server may have left out."""
    return str(getattr(run, name, None) or "")


def _moment(text: str) -> datetime | None:
    """A time stamp of the server's; in UTC, with or without saying so."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
