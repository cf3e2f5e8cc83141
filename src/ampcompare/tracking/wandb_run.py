"""One run with W&B's client: its rows, what the client may lose of them, its end."""

from __future__ import annotations

import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import wandb

from ampcompare import metrics
from ampcompare.errors import reason
from ampcompare.program.files import replacing
from ampcompare.program.place import as_typed
from ampcompare.tracking import stop_flag, taken
from ampcompare.tracking.lent_rows import LentRows
from ampcompare.tracking.record_file import RecordFile
from ampcompare.tracking.row_queue import RowQueue
from ampcompare.tracking.tracker import Tracker
from ampcompare.wandb_client.service import USUAL_SECONDS, end_service, gone

STOPPED_SECONDS = 4.0  # for the end of a run that was stopped: a batch system kills soon after SIGTERM
LOOK_SECONDS = 0.1  # whether a request to stop has come
STOPPED_EXIT_CODE = 255  # what W&B's client itself reports of a program that Ctrl-C ended
TAIL_ROWS = 500  # at least so many are kept in a checkpoint: rows that did not reach the record before a kill
FRESH_SECONDS = 5.0  # what is older is on the disk, even if the power fails
SERVICE_ENDED = "W&B's service process has ended before its time (killed?)"


class WandbRun(Tracker):
    """The record of a started W&B run, online or offline; `state` is the `state_dict` of its earlier part.

    One that is `lent` is somebody else's: its rows and summary are added to, and it is not ended. `on_lost`
    is told, in the thread that hands on rows, why rows reach neither the disk nor a server any more.
    """

    def __init__(
        self,
        run: Any,
        run_id: str,
        say: Callable[[str], None],
        on_lost: Callable[[str], None] | None = None,
        state: Mapping[str, Any] | None = None,
        *,
        lent: bool = False,
    ) -> None:
        self._run, self.run_id, self._lent = run, run_id, lent
        self._file = RecordFile(Path(run.settings.sync_file), Path(run.settings.log_internal))
        self._watched = True
        self._ended = False  # the client's service, before its time
        self._say, self._on_lost = say, on_lost
        self._is_hurried: Callable[[], bool] = lambda: False
        self._files: dict[str, bytes] = {}
        self._rows: RowQueue[Mapping[str, Any]] = RowQueue(self._log)
        self._lent_rows = LentRows(run, self._log) if lent else None
        self._count = 0  # rows so far, in the parts of the run before this one too
        self._tail: deque[tuple[int, float, Mapping[str, Any]]] = deque()  # number, time, row
        self._rows_on_server, self._step_on_server = 0, -1  # of its earlier part
        if state:
            self._go_on(state)

    @property
    def record(self) -> Path | None:
        return Path(self._run.dir).parent

    def where(self, output_dir: Path) -> list[str]:
        """As `Tracker.where`."""
        folder = Path(self._run.dir).parent
        lines = [f"record: {folder}"]
        if self._run.offline or not self._run.url:
            lines.append(f"sync:   {as_typed('wandb', 'sync', folder)}")
        else:
            sync = as_typed("wandb", "sync", "--include-online", folder)
            lines += [f"page:   {self._run.url}", f"sync:   {sync}  # if the upload was cut short"]
        lines.append(f"see:    {as_typed('ampcompare', 'report', output_dir, '--out', 'report')}")
        return [*lines, f"        {as_typed('wandb', 'leet', folder.parent)}"]

    def note(self, facts: Mapping[str, Any]) -> None:
        """As `Tracker.note`."""
        self._run.summary.update(dict(facts))

    def keep(self, name: str, content: bytes) -> None:
        """As `Tracker.keep`: among the run's files, where W&B's page, its API and `wandb sync` have it."""
        self._files[name] = content

    def log(self, row: Mapping[str, Any]) -> None:
        """As `Tracker.log`. Raises what W&B raised for an earlier row."""
        if self._lent_rows is not None:
            self._lent_rows.put(row)
            return
        self._count += 1
        self._tail.append((self._count, time.monotonic(), row))
        surely = self._reached_at() - FRESH_SECONDS
        while len(self._tail) > TAIL_ROWS and self._tail[0][1] < surely:
            self._tail.popleft()
        if self._count > self._rows_on_server or row[metrics.STEP] > self._step_on_server:
            self._rows.put(row)

    def passed(self, step: int) -> None:
        """As `Tracker.passed`."""
        if self._lent_rows is not None:
            self._lent_rows.go_on(step)

    def flush(self) -> None:
        """As `Tracker.flush`: until the client has them. Raises what W&B raised."""
        self._rows.flush()

    def state_dict(self) -> dict[str, Any]:
        """How many rows there are, and the last of them, as plain values."""
        self._file.check_growth()
        reached = self._reached_at()
        return {"rows": self._count, "tail": [(n, reached - at, _plain(row)) for n, at, row in self._tail]}

    def _reached_at(self) -> float:
        """When the record was last seen to take rows: what is older by FRESH_SECONDS is in it."""
        return self._file.reached_at() if self._watched else time.monotonic()

    def _go_on(self, state: Mapping[str, Any]) -> None:
        """Go on behind the rows of a checkpoint: none twice, none missing.

        The server counts the rows that it has. What it has beyond the checkpoint is computed again and not
        sent again; what it lacks is sent. On disk a new file takes the place of rows from its first step on.
        """
        rows = state["rows"]
        tail = [(number, age, _unplain(row)) for number, age, row in state["tail"]]
        if self._run.offline:
            # Those that may not be on the disk, and all of the first one's step: steps are merged whole.
            fresh = [row for _, age, row in tail if age < FRESH_SECONDS] or [row for *_, row in tail[-1:]]
            again = [entry for entry in tail if entry[2][metrics.STEP] >= fresh[0][metrics.STEP]]
            self._count = again[0][0] - 1 if again else rows
        else:
            self._rows_on_server = self._run.starting_step if self._run.resumed else 0
            step = self._run.summary.get(metrics.STEP)
            self._step_on_server = step if isinstance(step, int) else -1
            again = [entry for entry in tail if entry[0] > self._rows_on_server]
            missing = rows - self._rows_on_server - len(again)
            if missing > 0:
                self._say(
                    f"W&B's server lacks {missing} rows of this run's earlier part; they are on the disk, in "
                    f"the folders *run-*-{self.run_id} beside {self.record}; each is sent by: "
                    f"{as_typed('wandb', 'sync', '--include-online')} FOLDER"
                )
            self._count = rows - len(again)
        for _, _, row in again:
            self.log(row)

    def _log(self, row: Mapping[str, Any], commit: bool | None = None) -> None:
        trouble = self._file.check_after_row() if self._watched else None
        if self._ended:
            return
        try:
            self._run.log({key: _logged(value) for key, value in row.items()}, commit=commit)
        except gone():
            self._ended = True
            self._lose(SERVICE_ENDED)
        if trouble:
            what = f"W&B can write no more to {self._file.path}: {trouble}"
            if self._run.offline:
                self._lose(what)
            else:
                self._say(f"{what}; the rows still go to the server")
                self._watched = False

    def _lose(self, why: str) -> None:
        on_lost, self._on_lost = self._on_lost, None  # said once
        if on_lost:
            on_lost(why)

    def finish(self, summary: Mapping[str, Any], exit_code: int) -> str | None:
        """As `Tracker.finish`. Raises what W&B raised."""

        def end() -> None:
            try:
                self._close_rows()
            finally:
                self._finish(summary, exit_code, USUAL_SECONDS)

        if not _beside(end, self._is_hurried):
            return f"the record {self._file.path} could not be sent whole in time"
        ends = self._run.offline and not (self._ended or self._lent)
        why = self._file.trouble_at_end() if ends else None
        if why or self._ended:
            return f"the record {self._file.path} is not whole: {why or SERVICE_ENDED}"
        return None

    def hurry_when(self, asked: Callable[[], bool]) -> None:
        """As `Tracker.hurry_when`."""
        self._is_hurried = asked

    def finish_stopped(self, summary: Mapping[str, Any], *, preempted: bool) -> bool:
        """As `Tracker.finish_stopped`. What is on the disk is whole anyway; `wandb sync` sends the rest."""

        def end() -> None:
            self._close_rows()
            if preempted and not (self._ended or stop_flag.is_set(self._run)):
                self._run.mark_preempting()  # of such a run W&B's sweep starts again what ends above 0
            self._finish(summary, STOPPED_EXIT_CODE, STOPPED_SECONDS / 2)

        try:
            if not _beside(end, lambda: True):
                return False
        except gone():
            self._ended = True
        if not self._ended:
            return True
        if preempted:
            self.tell_taken_away()  # the rows come with the checkpoint
        return bool(self._run.offline)

    def tell_taken_away(self) -> None:
        """As `Tracker.tell_taken_away`: where the client's service has ended, by a process of its own. That
        ends a run that was lent, too, which nothing else could any more.
        """
        is_of_agent = not self._lent or self._run.id == os.environ.get("WANDB_RUN_ID")
        if self._ended and is_of_agent and not self._run.offline:
            taken.tell_beside()

    def _close_rows(self) -> None:
        if self._lent_rows is not None:
            self._lent_rows.close()
        self._rows.close()

    def _finish(self, summary: Mapping[str, Any], exit_code: int, service_seconds: float) -> None:
        try:
            self._run.summary.update(dict(summary))
            self._save_files()
            if self._lent:
                return
            self._run.finish(exit_code=exit_code)
        except gone():
            self._ended = True
        except OSError as problem:  # of its own log, closed last; the record is checked for itself
            self._say(f"W&B's client could not write its log to the end ({problem.strerror})")
        # `finish` may return up to a flush interval before the file is whole (4 of 40 runs here); the end of
        # the client's service process is what can be relied on.
        end_service(service_seconds)

    def _save_files(self) -> None:
        folder = Path(self._run.dir)
        for name, content in self._files.items():
            try:
                with replacing(folder / name) as file:
                    file.write(content)
            except OSError as problem:
                where = f"could not be written to {folder} ({reason(problem)})"
                self._say(f"{name} {where}: the record ends without it")
                continue
            self._run.save(str(folder / name), base_path=str(folder), policy="now", glob=False)


