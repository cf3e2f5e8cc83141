"""Records one run with W&B's client: its rows, the rows that the client may lose, its end."""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import wandb

from ampcompare import metrics
from ampcompare.runtime.paths import shell_command
from ampcompare.runtime.signals import is_preemption, is_stopped
from ampcompare.tracking.external_run_buffer import ExternalRunBuffer
from ampcompare.tracking.tracker import Tracker
from ampcompare.tracking.write_monitor import WriteMonitor, is_part_of, last_written_row
from ampcompare.wandb_client.client import SERVICE_SECONDS, end_service, service_errors, warn_if_slow

log = logging.getLogger(__name__)

STOPPED_SECONDS = 4.0  # for the end of a run that was stopped: a batch system kills soon after SIGTERM
STOPPED_EXIT_CODE = 255  # what W&B's client itself reports of a program that Ctrl-C ended
TAIL_ROWS = 500  # at least so many are kept in a checkpoint: rows that did not reach the record before a kill
FRESH_SECONDS = 10.0  # rows older than the file's last growth by this much survive a power failure
SERVICE_ENDED = "W&B's service process ended early; it may have been killed"


class WandbTracker(Tracker):
    """The record of a started W&B run, online or offline.

    Args:
        on_lost: Called, in the thread that logs rows, with the reason why rows reach neither the disk nor a
            server any more.
        state: The `state_dict` of the run's earlier part; None without one.
        restart: Starts the run again offline, in a new file, with a new service process. None: the run is a
            user's own, to which rows and summary are added, and which is not ended.
    """

    def __init__(
        self,
        run: Any,
        run_id: str,
        on_lost: Callable[[str], None] | None = None,
        state: Mapping[str, Any] | None = None,
        restart: Callable[[], Any] | None = None,
    ) -> None:
        self.run_id = run_id
        self.record = Path(run.dir).parent
        self._parts = [self.record]  # the folders of the record, of which more than one is an exception
        self._run = run
        self._restart = restart
        self._on_lost = on_lost
        self._buffer = ExternalRunBuffer(run, self._log) if restart is None else None

        self._thread = CallQueue()
        self._sent: deque[Future[None]] = deque()
        self._monitor = WriteMonitor(Path(run.settings.sync_file))
        self._is_watched = True  # until a write has failed
        self._has_service_ended = False  # the client's service process, before its time

        self._count = 0  # rows so far, including those of the run's earlier parts
        self._first_sent: int | None = None  # number of the first row that this part has
        self._tail: deque[tuple[int, float, Mapping[str, Any]]] = deque()  # number, time, row
        self._rows_on_server = 0  # of the run's earlier parts
        self._step_on_server = -1  # the last one of these rows
        if state:
            self._resume(state)

    def describe_record(self, output_dir: Path) -> list[str]:
        """Return the lines of `Tracker.describe_record`."""
        report = shell_command("ampcompare", "report", output_dir, "--out", "report")
        leet = shell_command("wandb", "leet", self._parts[0].parent)
        lines = [f"record: {self._parts[0]}"]
        if not self._run.offline and self._run.url:  # in this order: the client warns of a URL offline
            sync = shell_command("wandb", "sync", "--include-online", *self._parts)
            lines += [f"page:   {self._run.url}", f"sync:   {sync}  # if the upload was cut short"]
        else:
            lines += [f"sync:   {shell_command('wandb', 'sync', *self._parts)}"]
        return [*lines, f"see:    {report}", f"        {leet}"]

    def update_summary(self, facts: Mapping[str, Any]) -> None:
        """Add to the summary, as `Tracker.update_summary`."""

        def write() -> None:
            self._call_client(lambda: _write_summary(self._run, facts))

        if self._buffer is None:
            self._sent.append(self._thread.submit(write))
        else:
            write()

    def log(self, row: Mapping[str, Any]) -> None:
        """Record one row, as `Tracker.log`. Raises what W&B raised for an earlier row."""
        if self._buffer is not None:
            self._buffer.put(row)
            return
        self._count += 1
        self._tail.append((self._count, time.monotonic(), row))
        safe_before = self._reached_at() - FRESH_SECONDS
        while len(self._tail) > TAIL_ROWS and self._tail[0][1] < safe_before:
            self._tail.popleft()
        is_on_server = self._count <= self._rows_on_server and row[metrics.STEP] <= self._step_on_server
        if not is_on_server:
            self._first_sent = self._first_sent or self._count
            self._sent.append(self._thread.submit(lambda: self._log(row)))
        while self._sent and self._sent[0].done():
            self._sent.popleft().result()

    def advance(self, step: int) -> None:
        """Log waiting rows, as `Tracker.advance`."""
        if self._buffer is not None:
            self._buffer.advance(step)

    def flush(self) -> None:
        """Wait until W&B's client has the rows. Raises what W&B raised."""
        while self._sent:
            self._sent.popleft().result()

    def state_dict(self) -> dict[str, Any]:
        """Return the number of rows, and the last rows with their ages.

        An age is measured at the moment when the file last grew.
        """
        self._monitor.has_grown()
        reached = self._reached_at()
        return {"rows": self._count, "tail": [(n, reached - at, _plain(row)) for n, at, row in self._tail]}

    def _reached_at(self) -> float:
        """Return when the record last took rows. Rows older than that by FRESH_SECONDS are in it."""
        return self._monitor.grown_at if self._run.offline else time.monotonic()

    def _resume(self, state: Mapping[str, Any]) -> None:
        """Continue after the rows of a checkpoint: no row twice, no row missing.

        The server counts the rows that it has. Rows beyond the checkpoint are computed again and not sent
        again; rows that the server lacks are sent. On disk a new file replaces the rows from its first step
        on.
        """
        rows = state["rows"]
        tail = [(number, age, _unplain(row)) for number, age, row in state["tail"]]
        if self._run.offline:
            again = _may_not_be_on_disk(tail)
            self._count = again[0][0] - 1 if again else rows
        else:
            step = self._run.summary.get(metrics.STEP)
            self._rows_on_server = self._run.starting_step if self._run.resumed else 0
            self._step_on_server = step if isinstance(step, int) else -1
            again = [entry for entry in tail if entry[0] > self._rows_on_server]
            self._count = rows - len(again)
            if self._count > self._rows_on_server:
                self._warn_of_missing_rows(self._count - self._rows_on_server)
        for _, _, row in again:
            self.log(row)

    def _warn_of_missing_rows(self, count: int) -> None:
        sync = shell_command("wandb", "sync", "--include-online")
        log.warning(
            f"W&B's server lacks {count} rows of this run's earlier part; they are on this disk, in "
            f"the folders *run-*-{self.run_id}* next to {self.record}; send each with: {sync} FOLDER"
        )

    def _log(self, row: Mapping[str, Any], commit: bool | None = None) -> None:
        failure = self._monitor.poll() if self._is_watched and not self._has_service_ended else None
        values = {key: _logged(value) for key, value in row.items()}
        self._call_client(lambda: self._run.log(values, commit=commit))
        if failure is None:
            return
        self._is_watched = False
        path = self._monitor.path
        if self._run.offline:
            self._report_loss(f"W&B can no longer write to {path}: {failure}")
        else:
            log.warning(f"W&B can no longer write to {path}: {failure}; the rows still go to the server")

    def _call_client(self, call: Callable[[], object]) -> None:
        """Call W&B's client, unless its service process has ended, which is reported once."""
        if self._has_service_ended:
            return
        try:
            call()
        except service_errors():
            self._has_service_ended = True
            self._report_loss(SERVICE_ENDED)

    def _report_loss(self, why: str) -> None:
        if self._on_lost:
            self._on_lost(why)

    def finish(self, summary: Mapping[str, Any], exit_code: int) -> str | None:
        """End the record, as `Tracker.finish`. Raises what W&B raised.

        The record on the disk is complete even if the server did not get all of it in time; `wandb sync`
        sends the rest.
        """
        stopped = is_stopped(exit_code)
        ended = self._thread.submit(lambda: self._end(self._run, summary, exit_code))
        self._thread.close()
        try:
            with warn_if_slow("W&B's client, to send the rest of the record"):
                ended.result(STOPPED_SECONDS if stopped else None)
        except TimeoutError:
            return (
                f"the record {self._monitor.path} is complete on this disk, but not on the server: time is up"
            )
        self.flush()
        if self._has_service_ended and stopped:
            self._record_rest(summary, exit_code)
        problem = self._find_end_problem(stopped)
        return None if problem is None else f"the record {self._monitor.path} is incomplete: {problem}"

    def _find_end_problem(self, stopped: bool) -> str | None:
        if self._has_service_ended:
            return SERVICE_ENDED
        # The file of a user's own run is still open, and the end of a stopped run may be cut short.
        if not self._run.offline or self._restart is None or stopped:
            return None
        return self._monitor.end_problem()

    def _record_rest(self, summary: Mapping[str, Any], exit_code: int) -> None:
        """Record offline, in a file of its own, what a service process that a signal has ended did not write.

        Slurm sends its SIGTERM to every process of a job, and W&B's service ends at once. If this fails, the
        rows come with the checkpoint, when the run continues.
        """
        if self._restart is None:
            return
        try:
            rows = self._unwritten_rows()
            run = self._restart()
            file = Path(run.settings.sync_file)
            self._parts.append(file.parent)
            for row in rows:
                run.log({key: _logged(value) for key, value in row.items()})
            self._has_service_ended = False
            self._end(run, summary, exit_code)
            if not is_part_of(file, self.run_id, len(rows)):
                self._has_service_ended = True
        except Exception as problem:  # whatever it is, the run has a checkpoint, and has to end now
            self._has_service_ended = True
            log.debug(f"W&B could not be started again: {problem}")

    def _unwritten_rows(self) -> list[Mapping[str, Any]]:
        """Return the rows of this part that its file lacks, from the beginning of their step.

        A reader drops the earlier part's rows from the first step of the later part on.

        Raises:
            ValueError: The file ends with another row than it should.
            KeyError: A row that the file lacks is not kept any more.
        """
        if self._first_sent is None:
            return []
        last = last_written_row(self._monitor.path)
        next_number = self._first_sent
        sent = {number: row for number, _, row in self._tail if number >= self._first_sent}
        if last is not None:
            client_step, step = last
            next_number += client_step + 1 - self._run.starting_step
            before = sent.get(next_number - 1)
            if before is not None and before[metrics.STEP] != step:
                raise ValueError(f"row {next_number - 1} is of step {before[metrics.STEP]}, not {step}")
        if next_number > self._count:
            return []
        first_step = sent[next_number][metrics.STEP]
        return [row for row in sent.values() if row[metrics.STEP] >= first_step]

    def _end(self, run: Any, summary: Mapping[str, Any], exit_code: int) -> None:
        stopped = is_stopped(exit_code)
        try:
            if self._buffer is not None:
                self._buffer.close()
            if is_preemption(exit_code):
                run.mark_preempting()  # of such a run W&B's sweep starts again what ends above 0
            _write_summary(run, summary)
            if self._restart is None:
                return
            run.finish(exit_code=STOPPED_EXIT_CODE if stopped else exit_code)
        except service_errors():
            self._has_service_ended = True
        except OSError as problem:  # of its own log, closed last; the record is checked for itself
            log.warning(f"W&B's client could not finish writing its log ({problem.strerror})")
        # `finish` may return up to a flush interval before the file is whole (4 of 40 runs here); the end of
        # the client's service process is what can be relied on.
        end_service(STOPPED_SECONDS / 2 if stopped else SERVICE_SECONDS)


