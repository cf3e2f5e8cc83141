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
from ampcompare.records.bulk import Part
from ampcompare.records.run import NAMELESS, Fragment
from ampcompare.records.signs import SignedFile
from ampcompare.records.system import Samples, facts_of_record
from ampcompare.records.table import Table
from ampcompare.records.tree import Tree
from ampcompare.wandb_client.framing import LogReader, NotWandbFile
from ampcompare.wandb_client.protocol import Record, unknown_kinds

# The client flushes every 15 s by default; four misses in a row and the run is taken for dead.
RUNNING_SECONDS = 60
BATCH_BYTES = (
    600_000  # of records at a time: what is made of them fits into a core's cache (4 MB: 15 % slower)
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read_fragment(path: Path, *, now: float | None = None) -> Fragment:
    """Read one file. Whatever is wrong with it becomes a sentence in `problems`; nothing is raised.

    `now` is the time in seconds since 1970 by which a file without an exit record counts as still written to.
    """
    return read_signed(path, now=now)[0]


def read_signed(path: Path, *, now: float | None = None) -> tuple[Fragment, str]:
    """Read one file as `read_fragment` does, and sign what it held; no sign if it was not read to its end."""
    fragment = Fragment(path=path, id=path.stem.removeprefix("run-") or path.stem, state="crashed")
    reading, sign = _Reading(fragment), ""
    try:
        # A pipe or device under such a name would block for ever; only plain files are opened.
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            fragment.problems.append("It is not a plain file and was not read.")
            return fragment, sign
        fragment.last_write = datetime.fromtimestamp(status.st_mtime, UTC)
        with path.open("rb") as file:
            signed = SignedFile(file)
            reader = LogReader(signed)
            try:
                reading.take(reader.blocks())
                sign = signed.sign()
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
        name_state(fragment, time.time() if now is None else now)
    return fragment, sign


class _Reading:
    """The records of one file on their way into its Fragment."""

    def __init__(self, fragment: Fragment) -> None:
        self.fragment = fragment
        self.history, self.config, self.summary = Table(), Tree(), Tree()
        self.samples = Samples()
        self.undecodable = 0
        self.unknown: Counter[int] = Counter()

    def take(self, blocks: Iterable[list[bytes]]) -> None:
        """Take in the records of all blocks, some at a time."""
        some: list[bytes] = []
        size = 0
        try:
            for payloads in blocks:
                some += payloads
                size += sum(map(len, payloads))
                if size > BATCH_BYTES:
                    part, some, size = some, [], 0
                    self._take_part(part)
        finally:  # where the disk gives no more, what it gave counts
            self._take_part(some)

    def _take_part(self, payloads: list[bytes]) -> None:
        part = Part(payloads)
        rows: dict[int, Any] = {}
        summaries: list[tuple[int, Any]] = []
        for number in part.batch.plain().tolist():
            try:
                record = Record.FromString(payloads[number])
            except DecodeError:
                self.undecodable += 1
                continue
            if record.HasField("history"):
                rows[number] = record.history
            elif record.HasField("summary"):
                summaries.append((number, record.summary))
            elif record.HasField("config"):
                self.config.apply(record.config)
            elif record.HasField("run"):
                self._take_run(record.run)
                summaries.append((number, record.run.summary))
            elif record.HasField("exit"):
                self.fragment.exit_code = record.exit.exit_code
            elif record.HasField("stats"):
                self.samples.add_record(record.stats)
            elif record.HasField("environment"):
                self.fragment.machine.facts |= facts_of_record(record.environment)
            else:
                self.unknown.update(unknown_kinds(record))
        part.add_rows(self.history, rows)
        part.apply_summaries(self.summary, summaries)

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

    def finish(self) -> None:
        fragment, history = self.fragment, self.history
        fragment.columns, fragment.rows = history.arrays(), history.rows
        fragment.nan_rows = history.nan_rows()
        fragment.machine.samples = self.samples.arrays()
        fragment.config, fragment.summary = self.config.build(), self.summary.build()
        bad_values = history.bad_values + self.config.bad_values + self.summary.bad_values
        if self.undecodable:
            fragment.problems.append(f"{self.undecodable:,} records could not be decoded and were skipped.")
        if bad_values:
            why = "were not valid JSON, or nested too deeply, and were skipped"
            fragment.problems.append(f"{bad_values:,} values {why}.")
        for kind, count in sorted(self.unknown.items()):
            fragment.problems.append(f"{count:,} records of the unknown kind {kind} were skipped.")


def name_state(fragment: Fragment, now: float) -> None:
    """Set the state, as it follows from the exit record and the time of the last write."""
    if not fragment.has_run_record:
        fragment.problems.append(NAMELESS)
    if fragment.exit_code is not None:
        fragment.state = "finished" if fragment.exit_code == 0 else "failed"
    elif fragment.last_write and abs(now - fragment.last_write.timestamp()) <= RUNNING_SECONDS:
        fragment.state = "running"