def _beside(end: Callable[[], None], is_hurried: Callable[[], bool]) -> bool:
    """Run `end` in a thread; whether it came to its end. From when it `is_hurried` it has STOPPED_SECONDS.

    Raises what it raised.
    """
    ends: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def run() -> None:
        try:
            end()
        except BaseException as problem:
            ends.put(problem)
        else:
            ends.put(None)

    try:
        threading.Thread(target=run, daemon=True, name="finish").start()
    except RuntimeError:  # Python ends already: from 3.12 on it begins no threads then
        run()
    until = math.inf
    while time.monotonic() < until:
        if until == math.inf and is_hurried():
            until = time.monotonic() + STOPPED_SECONDS
        left = until - time.monotonic()
        with suppress(queue.Empty):
            if problem := ends.get(timeout=max(0.0, min(LOOK_SECONDS, left))):
                raise problem
            return True
    return False


def _logged(value: Any) -> Any:
    if isinstance(value, metrics.Histogram):
        return wandb.Histogram(np_histogram=(value.counts, value.edges))  # type: ignore[arg-type]
    return value


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as a checkpoint may hold it."""
    return {k: vars(v) if isinstance(v, metrics.Histogram) else v for k, v in row.items()}


def _unplain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {k: metrics.Histogram(**v) if isinstance(v, dict) else v for k, v in row.items()}
