"""Read runs from W&B's server through its public API. `wandb` is imported when a source needs it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from ampcompare import metrics
from ampcompare.errors import UserError, reason
from ampcompare.runs.metric_definitions import MetricDefinition
from ampcompare.runs.nested import flatten, with_floats
from ampcompare.runs.run_record import RunRecord, build_columns
from ampcompare.runs.run_state import RunState
from ampcompare.runs.system_metrics import facts_of
from ampcompare.runtime.paths import shell_command
from ampcompare.wandb_client.client import api_errors, api_reason, end_service

API_PREFIX = "wandb:"
SWEEP_FORM = "wandb:ENTITY/PROJECT/SWEEP"
FORMS = f"wandb:ENTITY/PROJECT or {SWEEP_FORM}"
MAX_ROWS = 1_000_000
SERVICE_SECONDS = 5.0
OWN_CONFIG = "_wandb"  # the client's own part of config and summary

# W&B's states. A word that differs from ours is kept in the run's `ended_as`.
STATES = {
    "finished": RunState.FINISHED,
    "failed": RunState.FAILED,
    "crashed": RunState.FAILED,
    "running": RunState.RUNNING,
    "killed": RunState.STOPPED,
    "preempted": RunState.PREEMPTED,
    "preempting": RunState.RUNNING,
    "pending": RunState.QUEUED,
}


def read_server(source: str) -> list[RunRecord]:
    """Return the runs of a project or of one sweep with their whole history.

    Raises:
        UserError: The source has another form, the project or sweep does not exist or is empty, or the server
            cannot be reached.
    """
    _, runs = _read(source)
    if not runs:
        kind = "sweep" if parse_source(source)[2] else "project"
        raise UserError(f"{source}: no runs in this {kind}; name another {kind}, or a folder of runs")
    return runs


def read_server_sweep(source: str) -> tuple[dict[str, Any], list[RunRecord]]:
    """Return the configuration of a sweep on the server (empty if it has none) and its runs, if any.

    Of each run only the last values are read, as one row. That is fast, and enough to know how a run ended.

    Args:
        source: `wandb:ENTITY/PROJECT/SWEEP`.

    Raises:
        UserError: As for `read_server`, and if the source names no sweep.
    """
    if not parse_source(source)[2]:
        raise UserError(f"{source}: does not name a sweep; expected {SWEEP_FORM}")
    return _read(source, brief=True)


def parse_source(source: str) -> tuple[str, str, str]:
    """Return entity, project and sweep (or "") of `wandb:entity/project[/sweep]`.

    Raises:
        UserError: The source has another form.
    """
    parts = source.removeprefix(API_PREFIX).split("/")
    if len(parts) not in (2, 3) or not all(part.strip() == part != "" for part in parts):
        raise UserError(f"{source}: not a source of runs on W&B's server; expected {FORMS}")
    return parts[0], parts[1], parts[2] if len(parts) == 3 else ""


@contextmanager
def _user_errors(source: str) -> Iterator[None]:
    """Convert errors of W&B's client to UserError. It encloses only calls of the client."""
    import wandb

    # ValueError: an entity that does not exist, and an answer that is no JSON.
    client_errors: tuple[type[Exception], ...] = (*api_errors(), ValueError)
    try:
        yield
    except wandb.errors.UsageError as problem:
        raise UserError(
            f"{source}: {reason(problem)}, or name a folder of runs (wandb.mode=offline)"
        ) from None
    except wandb.errors.AuthenticationError as problem:
        raise UserError(
            f"{source}: W&B's server cannot be reached: {api_reason(problem)}; "
            f"see WANDB_BASE_URL, WANDB_API_KEY and `{shell_command('wandb', 'login')}`"
        ) from None
    except client_errors as problem:
        raise UserError(f"{source}: W&B's server says: {api_reason(problem)}; expected {FORMS}") from None


def _read(source: str, *, brief: bool = False) -> tuple[dict[str, Any], list[RunRecord]]:
    """Return the configuration of a sweep and its runs, and end the client's service afterwards."""
    import wandb

    try:
        with _user_errors(source):
            if wandb.run is None:  # keep the settings of the caller's run; hide messages of W&B's client
                wandb.setup(wandb.Settings(silent=True))
            sweep, server_runs = _request_runs(wandb.Api(), source)
            config = getattr(sweep, "config", None)
        config = dict(config) if isinstance(config, Mapping) else {}
        records = [_read_run(run, source, brief=brief) for run in server_runs]
        if sweep is not None:
            for record in records:
                record.objective = _read_objective(config)
                record.swept = _read_swept(config)
    finally:
        if wandb.run is None:
            end_service(SERVICE_SECONDS)
    return config, records