class CallQueue:
    """Runs one call after another in its own thread.

    It is no ThreadPoolExecutor, because at exit Python waits for the threads of an executor without limit and
    lets them take no new work. A separate thread is needed because `run.log` waits for the client's own
    thread: 1.3 to 6 ms on a busy machine with two cores, the time of a small step (wandb 0.31).
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[None], Callable[[], None]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True, name="W&B's rows").start()

    def submit(self, call: Callable[[], None]) -> Future[None]:
        """Queue a call and return the future of its result."""
        future: Future[None] = Future()
        self._calls.put((future, call))
        return future

    def close(self) -> None:
        """End the thread after the calls so far."""
        self._calls.put(None)

    def _work(self) -> None:
        while item := self._calls.get():
            future, call = item
            try:
                future.set_result(call())
            except BaseException as problem:
                future.set_exception(problem)


def _write_summary(run: Any, values: Mapping[str, Any]) -> None:
    """Add to the summary of a run. The first anomaly of an earlier part of the run stays the first one."""
    key = metrics.FIRST_ANOMALY
    known = [summary[key] for summary in (values, run.summary) if summary.get(key) is not None]
    run.summary.update({**values, **({key: min(known)} if known else {})})


def _may_not_be_on_disk(
    tail: Sequence[tuple[int, float, Mapping[str, Any]]],
) -> list[tuple[int, float, Mapping[str, Any]]]:
    """Return the last rows, from the first step that a power failure may have cost on; at least one step.

    All rows of a step are returned, because readers replace whole steps.
    """
    if not tail:
        return []
    fresh = [row for _, age, row in tail if age < FRESH_SECONDS]
    first = fresh[0] if fresh else tail[-1][2]
    return [entry for entry in tail if entry[2][metrics.STEP] >= first[metrics.STEP]]


def _logged(value: Any) -> Any:
    if isinstance(value, metrics.Histogram):
        return wandb.Histogram(np_histogram=(value.counts, value.edges))  # type: ignore[arg-type]
    return value


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as a checkpoint may hold it."""
    return {k: vars(v) if isinstance(v, metrics.Histogram) else v for k, v in row.items()}


def _unplain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {k: metrics.Histogram(**v) if isinstance(v, dict) else v for k, v in row.items()}
