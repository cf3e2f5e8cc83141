"""Read one `.wandb` file as a part of a run, even if it is damaged.

For every call of `log` the client writes a row and two summaries, each with an item for every metric. Most
items have a known key and a short value. The bytes of such an item are split where the value begins, and the
value is added to the texts of its column, which are parsed together as one JSON list. Protobuf parses the
other items. For summaries only the last value of each key is parsed.
"""

import json
import stat
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from ampcompare.errors import reason
from ampcompare.runs import nested
from ampcompare.runs.metric_definitions import MetricDefinition
from ampcompare.runs.run_record import TIMESTAMP, Column, RunRecord, as_array, share_row_arrays
from ampcompare.runs.run_state import RunState
from ampcompare.runs.system_metrics import facts_of, metadata_of, read_metadata
from ampcompare.wandb_client.framing import LogReader, NotWandbFile
from ampcompare.wandb_client.protocol import Item, Record

RECORDS_PER_BATCH = 6_000  # records that are parsed together: some MB
VALUE = b"\x82\x01"  # first bytes of an item's value field in protobuf's encoding; keys come before it
MAX_CACHED_KEYS = 10_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BAD = object()


def read_wandb_file(path: Path) -> RunRecord:
    """Read one file. Every problem becomes a sentence in `problems`; nothing is raised."""
    run = RunRecord(
        id=path.stem.removeprefix("run-") or path.stem,
        state=RunState.FAILED,
        ended_as="crashed",
        paths=(path,),
        is_named=False,
    )
    reading = _FileReader(run)
    try:
        # A pipe or device under such a name would block for ever; only plain files are opened.
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            run.problems.append("It is not a plain file and was not read.")
            return run
        run.last_write = datetime.fromtimestamp(status.st_mtime, UTC)
        with path.open("rb") as file:
            reader = LogReader(file)
            try:
                reading.take(reader)
            finally:
                run.problems += reader.problems()
    except NotWandbFile:
        run.problems = ["It is not a .wandb file: neither its header nor its first record is one."]
    except OSError as problem:
        run.problems.append(f"Reading stopped: {reason(problem)}.")
    reading.finish()
    return run


class _Column:
    """The values of one key: rows and texts that are not parsed yet, and parsed parts."""

    def __init__(self) -> None:
        self.at: list[int] = []
        self.texts: list[bytes] = []
        self.parts: list[Column] = []

    def read(self) -> int:
        """Parse the texts and return how many of them were no JSON."""
        row_numbers, values, bad = self.at, _numbers(self.texts), 0
        if values is None:
            parsed = [_value(text, parse_int=float) for text in self.texts]
            bad = sum(value is _BAD for value in parsed)
            valid = [index for index, value in enumerate(parsed) if value is not _BAD and value is not None]
            row_numbers = [row_numbers[index] for index in valid]
            values = as_array([parsed[index] for index in valid])
        self.parts.append((np.array(row_numbers, np.int32), values))
        self.at, self.texts = [], []
        return bad

    def finish(self) -> Column:
        """Return all rows and values. If a key is twice in one row, the later value counts."""
        rows, values = (np.concatenate(parts) for parts in zip(*self.parts, strict=True))
        is_last = np.diff(rows, append=-1) != 0
        return (rows, values) if is_last.all() else (rows[is_last], values[is_last])


def _numbers(texts: list[bytes]) -> np.ndarray | None:
    """Return the texts as numbers, None if not all of them are.

    They are parsed as one JSON list. If it has as many elements as texts, all of them numbers, then each text
    is a number.
    """
    try:
        parsed = json.loads(f"[{b','.join(texts).decode()}]")
        is_numbers = len(parsed) == len(texts) and set(map(type, parsed)) <= {int, float}
        return np.array(parsed, np.float64) if is_numbers else None
    except (ValueError, OverflowError, RecursionError):
        return None


def _value(text: str | bytes, **options: Any) -> Any:
    try:
        return nested.parse_json(text, **options)
    except ValueError:
        return _BAD