def _request_runs(api: Any, source: str) -> tuple[Any, list[Any]]:
    """Return the sweep of the source, None for a project, and the runs, oldest first."""
    entity, project, sweep_id = parse_source(source)
    sweep = api.sweep(f"{entity}/{project}/{sweep_id}") if sweep_id else None
    filters = None if sweep is None else {"$and": [{"sweep": sweep.id}]}
    runs = list(api.runs(f"{entity}/{project}", filters=filters, order="+created_at", lazy=False))
    if sweep is not None:  # a server may ignore the filter
        runs = [run for run in runs if _read_text(run, "sweep_name") in ("", sweep.id)]
    return sweep, runs


def _read_run(run: Any, source: str, *, brief: bool) -> RunRecord:
    problems: list[str] = []
    with _user_errors(source):
        rows = _read_last_row(run) if brief else _read_rows(run, problems)
        definitions = {} if brief else _read_definitions(run)
    record = _make_record(run, rows, problems)
    record.definitions = definitions
    if not brief and record.option(metrics.ENVIRONMENT) is None:  # our runs record the machine
        _read_machine(run, record)
    return record


def _read_objective(config: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the metric of a sweep's configuration and its goal ("" if left out), None without a metric."""
    metric = config.get("metric")
    if not isinstance(metric, Mapping):
        return None
    name = metric.get("name")
    goal = metric.get("goal")
    if not isinstance(name, str) or not name:
        return None
    # Without a goal, the name of the metric is a better guide than W&B's default, minimize.
    return name, goal if goal in ("maximize", "minimize") else ""


def _read_swept(config: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the parameters of a sweep's configuration that have several listed values."""
    parameters = config.get("parameters")
    items = parameters.items() if isinstance(parameters, Mapping) else ()
    lists = {key: spec.get("values") for key, spec in items if isinstance(spec, Mapping)}
    return {key: values for key, values in lists.items() if isinstance(values, list) and len(values) > 1}


def _read_rows(run: Any, problems: list[str]) -> list[dict[str, Any]]:
    """Return every row of the history in order, each once."""
    rows = list(run.scan_history(use_cache=False))
    row_count = getattr(run, "history_line_count", None)
    if not rows and row_count != 0:
        # `scan_history` returns nothing if the server has no last step. `history` does, but may sample.
        rows = run.history(samples=row_count or MAX_ROWS, pandas=False)
    by_step: dict[Any, dict[str, Any]] = {}
    for number, row in enumerate(rows):
        by_step.setdefault(row.get("_step", f"row {number}"), row)
    if row_count and len(by_step) < row_count:
        problems.append(f"W&B's server has {row_count:,} rows of it and gave {len(by_step):,}.")
    return list(by_step.values())


def _read_definitions(run: Any) -> dict[str, MetricDefinition]:
    """Return what `define_metric` declared.

    W&B's client (0.31) drops this part of the config if several runs are requested at once, so the run is
    requested again.
    """
    if OWN_CONFIG not in run.rawconfig:
        run.load(force=True)
    return MetricDefinition.from_config(run.rawconfig.get(OWN_CONFIG))


def _read_last_row(run: Any) -> list[dict[str, Any]]:
    """Return the last values of a run that logged any."""
    summary = _read_mapping(run, "summary_metrics")
    row_count = getattr(run, "history_line_count", None)
    has_rows = "_step" in summary if row_count is None else row_count > 0
    return [summary] if has_rows else []


def _make_record(run: Any, rows: list[dict[str, Any]], problems: list[str]) -> RunRecord:
    count, logged = build_columns(dict(flatten(row)) for row in rows)
    state = _read_text(run, "state")
    return RunRecord(
        id=run.id,
        name=_read_text(run, "name") or run.id,
        state=STATES.get(state, RunState.FAILED),
        ended_as=state if state in STATES and STATES[state] != state else "",
        config=_read_mapping(run, "config"),
        summary=_read_mapping(run, "summary_metrics"),
        rows=count,
        logged=dict(sorted(logged.items())),  # the server's order is random
        problems=problems,
        project=run.project,
        entity=run.entity,
        sweep_id=_read_text(run, "sweep_name"),
        group=_read_text(run, "group"),
        job_type=_read_text(run, "job_type"),
        notes=_read_text(run, "notes"),
        tags=tuple(getattr(run, "tags", None) or ()),
        started_at=_parse_time(_read_text(run, "created_at")),
    )


def _read_mapping(run: Any, name: str) -> dict[str, Any]:
    tree = getattr(run, name, None) or {}
    return {key: with_floats(value) for key, value in tree.items() if key != OWN_CONFIG}


def _read_text(run: Any, name: str) -> str:
    """Return an attribute that the server may have left out."""
    return str(getattr(run, name, None) or "")


def _parse_time(text: str) -> datetime | None:
    """Parse a timestamp of the server, which is in UTC with or without a zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _read_machine(run: Any, record: RunRecord) -> None:
    """Request what W&B's client recorded about the machine."""
    try:
        record.machine.facts = facts_of(run.metadata)
    except Exception as problem:  # the client raises many kinds of errors; the other runs are still read
        record.problems.append(f"W&B's record of the machine cannot be read ({reason(problem)}).")
