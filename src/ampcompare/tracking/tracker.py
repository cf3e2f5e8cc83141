"""The W&B run: the only record there is. Online with an account, offline without, never silently neither.

W&B's own environment variables (WANDB_MODE, WANDB_PROJECT, WANDB_RUN_GROUP, ...) win over the config where
set.
"""

from __future__ import annotations

import logging
import os
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import wandb
from pydantic import ValidationError  # W&B's client is built on it

from ampcompare import metrics
from ampcompare.config.load import Config
from ampcompare.data.sources import source_of
from ampcompare.errors import UserError
from ampcompare.precision import backend_of
from ampcompare.tracking.record_file import RecordFile
from ampcompare.tracking.sender import Sender
from ampcompare.wandb_client.service import end_service

FLUSH_SECONDS = (
    1.0  # the client's 15 s lost 100 rows to a SIGKILL; at 1 s every row older than a second survived
)
INIT_TIMEOUT_SECONDS = 30.0
FINISH_TIMEOUT_SECONDS = 60.0  # without a limit, `finish` hangs for minutes on a server that went away
STOPPED_SECONDS = 4.0  # for the end of a run that was stopped: a batch system kills soon after SIGTERM
SERVICE_SECONDS = 15.0  # its usual end takes 0.1 s
TAIL_ROWS = (
    500  # at least so many are kept in a checkpoint, for rows that did not reach the record before a kill
)
FRESH_SECONDS = 5.0  # what is older is on the disk, even if the power fails
SERVICE_ENDED = "W&B's service process has ended before its time (killed?)"


def run_name(config: Config) -> str:
    """`standard_resnet50_cifar` and the like: backend, model, data; `torch-amp-fuse_...` with fuse=true."""
    backend = backend_of(config.backend)
    word = (backend.run_word or backend.label) + ("-fuse" if config.fuse else "")
    return f"{word}_{config.model.name}_{source_of(config.data.source).short}"


