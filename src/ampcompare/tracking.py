"""The W&B run: the only record there is. Online with an account, offline without, never silently neither.

W&B's own environment variables (WANDB_MODE, WANDB_PROJECT, WANDB_RUN_GROUP, ...) win over the config where set.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import wandb

from ampcompare import metrics
from ampcompare.config import Config
from ampcompare.errors import UserError
from ampcompare.precision import REGISTRY
from ampcompare.sender import Sender
from ampcompare.service import end_service

FLUSH_SECONDS = 1.0  # the client's 15 s lost 100 rows to a SIGKILL; at 1 s every row older than a second survived
INIT_TIMEOUT_SECONDS = 30.0
FINISH_TIMEOUT_SECONDS = 60.0  # without a limit, `finish` hangs for minutes on a server that went away
SERVICE_SECONDS = 15.0  # its usual end takes 0.1 s
DATA_NAMES = {"cifar10": "cifar", "image_folder": "images", "synthetic": "synthetic"}


def run_name(config: Config) -> str:
    """`standard_resnet50_cifar` and the like: backend, model, data."""
    return f"{REGISTRY[config.backend].label}_{config.model.name}_{DATA_NAMES[config.data.source]}"


class Tracker:
    """One W&B run from start to finish."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._rows: Sender[Mapping[str, Any]] = Sender(self._log)

    @classmethod
    def start(
        cls,
        config: Config,
        environment: Mapping[str, Any],
        say: Callable[[str], None],
        on_stop: Callable[[], None] | None = None,
    ) -> Tracker:
        """Begin the record under `config.output_dir`. Falls back to an offline run where the server cannot be had.

        `on_stop` is called, in another thread, when the run is stopped on W&B's page or by a sweep's early
        termination; without it W&B's client interrupts the main thread.

        Raises UserError for what W&B refuses (an API key of the wrong form, a tag that is too long, ...).
        """
        _hide_local_sweep()
        mode = _mode(config, say)
        # One id for both tries: a start that failed leaves a folder with nothing in it, and readers merge by id.
        run_id = os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4)
        try:
            run = _init(config, environment, mode, run_id, on_stop)
        except wandb.errors.UsageError as problem:
            raise UserError(f"W&B refuses to start the run: {problem}") from None
        except (wandb.errors.CommError, TimeoutError) as problem:
            say(f"W&B's server cannot be reached ({_first_line(problem)}): this run is recorded offline")
            end_service(SERVICE_SECONDS)  # it still holds the failed start
            run = _init(config, environment, "offline", run_id, on_stop)
        run.define_metric(metrics.STEP)
        run.define_metric("*", step_metric=metrics.STEP)
        run.summary["environment"] = dict(environment)
        return cls(run)

    @property
    def record(self) -> Path | None:
        """The folder of the run's record, None for a disabled run."""
        return None if self._run.disabled else Path(self._run.dir).parent

    @property
    def url(self) -> str | None:
        """The run's page, None unless online."""
        return None if self._run.offline or self._run.disabled else self._run.url

    def log(self, row: Mapping[str, Any]) -> None:
        """Record one row, soon; it carries its own `global_step`. Raises what W&B raised for an earlier one."""
        self._rows.put(row)

    def _log(self, row: Mapping[str, Any]) -> None:
        self._run.log({key: _logged(value) for key, value in row.items()})

    def finish(self, summary: Mapping[str, Any], exit_code: int) -> None:
        """End the record: finished with exit code 0, failed with any other."""
        try:
            self._rows.close()
        finally:
            self._finish(summary, exit_code)

    def _finish(self, summary: Mapping[str, Any], exit_code: int) -> None:
        self._run.summary.update(dict(summary))
        self._run.finish(exit_code=exit_code)
        # `finish` may return up to a flush interval before the file is whole (4 of 40 runs here); the end of the
        # client's service process is what can be relied on.
        end_service(SERVICE_SECONDS)


def _hide_local_sweep() -> None:
    """A sweep without a server (`ampcompare sweep`) stays the group; its id would mean nothing to W&B's server."""
    if sweep := os.environ.pop("AMPCOMPARE_LOCAL_SWEEP", None):
        os.environ.pop("WANDB_SWEEP_ID", None)
        os.environ.setdefault("WANDB_RUN_GROUP", sweep)


def _logged(value: Any) -> Any:
    if isinstance(value, metrics.Histogram):
        return wandb.Histogram(np_histogram=(value.counts, value.edges))  # type: ignore[arg-type]
    return value


def _mode(config: Config, say: Callable[[str], None]) -> str | None:
    """What to tell wandb.init, None where W&B's own variable says it."""
    if os.environ.get("WANDB_MODE") or os.environ.get("WANDB_DISABLED"):
        return None
    if config.wandb.mode != "auto":
        return config.wandb.mode
    if _has_credentials():
        return "online"
    say("no W&B account: this run is recorded offline (`wandb login` once to stream it)")
    return "offline"


def _has_credentials() -> bool:
    """Whether the client would find an API key, by its own rules, without asking for one."""
    from wandb.sdk.lib import wbauth

    host = wandb.setup().settings.base_url
    try:
        auth = wbauth.authenticate_session(host=host, source="ampcompare", prompt=False, update_session=False)
    except wandb.errors.AuthenticationError as problem:
        raise UserError(f"W&B credentials: {_first_line(problem)}; mend them or set wandb.mode=offline") from None
    return auth is not None


def _init(
    config: Config,
    environment: Mapping[str, Any],
    mode: str | None,
    run_id: str,
    on_stop: Callable[[], None] | None,
) -> Any:
    options = config.wandb
    given = os.environ.get
    logged = config.to_dict() | {"environment": dict(environment)}
    return wandb.init(
        id=None if given("WANDB_SWEEP_ID") and given("WANDB_RUN_ID") else run_id,  # the client warns of one's own
        dir=given("WANDB_DIR") or str(Path(config.output_dir).resolve()),
        mode=mode,  # type: ignore[arg-type]
        project=None if given("WANDB_PROJECT") else options.project,
        entity=None if given("WANDB_ENTITY") else options.entity,
        group=given("WANDB_RUN_GROUP") or given("WANDB_SWEEP_ID") or options.group,
        name=None if given("WANDB_NAME") else options.name or run_name(config),
        notes=None if given("WANDB_NOTES") else options.notes,
        tags=None if given("WANDB_TAGS") else _tags(config),
        job_type=None if given("WANDB_JOB_TYPE") else "train",
        config=logged,
        settings=wandb.Settings(
            x_transaction_log_flush_interval=FLUSH_SECONDS,
            init_timeout=float(given("WANDB_INIT_TIMEOUT") or INIT_TIMEOUT_SECONDS),
            finish_timeout=float(given("WANDB_FINISH_TIMEOUT") or FINISH_TIMEOUT_SECONDS),
            console="off",  # a progress bar is no record
            quiet=True,
            stop_fn=on_stop,
        ),
    )


def _tags(config: Config) -> list[str]:
    """The backend, the data (so that synthetic data is seen wherever the run is), and the user's."""
    return list(dict.fromkeys([config.backend, config.data.source, *config.wandb.tags]))


def _first_line(problem: BaseException) -> str:
    lines = str(problem).strip().splitlines()
    return lines[0] if lines else type(problem).__name__
