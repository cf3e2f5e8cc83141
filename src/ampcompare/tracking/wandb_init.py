"""Starts the record of a run with W&B: online with an account, otherwise offline with a message.

W&B's own environment variables (WANDB_MODE, WANDB_PROJECT, ...) take precedence over the config.
"""

import logging
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import wandb
from pydantic import ValidationError  # W&B's client is built on it

from ampcompare import metrics
from ampcompare.errors import UserError
from ampcompare.runtime.paths import shell_command
from ampcompare.tracking.tracker import Tracker
from ampcompare.tracking.wandb_tracker import WandbTracker
from ampcompare.wandb_client.client import (
    api_reason,
    end_service,
    has_account,
    warn_if_slow,
)

log = logging.getLogger(__name__)

MAX_TAG_CHARS = 64  # W&B's limit
CLIENT_LOGGER = "wandb"  # of W&B's client, which writes it to a file and nowhere else
FLUSH_SECONDS = 1.0  # the client's 15 s lost 100 rows to a SIGKILL; at 1 s only those of the last second
INIT_TIMEOUT_SECONDS = 30.0
FINISH_TIMEOUT_SECONDS = 60.0  # without a limit, `finish` hangs for minutes on a server that went away


@dataclass(frozen=True)
class RunSettings:
    """The settings with which W&B starts a run.

    Attributes:
        logged: The config of the run, with its environment.
        output_dir: The folder under which the record lies.
        resumes: Whether to add to the run that the server has under this id, if it has one.
        run_id: The id of the run. None: that in WANDB_RUN_ID, or a new one.
    """

    logged: Mapping[str, Any]
    output_dir: str
    name: str
    tags: Sequence[str]
    project: str
    entity: str | None = None
    group: str | None = None
    notes: str | None = None
    mode: str = "auto"
    resumes: bool = False
    run_id: str | None = None


def start_record(
    settings: RunSettings,
    on_stop: Callable[[], None] | None = None,
    resumed: Mapping[str, Any] | None = None,
    on_lost: Callable[[str], None] | None = None,
) -> Tracker:
    """Start the record under `settings.output_dir`, offline if the server cannot be reached.

    Args:
        settings: Where W&B's environment variables are set, they take precedence.
        on_stop: Called in another thread when the run is stopped on W&B's page or by early termination of a
            sweep. None: W&B's client interrupts the main thread.
        resumed: The checkpoint of the run to continue.
        on_lost: Called in another thread, with the reason, if rows reach neither the disk nor a server any
            more.

    Raises:
        UserError: W&B refuses the settings (an API key of the wrong form, a tag that is too long, ...).
    """
    _ignore_failures_of_client_log()
    _leave_local_sweep()
    state = None
    if resumed:
        settings = replace(settings, run_id=resumed["run_id"], resumes=True)
        state = resumed["record"]
    # Both attempts have the same id: a failed start leaves an empty folder, and readers merge runs by id.
    run_id = settings.run_id or os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4)
    try:
        run = _start_run(settings, run_id, on_stop)
    except (wandb.errors.CommError, TimeoutError) as problem:
        log.warning(f"W&B's server cannot be reached ({api_reason(problem)}); this run is recorded offline")
        end_service()  # the service still has the failed start
        run = _init_run(settings, "offline", run_id, on_stop)
    if run.disabled:
        run.finish()
        return Tracker(run_id, state)
    run.define_metric(metrics.STEP)
    run.define_metric("*", step_metric=metrics.STEP)
    return WandbTracker(run, run_id, on_lost, state, partial(_restart_offline, settings, run_id))


def _restart_offline(settings: RunSettings, run_id: str) -> Any:
    """Start the run again after its service process has ended."""
    end_service()
    wandb.run = None  # the client would return the run that it has lost
    return _init_run(settings, "offline", run_id, None, is_silent=True)


def _leave_local_sweep() -> None:
    """Group the runs of a local sweep by its id, and hide the id: W&B's server does not know the sweep."""
    sweep = os.environ.pop("AMPCOMPARE_LOCAL_SWEEP", None)
    if sweep:
        os.environ.pop("WANDB_SWEEP_ID", None)
        os.environ.setdefault("WANDB_RUN_GROUP", sweep)


def _start_run(settings: RunSettings, run_id: str, on_stop: Callable[[], None] | None) -> Any:
    """Start the run in the mode of the settings.

    Raises:
        UserError: W&B refuses the settings.
        wandb.errors.CommError, TimeoutError: The server cannot be reached.
    """
    try:
        mode = _choose_mode(settings.mode)
        if mode != "online":
            # Offline the client would warn about `resume`; readers join the parts of a run.
            return _init_run(settings, mode, run_id, on_stop)
        with warn_if_slow("W&B's server, to begin the run"):
            return _init_run(settings, mode, run_id, on_stop, "allow" if settings.resumes else None)
    except wandb.errors.UsageError as problem:
        raise UserError(f"W&B refuses to start the run: {problem}") from None
    except ValidationError as problem:  # in W&B's settings, also from WANDB_... variables
        error = problem.errors()[0]
        setting = ".".join(map(str, error["loc"]))
        raise UserError(
            f"W&B refuses to start the run: {setting}: {error['msg']}; correct or unset it"
        ) from None