class _FileReader:
    """Collects the records of one file into its RunRecord."""

    def __init__(self, run: RunRecord) -> None:
        self.run = run
        self.columns: dict[str, _Column] = {}
        self.by_head: dict[bytes, _Column] = {}
        self.summaries: list[Any] = []
        self.bad_values = self.undecodable = 0
        self.metadata: dict[str, Any] = {}
        self.is_preempting = False  # the program called mark_preempting()
        self.last_seen = 0.0  # seconds since 1970 of the last record with a time

    def take(self, payloads: Iterable[bytes]) -> None:
        """Process all records."""
        for number, payload in enumerate(payloads, 1):
            try:
                record = Record.FromString(payload)
            except DecodeError:
                self.undecodable += 1
                continue
            if record.HasField("history"):
                self._take_row(record.history.item)
            elif record.HasField("summary"):
                self._take_summary(record.summary)
            else:
                self._take_other(record)
            if number % RECORDS_PER_BATCH == 0:
                self._read()

    def _take_row(self, items: Iterable[bytes]) -> None:
        row, by_head = self.run.rows, self.by_head
        for item in list(items):  # protobuf's own iterator takes three times as long
            head, _, rest = item.partition(VALUE)
            column = by_head.get(head)
            # the length byte of a short value matches the rest
            if column and rest and rest[0] == len(rest) - 1:
                text = rest[1:]
            elif (parsed := self._parsed(item)) is not None:
                path, text = parsed
                column = self.columns.setdefault(".".join(path), _Column())
                if _path(head) == path:
                    by_head[head] = column
            else:
                continue
            column.at.append(row)
            column.texts.append(text)
        self.run.rows += 1

    def _take_summary(self, summary: Any) -> None:
        self.summaries.append(summary.update)
        if summary.remove:
            self._read_summaries()
            for item in summary.remove:
                nested.remove(self.run.summary, nested.path_of(item))

    def _take_other(self, record: Any) -> None:
        run = self.run
        if record.HasField("config"):
            self._take_config(record.config)
        elif record.HasField("run"):
            self._take_run(record.run)
        elif record.HasField("exit"):
            run.exit_code = record.exit.exit_code
        elif record.HasField("preempting"):
            self.is_preempting = True
        elif record.HasField("stats"):
            self._note_activity(record.stats.timestamp)
        elif record.HasField("metric"):
            name = record.metric.name or record.metric.glob_name
            run.definitions[name] = MetricDefinition.from_record(record.metric)
        elif record.HasField("environment"):
            self.metadata |= metadata_of(record.environment)

    def _note_activity(self, moment: Any) -> None:
        """Record that the run was active at a protobuf Timestamp."""
        self.last_seen = max(self.last_seen, moment.seconds + moment.nanos / 1e9)

    def _take_config(self, config: Any) -> None:
        for item in config.update:
            self._write(self.run.config, nested.path_of(item), item.value_json)
        for item in config.remove:
            nested.remove(self.run.config, nested.path_of(item))

    def _take_run(self, record: Any) -> None:
        run = self.run
        run.is_named = True
        run.id, run.name = record.run_id or run.id, record.display_name or run.name
        run.group, run.job_type, run.sweep_id = record.run_group, record.job_type, record.sweep_id
        run.project, run.entity = record.project, record.entity
        run.notes, run.tags = record.notes, tuple(record.tags)
        if record.HasField("start_time"):
            self._note_activity(record.start_time)
            seconds = record.start_time.seconds + record.start_time.nanos / 1e9
            with suppress(OverflowError):  # outside the calendar's range
                run.started_at = EPOCH + timedelta(seconds=seconds)
        self._take_config(record.config)
        self._take_summary(record.summary)

    def _write(self, target: dict[str, Any], path: nested.Path, text: str | bytes) -> None:
        if (value := self._parse_value(text)) is not _BAD:
            nested.write(target, path, value)

    def _parse_value(self, text: str | bytes) -> Any:
        value = _value(text)
        self.bad_values += value is _BAD
        return value

    def _parsed(self, item: bytes) -> tuple[nested.Path, bytes] | None:
        """Return key and value of any item, parsed by protobuf; None if it cannot be decoded."""
        try:
            parsed = Item.FromString(item)
        except DecodeError:
            self.bad_values += 1
            return None
        return nested.path_of(parsed), parsed.value_json.encode()

    def _read(self) -> None:
        """Parse the texts that were collected so far."""
        self.bad_values += sum(column.read() for column in self.columns.values())
        self._read_summaries()

    def _read_summaries(self) -> None:
        last: dict[bytes, bytes] = {}  # items by their key bytes
        for items in reversed(self.summaries):
            for item in reversed(list(items)):
                head = item.partition(VALUE)[0]
                if head not in last:
                    last.setdefault(item if _path(head) is None else head, item)
        self.summaries = []
        for item in reversed(last.values()):
            if (parsed := self._parsed(item)) is not None:
                self._write(self.run.summary, *parsed)

    def finish(self) -> None:
        """Store what was read in the run."""
        self._read()
        run = self.run
        run.logged = share_row_arrays({name: column.finish() for name, column in self.columns.items()})
        run.machine.facts = facts_of(read_metadata(run.paths[0]) | self.metadata)
        timestamps = run.values(TIMESTAMP)
        self.last_seen = max([self.last_seen, *timestamps[np.isfinite(timestamps)][-1:]])
        if self.last_seen > 0:  # a copy changes the file's own time
            with suppress(OverflowError):
                run.last_write = EPOCH + timedelta(seconds=self.last_seen)
        for values in (run.config, run.summary):
            values.pop("_wandb", None)  # the client's own part
        if run.exit_code is not None:
            run.state, run.ended_as = (RunState.FAILED if run.exit_code else RunState.FINISHED), ""
            if run.exit_code and self.is_preempting:  # as on W&B's server
                run.state = RunState.PREEMPTED
        if self.undecodable:
            run.problems.append(f"{self.undecodable:,} records could not be decoded and were skipped.")
        if self.bad_values:
            why = "were not valid JSON, or nested too deeply, and were skipped"
            run.problems.append(f"{self.bad_values:,} values {why}.")


@lru_cache(MAX_CACHED_KEYS)
def _path(head: bytes) -> nested.Path | None:
    """Return the key in these bytes; None if they end inside a key that contains VALUE."""
    try:
        return nested.path_of(Item.FromString(head))
    except DecodeError:
        return None
