"""The start of a run's record with W&B: online with an account, offline without, never silently neither.

W&B's own environment variables (WANDB_MODE, WANDB_PROJECT, ...) win over the config where set.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import wandb
from pydantic import ValidationError  # W&B's client is built on it

from ampcompare import metrics
from ampcompare.config.load import Config
from ampcompare.data.sources import SOURCES, source_of
from ampcompare.errors import UserError, reason
from ampcompare.plugins import short
from ampcompare.precision import backend_of
from ampcompare.program.place import as_typed
from ampcompare.tracking.tracker import NoRecord, Tracker
from ampcompare.tracking.wandb_run import WandbRun
from ampcompare.wandb_client.service import end_service

MOST_TAG_CHARS = 64  # W&B's limit
FLUSH_SECONDS = 1.0  # the client's 15 s lost 100 rows to a SIGKILL; at 1 s only those of the last second
INIT_TIMEOUT_SECONDS = 30.0
FINISH_TIMEOUT_SECONDS = 60.0  # without a limit, `finish` hangs for minutes on a server that went away


def run_name(config: Config, dtype: str | None = None) -> str:
    """`standard_resnet50_cifar` and the like: backend in its type, model, data; `torch-amp-fuse_...` with
    fuse=true. `dtype` is the type that was taken; None: what the config says.
    """
    word = backend_of(config.backend).begins_name(dtype or str(config.precision.dtype)) + (
        "-fuse" if config.fuse else ""
    )
    return f"{word}_{short(config.model.name)}_{source_of(config.data.source).short}"


def start_tracker(
    config: Config,
    environment: Mapping[str, Any],
    say: Callable[[str], None],
    on_stop: Callable[[], None] | None = None,
    resumed: Mapping[str, Any] | None = None,
    on_lost: Callable[[str], None] | None = None,
) -> Tracker:
    """Begin the record under `config.output_dir`: an offline run where the server cannot be had.

    `on_stop` is called, in another thread, when the run is stopped on W&B's page or by a sweep's early
    termination; without it W&B's client interrupts the main thread. `resumed` is the checkpoint of the run to
    go on with. `on_lost` is told, in another thread, why rows reach neither the disk nor a server any more.

    Raises UserError for what W&B refuses (an API key of the wrong form, a tag that is too long, ...).
    """
    logging.raiseExceptions = False  # the client's log on a full disk: a traceback on stderr for each line
    _hide_local_sweep()
    # One id for both tries: a start that failed leaves a folder with nothing in it; readers merge by id.
    run_id = resumed["run_id"] if resumed else os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4)
    logged = config.to_dict() | {"environment": dict(environment)}
    if resumed:
        logged["resume"] = resumed["config"]["resume"]  # how the run was begun: it is one run
    resume = "allow" if resumed else None
    try:
        run = _init(config, logged, _mode(config, say), run_id, on_stop, resume)
    except wandb.errors.UsageError as problem:
        raise UserError(f"W&B refuses to start the run: {problem}") from None
    except ValidationError as problem:  # of its settings, those from WANDB_... variables too
        wrong = problem.errors()[0]
        what = f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}"
        raise UserError(f"W&B refuses to start the run: {what}; mend it or unset it") from None
    except (wandb.errors.CommError, TimeoutError) as problem:
        say(f"W&B's server cannot be reached ({reason(problem)}): this run is recorded offline")
        end_service()  # it still holds the failed start
        run = _init(config, logged, "offline", run_id, on_stop)
    if run.disabled:
        run.finish()
        return NoRecord(run_id, resumed["record"] if resumed else None)
    run.define_metric(metrics.STEP)
    run.define_metric("*", step_metric=metrics.STEP)
    run.summary["environment"] = dict(environment)
    return WandbRun(run, run_id, say, on_lost, resumed["record"] if resumed else None)


def _hide_local_sweep() -> None:
    """A sweep without a server stays the group; its id would mean nothing to W&B's server."""
    if sweep := os.environ.pop("AMPCOMPARE_LOCAL_SWEEP", None):
        os.environ.pop("WANDB_SWEEP_ID", None)
        os.environ.setdefault("WANDB_RUN_GROUP", sweep)


def _mode(config: Config, say: Callable[[str], None]) -> str | None:
    """What to tell wandb.init, None where W&B's own variable says it."""
    if os.environ.get("WANDB_MODE") or os.environ.get("WANDB_DISABLED"):
        return None
    if config.wandb.mode != "auto":
        return config.wandb.mode
    if has_account():
        return "online"
    login = as_typed("wandb", "login")
    say(f"no W&B account: this run is recorded offline (`{login}` once to stream it)")
    return "offline"


def has_account() -> bool:
    """Whether the client would find an API key, by its own rules, without asking for one or connecting.

    Raises UserError for a key of the wrong form.
    """
    from wandb.sdk.lib import wbauth

    host = wandb.setup().settings.base_url
    try:
        auth = wbauth.authenticate_session(host=host, source="ampcompare", prompt=False, update_session=False)
    except wandb.errors.AuthenticationError as problem:
        raise UserError(f"W&B credentials: {reason(problem)}; mend them or set wandb.mode=offline") from None
    return auth is not None


def _init(
    config: Config,
    logged: Mapping[str, Any],
    mode: str | None,
    run_id: str,
    on_stop: Callable[[], None] | None,
    resume: str | None = None,
) -> Any:
    options = config.wandb
    given = os.environ.get
    name = options.name or run_name(config, logged["environment"].get(metrics.PRECISION_DTYPE))
    if mode != "online" and (mode or given("WANDB_MODE", "online") != "online" or given("WANDB_DISABLED")):
        resume = None  # the client would warn; offline, parts are put together when they are read
    return wandb.init(
        # A sweep gave it, and the client warns of one's own.
        id=None if given("WANDB_SWEEP_ID") and given("WANDB_RUN_ID") else run_id,
        dir=given("WANDB_DIR") or str(Path(config.output_dir).resolve()),
        mode=mode,  # type: ignore[arg-type]
        project=None if given("WANDB_PROJECT") else options.project,
        entity=None if given("WANDB_ENTITY") else options.entity,
        group=given("WANDB_RUN_GROUP") or given("WANDB_SWEEP_ID") or options.group,
        name=None if given("WANDB_NAME") else name,
        notes=None if given("WANDB_NOTES") else options.notes,
        tags=None if given("WANDB_TAGS") else _tags(config),
        job_type=None if given("WANDB_JOB_TYPE") else "train",
        config=dict(logged),
        resume=None if given("WANDB_RESUME") else resume,  # type: ignore[arg-type]
        settings=wandb.Settings(
            x_transaction_log_flush_interval=FLUSH_SECONDS,
            init_timeout=given("WANDB_INIT_TIMEOUT") or INIT_TIMEOUT_SECONDS,  # type: ignore[arg-type]
            finish_timeout=given("WANDB_FINISH_TIMEOUT") or FINISH_TIMEOUT_SECONDS,  # type: ignore[arg-type]
            console="off",  # a progress bar is no record
            quiet=True,
            stop_fn=on_stop,
        ),
    )


def _tags(config: Config) -> list[str]:
    """The backend, the data (so that synthetic data is seen wherever the run is), and the user's."""
    source = config.data.source
    data = source if source in SOURCES else source_of(source).label[-MOST_TAG_CHARS:]
    return list(dict.fromkeys([backend_of(config.backend).label, data, *config.wandb.tags]))
