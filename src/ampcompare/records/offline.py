"""One offline `.wandb` file read into a Fragment, however much of it is whole."""

from __future__ import annotations

import stat
import time
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from ampcompare.errors import reason
from ampcompare.records.run import NAMELESS, Fragment
from ampcompare.records.table import Table
from ampcompare.records.tree import Tree
from ampcompare.wandb_client.framing import LogReader, NotWandbFile
from ampcompare.wandb_client.protocol import Record, unknown_kinds

# The client flushes every 15 s by default; four misses in a row and the run is taken for dead.
RUNNING_SECONDS = 60
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read_fragment(path: Path, *, now: float | None = None) -> Fragment:
    """Read one file. Whatever is wrong with it becomes a sentence in `problems`; nothing is raised.

    `now` is the time in seconds since 1970 by which a file without an exit record counts as still written to.
    """
    fragment = Fragment(path=path, id=path.stem.removeprefix("run-") or path.stem, state="crashed")
    reading = _Reading(fragment)
    try:
        # A pipe or device under such a name would block for ever; only plain files are opened.
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            fragment.problems.append("It is not a plain file and was not read.")
            return fragment
        fragment.last_write = datetime.fromtimestamp(status.st_mtime, UTC)
        with path.open("rb") as file:
            reader = LogReader(file)
            try:
                reading.take(reader)
            finally:
                fragment.problems += reader.problems()
        is_wandb = True
    except NotWandbFile:
        is_wandb = False
        fragment.problems = ["It is not a .wandb file: neither its header nor its first record is one."]
    except OSError as problem:
        is_wandb = True
        fragment.problems.append(f"Reading stopped: {reason(problem)}.")
    reading.finish()
    if is_wandb:
        _name_the_state(fragment, time.time() if now is None else now)
    return fragment


class _Reading:
    """The records of one file on their way into its Fragment."""

    def __init__(self, fragment: Fragment) -> None:
        self.fragment = fragment
        self.history = Table()
        self.config = Tree()
        self.summary = Tree()
        self.undecodable = 0
        self.unknown: Counter[int] = Counter()

    def take(self, payloads: Iterable[bytes]) -> None:
        for payload in payloads:
            try:
                record = Record.FromString(payload)
            except DecodeError:
                self.undecodable += 1
                continue
            if record.HasField("history"):
                self.history.add_row(record.history.item)
            elif record.HasField("summary"):
                self.summary.apply(record.summary)
            elif record.HasField("config"):
                self.config.apply(record.config)
            elif record.HasField("run"):
                self._take_run(record.run)
            elif record.HasField("exit"):
                self.fragment.exit_code = record.exit.exit_code
            else:
                self.unknown.update(unknown_kinds(record))

    def _take_run(self, run: Any) -> None:
        fragment = self.fragment
        fragment.has_run_record = True
        fragment.id = run.run_id or fragment.id
        fragment.name = run.display_name or fragment.name
        fragment.group, fragment.job_type = run.run_group, run.job_type
        fragment.project, fragment.entity, fragment.sweep_id = run.project, run.entity, run.sweep_id
        fragment.notes, fragment.tags = run.notes, tuple(run.tags)
        if run.HasField("start_time"):
            seconds = run.start_time.seconds + run.start_time.nanos / 1e9
            try:
                fragment.started_at = EPOCH + timedelta(seconds=seconds)
            except OverflowError:
                fragment.problems.append("Its start time is outside the calendar.")
        self.config.apply(run.config)
        self.summary.apply(run.summary)

    def finish(self) -> None:
        fragment, history = self.fragment, self.history
        fragment.columns, fragment.rows = history.arrays(), history.rows
        fragment.nan_rows = history.nan_rows()
        fragment.config, fragment.summary = self.config.build(), self.summary.build()
        bad_values = history.bad_values + self.config.bad_values + self.summary.bad_values
        if self.undecodable:
            fragment.problems.append(f"{self.undecodable:,} records could not be decoded and were skipped.")
        if bad_values:
            why = "were not valid JSON, or nested too deeply, and were skipped"
            fragment.problems.append(f"{bad_values:,} values {why}.")
        for kind, count in sorted(self.unknown.items()):
            fragment.problems.append(f"{count:,} records of the unknown kind {kind} were skipped.")


def _name_the_state(fragment: Fragment, now: float) -> None:
    if not fragment.has_run_record:
        fragment.problems.append(NAMELESS)
    if fragment.exit_code is not None:
        fragment.state = "finished" if fragment.exit_code == 0 else "failed"
    elif fragment.last_write and abs(now - fragment.last_write.timestamp()) <= RUNNING_SECONDS:
        fragment.state = "running"