class Tracker:
    """One W&B run from start to finish."""

    def __init__(
        self,
        run: Any,
        run_id: str,
        say: Callable[[str], None],
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        self._run, self.run_id = run, run_id
        self._file = (
            None
            if run.disabled
            else RecordFile(Path(run.settings.sync_file), Path(run.settings.log_internal))
        )
        self._watched = self._file is not None
        self._ended = False  # the client's service, before its time
        self._say, self._on_lost = say, on_lost
        self._rows: Sender[Mapping[str, Any]] = Sender(self._log)
        self._count = 0  # rows so far, in the parts of the run before this one too
        self._tail: deque[tuple[int, float, Mapping[str, Any]]] = deque()  # number, time, row
        self._known, self._known_step = 0, -1  # how many the server has already, and up to which step

    @classmethod
    def start(
        cls,
        config: Config,
        environment: Mapping[str, Any],
        say: Callable[[str], None],
        on_stop: Callable[[], None] | None = None,
        resumed: Mapping[str, Any] | None = None,
        on_lost: Callable[[str], None] | None = None,
    ) -> Tracker:
        """Begin the record under `config.output_dir`. Falls back to an offline run where the server cannot be
        had.

        `on_stop` is called, in another thread, when the run is stopped on W&B's page or by a sweep's early
        termination; without it W&B's client interrupts the main thread. `resumed` is the checkpoint of the
        run to go on with. `on_lost` is told, in another thread, why rows reach neither the disk nor a server
        any more.

        Raises UserError for what W&B refuses (an API key of the wrong form, a tag that is too long, ...).
        """
        logging.raiseExceptions = (
            False  # the client's own log on a full disk: a traceback on stderr for each line
        )
        _hide_local_sweep()
        # One id for both tries: a start that failed leaves a folder with nothing in it, and readers merge by
        # id.
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
            where = ".".join(map(str, wrong["loc"]))
            raise UserError(
                f"W&B refuses to start the run: {where}: {wrong['msg']}; mend it or unset it"
            ) from None
        except (wandb.errors.CommError, TimeoutError) as problem:
            say(f"W&B's server cannot be reached ({_first_line(problem)}): this run is recorded offline")
            end_service(SERVICE_SECONDS)  # it still holds the failed start
            run = _init(config, logged, "offline", run_id, on_stop)
        run.define_metric(metrics.STEP)
        run.define_metric("*", step_metric=metrics.STEP)
        run.summary["environment"] = dict(environment)
        tracker = cls(run, run_id, say, on_lost)
        if resumed:
            tracker._go_on(resumed["record"], say)
        return tracker

    @property
    def record(self) -> Path | None:
        """The folder of the run's record, None for a disabled run."""
        return None if self._run.disabled else Path(self._run.dir).parent

    @property
    def url(self) -> str | None:
        """The run's page, None unless online."""
        return None if self._run.offline or self._run.disabled else self._run.url

    def log(self, row: Mapping[str, Any]) -> None:
        """Record one row, soon, by its own `global_step`. Raises what W&B raised for an earlier one."""
        self._count += 1
        self._tail.append((self._count, time.monotonic(), row))
        surely = self._reached_at() - FRESH_SECONDS
        while len(self._tail) > TAIL_ROWS and self._tail[0][1] < surely:
            self._tail.popleft()
        if self._count > self._known or row[metrics.STEP] > self._known_step:
            self._rows.put(row)

    def flush(self) -> None:
        """Wait until the client has all rows. Raises what W&B raised."""
        self._rows.flush()

    def state_dict(self) -> dict[str, Any]:
        """How many rows there are, and the last of them, as plain values."""
        if self._file:
            self._file.look()
        reached = self._reached_at()
        return {"rows": self._count, "tail": [(n, reached - at, _plain(row)) for n, at, row in self._tail]}

    def _reached_at(self) -> float:
        """When the record was last seen to take rows: what is older by FRESH_SECONDS is in it."""
        return self._file.reached_at() if self._file and self._watched else time.monotonic()

    def _go_on(self, state: Mapping[str, Any], say: Callable[[str], None]) -> None:
        """Go on behind the rows of a checkpoint: none twice, none missing.

        The server counts the rows that it has. What it has beyond the checkpoint is computed again and not
        sent again; what it lacks is sent. On disk a new file begins, whose rows take the place of those from
        its first step on.
        """
        rows = state["rows"]
        tail = [(number, age, _unplain(row)) for number, age, row in state["tail"]]
        if self._run.offline or self._run.disabled:
            # Those that may not have reached the disk, and all of the first one's step, as steps are merged
            # whole.
            fresh = [row[metrics.STEP] for _, age, row in tail if age < FRESH_SECONDS] or [
                row[metrics.STEP] for *_, row in tail[-1:]
            ]
            again = [entry for entry in tail if fresh and entry[2][metrics.STEP] >= fresh[0]]
            self._count = again[0][0] - 1 if again else rows
        else:
            self._known = self._run.starting_step if self._run.resumed else 0
            step = self._run.summary.get(metrics.STEP)
            self._known_step = step if isinstance(step, int) else -1
            again = [entry for entry in tail if entry[0] > self._known]
            missing = rows - self._known - len(again)
            if missing > 0:
                say(
                    f"W&B's server lacks {missing} rows of this run's earlier part; they are on the disk, in "
                    f"the folders *run-*-{self.run_id} beside {self.record} (wandb sync --include-online)"
                )
            self._count = rows - len(again)
        for _, _, row in again:
            self.log(row)

    def _log(self, row: Mapping[str, Any]) -> None:
        trouble = self._file.hand_over() if self._file and self._watched else None
        if self._ended:
            return
        try:
            self._run.log({key: _logged(value) for key, value in row.items()})
        except ConnectionError:
            self._ended = True
            self._lose(SERVICE_ENDED)
        if trouble and self._file:
            what = f"W&B can write no more to {self._file.path}: {trouble}"
            if self._run.offline:
                self._lose(what)
            else:
                self._say(f"{what}; the rows still go to the server")
                self._watched = False

    def _lose(self, why: str) -> None:
        if self._on_lost:
            self._on_lost(why)

    def finish(self, summary: Mapping[str, Any], exit_code: int) -> str | None:
        """End the record: finished with exit code 0, failed with any other. Returns what it lacks on the
        disk.
        """
        try:
            self._rows.close()
        finally:
            self._finish(summary, exit_code, SERVICE_SECONDS)
        why = self._file.trouble_at_end() if self._file and self._run.offline and not self._ended else None
        if self._file and (why or self._ended):
            return f"the record {self._file.path} is not whole: {why or SERVICE_ENDED}"
        return None

    def finish_stopped(self, summary: Mapping[str, Any], exit_code: int, *, preempted: bool) -> bool:
        """End the record of a run that was stopped, within seconds; whether all of it was sent.

        What is on the disk is whole anyway; `wandb sync` sends the rest.
        """
        ends: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

        def end() -> None:
            try:
                self._rows.close()
                if preempted and not self._ended:
                    self._run.mark_preempting()
                self._finish(summary, exit_code, STOPPED_SECONDS / 2)
                ends.put(None)
            except Exception as problem:
                ends.put(problem)

        threading.Thread(target=end, daemon=True, name="finish").start()
        try:
            problem = ends.get(timeout=STOPPED_SECONDS)
        except queue.Empty:
            return False
        if problem:
            raise problem
        return True

    def _finish(self, summary: Mapping[str, Any], exit_code: int, service_seconds: float) -> None:
        try:
            self._run.summary.update(dict(summary))
            self._run.finish(exit_code=exit_code)
        except ConnectionError:
            self._ended = True
        except (
            OSError
        ) as problem:  # it closes its own log last; what the record lacks is looked at for itself
            self._say(f"W&B's client could not write its log to the end ({problem.strerror})")
        # `finish` may return up to a flush interval before the file is whole (4 of 40 runs here); the end of
        # the client's service process is what can be relied on.
        end_service(service_seconds)


def _hide_local_sweep() -> None:
    """A sweep without a server (`ampcompare sweep`) stays the group; its id would mean nothing to W&B's
    server.
    """
    if sweep := os.environ.pop("AMPCOMPARE_LOCAL_SWEEP", None):
        os.environ.pop("WANDB_SWEEP_ID", None)
        os.environ.setdefault("WANDB_RUN_GROUP", sweep)


def _logged(value: Any) -> Any:
    if isinstance(value, metrics.Histogram):
        return wandb.Histogram(np_histogram=(value.counts, value.edges))  # type: ignore[arg-type]
    return value


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as a checkpoint may hold it."""
    return {
        k: {"counts": v.counts, "edges": v.edges} if isinstance(v, metrics.Histogram) else v
        for k, v in row.items()
    }


def _unplain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {k: metrics.Histogram(**v) if isinstance(v, dict) else v for k, v in row.items()}


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
        raise UserError(
            f"W&B credentials: {_first_line(problem)}; mend them or set wandb.mode=offline"
        ) from None
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
    if mode != "online" and (mode or given("WANDB_MODE", "online") != "online" or given("WANDB_DISABLED")):
        resume = None  # the client would warn; offline, parts are put together when they are read
    return wandb.init(
        id=None
        if given("WANDB_SWEEP_ID") and given("WANDB_RUN_ID")
        else run_id,  # the client warns of one's own
        dir=given("WANDB_DIR") or str(Path(config.output_dir).resolve()),
        mode=mode,  # type: ignore[arg-type]
        project=None if given("WANDB_PROJECT") else options.project,
        entity=None if given("WANDB_ENTITY") else options.entity,
        group=given("WANDB_RUN_GROUP") or given("WANDB_SWEEP_ID") or options.group,
        name=None if given("WANDB_NAME") else options.name or run_name(config),
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
    return list(dict.fromkeys([backend_of(config.backend).label, config.data.source, *config.wandb.tags]))


def _first_line(problem: BaseException) -> str:
    lines = str(problem).strip().splitlines()
    return lines[0] if lines else type(problem).__name__
