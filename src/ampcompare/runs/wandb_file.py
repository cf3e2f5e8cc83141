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
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from ampcompare.errors import reason
from ampcompare.runs import nested
from ampcompare.runs.metric_definitions import MetricDefinition
from ampcompare.runs.run_record import (
    TIMESTAMP,
    Column,
    RunRecord,
    as_array,
    concatenate_columns,
    share_row_arrays,
)
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
        row_numbers = self.at
        texts = self.texts
        self.at = []
        self.texts = []
        numbers = _parse_numbers(texts)
        if numbers is not None:
            self.parts.append((np.array(row_numbers, np.int32), numbers))
            return 0
        parsed = [_parse_value(text, parse_int=float) for text in texts]
        is_value = [value is not _BAD and value is not None for value in parsed]
        rows_of_values = np.array(list(compress(row_numbers, is_value)), np.int32)
        self.parts.append((rows_of_values, as_array(list(compress(parsed, is_value)))))
        return sum(value is _BAD for value in parsed)

    def finish(self) -> Column:
        """Return all rows and values. If a key is twice in one row, the later value counts."""
        rows, values = concatenate_columns(self.parts)
        is_last = np.diff(rows, append=-1) != 0
        if is_last.all():
            return rows, values
        return rows[is_last], values[is_last]


def _parse_numbers(texts: list[bytes]) -> np.ndarray | None:
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


def _parse_value(text: str | bytes, **options: Any) -> Any:
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
        self.bad_values = 0
        self.undecodable = 0  # records
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
        row = self.run.rows
        self.run.rows += 1
        by_head = self.by_head
        for item in list(items):  # protobuf's own iterator takes three times as long
            head, _, rest = item.partition(VALUE)
            column = by_head.get(head)
            # The length byte of a short value matches the rest.
            if column is not None and rest and rest[0] == len(rest) - 1:
                column.at.append(row)
                column.texts.append(rest[1:])
                continue
            parsed = self._parse_item(item)
            if parsed is None:
                continue
            path, text = parsed
            column = self.columns.setdefault(".".join(path), _Column())
            column.at.append(row)
            column.texts.append(text)
            if _parse_key(head) == path:
                by_head[head] = column

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
        run.id = record.run_id or run.id
        run.name = record.display_name or run.name
        run.group = record.run_group
        run.job_type = record.job_type
        run.sweep_id = record.sweep_id
        run.project = record.project
        run.entity = record.entity
        run.notes = record.notes
        run.tags = tuple(record.tags)
        if record.HasField("start_time"):
            self._note_activity(record.start_time)
            seconds = record.start_time.seconds + record.start_time.nanos / 1e9
            with suppress(OverflowError):  # outside the calendar's range
                run.started_at = EPOCH + timedelta(seconds=seconds)
        self._take_config(record.config)
        self._take_summary(record.summary)

    def _write(self, target: dict[str, Any], path: nested.Path, text: str | bytes) -> None:
        value = _parse_value(text)
        if value is _BAD:
            self.bad_values += 1
        else:
            nested.write(target, path, value)

    def _parse_item(self, item: bytes) -> tuple[nested.Path, bytes] | None:
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
                    key_bytes = item if _parse_key(head) is None else head
                    last.setdefault(key_bytes, item)
        self.summaries = []
        for item in reversed(last.values()):
            parsed = self._parse_item(item)
            if parsed is not None:
                path, text = parsed
                self._write(self.run.summary, path, text)

    def finish(self) -> None:
        """Store what was read in the run."""
        self._read()
        run = self.run
        run.logged = share_row_arrays({name: column.finish() for name, column in self.columns.items()})
        run.machine.facts = facts_of(read_metadata(run.paths[0]) | self.metadata)
        timestamps = run.values(TIMESTAMP)
        last_timestamp = timestamps[np.isfinite(timestamps)][-1:]  # none if no row has one
        last_seen = max([self.last_seen, *last_timestamp])
        if last_seen > 0:  # a copy changes the file's own time
            with suppress(OverflowError):
                run.last_write = EPOCH + timedelta(seconds=last_seen)
        for values in (run.config, run.summary):
            values.pop("_wandb", None)  # the client's own part
        if run.exit_code is not None:
            run.state = self._state_after(run.exit_code)
            run.ended_as = ""
        if self.undecodable:
            run.problems.append(f"{self.undecodable:,} records could not be decoded and were skipped.")
        if self.bad_values:
            run.problems.append(
                f"{self.bad_values:,} values were not valid JSON, or nested too deeply, and were skipped."
            )

    def _state_after(self, exit_code: int) -> RunState:
        """Return the state of a run with an exit record, as W&B's server determines it."""
        if exit_code == 0:
            return RunState.FINISHED
        return RunState.PREEMPTED if self.is_preempting else RunState.FAILED


@lru_cache(MAX_CACHED_KEYS)
def _parse_key(head: bytes) -> nested.Path | None:
    """Return the key in these bytes; None if they end inside a key that contains VALUE."""
    try:
        return nested.path_of(Item.FromString(head))
    except DecodeError:
        return None