def attach_to_run(run: Any, logged: Mapping[str, Any], on_lost: Callable[[str], None]) -> Tracker:
    """Return a tracker that records into a user's open W&B run, which the user ends.

    Args:
        logged: The config to record; the run's config gets the keys that it lacks.
        on_lost: As in `start_record`.

    Raises:
        UserError: The two configs contradict each other, or `run` is not a W&B run.
    """
    lacks = [name for name in ("log", "config", "summary", "define_metric") if not hasattr(run, name)]
    if lacks:
        raise UserError(
            f"run={type(run).__name__}: expected a W&B run, as wandb.run is; it has no {lacks[0]}"
        )
    if run.disabled:
        return Tracker(run.id)
    known = dict(run.config)
    for key in ("backend", "seed", "batch_size"):
        if key in known and key in logged and known[key] != logged[key]:
            raise UserError(
                f"{key}={logged[key]!r}: the config of the open W&B run has {known[key]!r}; "
                "use the same value, or leave it out of one of them"
            )
    run.config.update({key: value for key, value in logged.items() if key not in known})
    for metric in metrics.METRICS.values():  # by name: other metrics of the run keep their own axis
        if metric.when != metrics.END:
            run.define_metric(metric.key, step_metric=None if metric.key == metrics.STEP else metrics.STEP)
        if metric.by_group:
            run.define_metric(f"{metric.key}/*", step_metric=metrics.STEP)
    return WandbTracker(run, run.id, on_lost)


def _choose_mode(asked: str) -> str:
    """Return the mode for wandb.init; W&B's environment variables take precedence."""
    if os.environ.get("WANDB_DISABLED"):
        return "disabled"
    if mode := os.environ.get("WANDB_MODE"):
        return mode
    if asked != "auto":
        return asked
    if has_account():
        return "online"
    login = shell_command("wandb", "login")
    log.warning(f"no W&B account, so this run is recorded offline; to stream runs, log in once: {login}")
    return "offline"


def _init_run(
    settings: RunSettings,
    mode: str,
    run_id: str,
    on_stop: Callable[[], None] | None,
    resume: str | None = None,
    *,
    is_silent: bool = False,
) -> Any:
    """Call wandb.init; W&B's environment variables take precedence over the settings."""
    sweep_id = os.environ.get("WANDB_SWEEP_ID")
    sweeps_run_id = os.environ.get("WANDB_RUN_ID") if sweep_id else None  # as W&B's agent sets it
    options: dict[str, Any] = {
        "project": settings.project,
        "entity": settings.entity,
        "name": settings.name,
        "notes": settings.notes,
        "tags": list(settings.tags),
        "job_type": "train",
        "resume": resume,
    }
    options = {key: value for key, value in options.items() if not _variable(key)}
    # If a sweep has set the id, the client warns about an id, even about the same one.
    options["id"] = None if sweeps_run_id == run_id else run_id
    options["dir"] = os.environ.get("WANDB_DIR") or str(Path(settings.output_dir).resolve())
    options["group"] = os.environ.get("WANDB_RUN_GROUP") or sweep_id or settings.group
    options_of_client: dict[str, Any] = {
        "init_timeout": _variable("init_timeout") or INIT_TIMEOUT_SECONDS,
        "finish_timeout": _variable("finish_timeout") or FINISH_TIMEOUT_SECONDS,
    }
    if is_silent:  # `False` would replace WANDB_SILENT
        options_of_client["silent"] = True
    client_settings = wandb.Settings(
        x_transaction_log_flush_interval=FLUSH_SECONDS,
        console="off",  # do not record the progress bar
        quiet=True,
        stop_fn=on_stop,
        **options_of_client,
    )
    # Within a sweep the client takes the sweep's id for every run, also for the second one of a program.
    is_second_run = sweeps_run_id and sweeps_run_id != run_id
    hidden = ("WANDB_SWEEP_ID", "WANDB_RUN_ID") if is_second_run else ()
    with _without_variables(*hidden):
        return wandb.init(
            mode=mode,  # type: ignore[arg-type]
            config=dict(settings.logged),
            settings=client_settings,
            **options,
        )


def _variable(option: str) -> str | None:
    """Return W&B's environment variable of an option of wandb.init, None where it is not set."""
    return os.environ.get(f"WANDB_{option.upper()}")


@contextmanager
def _without_variables(*names: str) -> Iterator[None]:
    """Return a context in which the environment lacks some variables."""
    values = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ |= values


class _IgnoreFailures(logging.Handler):
    """Lets the files of a logger fail silently. It has to be the logger's first handler.

    On a full disk W&B's client cannot write its own log, and Python would print a traceback for each line.
    The client makes a file for each run, and logs to it before `wandb.init` returns.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Prepare the logger's other handlers, which come next."""
        for handler in logging.getLogger(CLIENT_LOGGER).handlers:
            if isinstance(handler, logging.FileHandler):
                handler.handleError = _ignore  # type: ignore[method-assign]


def _ignore(record: logging.LogRecord) -> None:
    """Do nothing about a line of the log that could not be written."""


def _ignore_failures_of_client_log() -> None:
    """Keep a full disk from filling the terminal; the user's own logging stays as it is."""
    handlers = logging.getLogger(CLIENT_LOGGER).handlers
    if not any(isinstance(handler, _IgnoreFailures) for handler in handlers):
        handlers.insert(0, _IgnoreFailures())
