"""Starts the record of a run with W&B: online with an account, otherwise offline with a message.

W&B's own environment variables (WANDB_MODE, WANDB_PROJECT, ...) take precedence over the config.
"""

import logging
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
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
    # On a full disk W&B's client cannot write its own log, and Python would print a traceback for each line.
    logging.raiseExceptions = False
    if sweep := os.environ.pop("AMPCOMPARE_LOCAL_SWEEP", None):  # W&B's server does not know its id
        os.environ.pop("WANDB_SWEEP_ID", None)
        os.environ.setdefault("WANDB_RUN_GROUP", sweep)
    # Both attempts have the same id: a failed start leaves an empty folder, and readers merge runs by id.
    run_id = resumed["run_id"] if resumed else os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4)
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
    options: dict[str, Any] = {"project": settings.project, "entity": settings.entity, "name": settings.name}
    options |= {"notes": settings.notes, "tags": list(settings.tags), "job_type": "train", "resume": resume}
    timeouts = {"init_timeout": INIT_TIMEOUT_SECONDS, "finish_timeout": FINISH_TIMEOUT_SECONDS}
    return wandb.init(
        # If a sweep has set the id, the client warns about another one.
        id=None if getenv("WANDB_SWEEP_ID") and getenv("WANDB_RUN_ID") else run_id,
        dir=getenv("WANDB_DIR") or str(Path(settings.output_dir).resolve()),
        mode=mode,  # type: ignore[arg-type]
        group=getenv("WANDB_RUN_GROUP") or getenv("WANDB_SWEEP_ID") or settings.group,
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
