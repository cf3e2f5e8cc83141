"""Starts the record of a run with W&B: online with an account, otherwise offline with a message.

W&B's own environment variables (WANDB_MODE, WANDB_PROJECT, ...) take precedence over the config.
"""

import logging
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
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
        settings: The settings of the run.
        on_stop: Called in another thread if somebody stops the run on W&B's page, or early termination of a
            sweep does. None: W&B's client interrupts the main thread.
        resumed: The checkpoint of the run to continue.
        on_lost: Called in another thread, with the reason, if rows reach neither the disk nor a server any
            more.

    Raises:
        UserError: W&B refuses the settings (an API key of the wrong form, a tag that is too long, ...).
    """
    _ignore_failures_of_client_log()
    if sweep := os.environ.pop("AMPCOMPARE_LOCAL_SWEEP", None):  # W&B's server does not know its id
        os.environ.pop("WANDB_SWEEP_ID", None)
        os.environ.setdefault("WANDB_RUN_GROUP", sweep)
    # Both attempts have the same id: a failed start leaves an empty folder, and readers merge runs by id.
    named = settings.run_id or os.environ.get("WANDB_RUN_ID")
    run_id = resumed["run_id"] if resumed else named or secrets.token_hex(4)
    try:
        mode = _mode(settings.mode)
        is_online = mode == "online"
        # Offline the client would warn about `resume`; readers join the parts of a run.
        resume = "allow" if is_online and (resumed or settings.resumes) else None
        with warn_if_slow("W&B's server, to begin the run") if is_online else nullcontext():
            run = _init(settings, mode, run_id, on_stop, resume)
    except wandb.errors.UsageError as problem:
        raise UserError(f"W&B refuses to start the run: {problem}") from None
    except ValidationError as problem:  # in W&B's settings, also from WANDB_... variables
        wrong = problem.errors()[0]
        what = f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}"
        raise UserError(f"W&B refuses to start the run: {what}; correct or unset it") from None
    except (wandb.errors.CommError, TimeoutError) as problem:
        log.warning(f"W&B's server cannot be reached ({api_reason(problem)}); this run is recorded offline")
        end_service()  # the service still has the failed start
        run = _init(settings, "offline", run_id, on_stop)
    if run.disabled:
        run.finish()
        return Tracker(run_id, resumed["record"] if resumed else None)
    run.define_metric(metrics.STEP)
    run.define_metric("*", step_metric=metrics.STEP)
    return WandbTracker(run, run_id, on_lost, resumed["record"] if resumed else None)


def attach_to_run(run: Any, logged: Mapping[str, Any], on_lost: Callable[[str], None]) -> Tracker:
    """Return a tracker that records into a user's open W&B run, which the user ends.

    Args:
        run: The W&B run.
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
            what = f"{key}={logged[key]!r}: the config of the open W&B run has {known[key]!r}"
            raise UserError(f"{what}; use the same value, or leave it out of one of them")
    run.config.update({key: value for key, value in logged.items() if key not in known})
    for metric in metrics.METRICS.values():  # by name: other metrics of the run keep their own axis
        if metric.when != metrics.END:
            run.define_metric(metric.key, step_metric=None if metric.key == metrics.STEP else metrics.STEP)
        if metric.by_group:
            run.define_metric(f"{metric.key}/*", step_metric=metrics.STEP)
    return WandbTracker(run, run.id, on_lost, is_external=True)


def _mode(asked: str) -> str:
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


def _init(
    settings: RunSettings,
    mode: str,
    run_id: str,
    on_stop: Callable[[], None] | None,
    resume: str | None = None,
) -> Any:
    getenv = os.environ.get
    sweep_id, sweeps_run_id = getenv("WANDB_SWEEP_ID"), getenv("WANDB_RUN_ID")
    is_other_run = bool(sweep_id and sweeps_run_id and sweeps_run_id != run_id)
    options: dict[str, Any] = {"project": settings.project, "entity": settings.entity, "name": settings.name}
    options |= {"notes": settings.notes, "tags": list(settings.tags), "job_type": "train", "resume": resume}
    timeouts = {"init_timeout": INIT_TIMEOUT_SECONDS, "finish_timeout": FINISH_TIMEOUT_SECONDS}
    start = partial(
        wandb.init,
        # If a sweep has set the id, the client warns about an id, even about the same one.
        id=None if sweep_id and sweeps_run_id and not is_other_run else run_id,
        dir=getenv("WANDB_DIR") or str(Path(settings.output_dir).resolve()),
        mode=mode,  # type: ignore[arg-type]
        group=getenv("WANDB_RUN_GROUP") or sweep_id or settings.group,
        config=dict(settings.logged),
        settings=wandb.Settings(
            x_transaction_log_flush_interval=FLUSH_SECONDS,
            console="off",  # do not record the progress bar
            quiet=True,
            stop_fn=on_stop,
            **{key: getenv(f"WANDB_{key.upper()}") or value for key, value in timeouts.items()},  # type: ignore[arg-type]
        ),
        **{key: value for key, value in options.items() if not getenv(f"WANDB_{key.upper()}")},
    )
    # Within a sweep the client takes the sweep's id for every run, also for the second one of a program.
    with _without_variables("WANDB_SWEEP_ID", "WANDB_RUN_ID") if is_other_run else nullcontext():
        return start()


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
