"""Checks that rows reach the `.wandb` file, which W&B's client writes in its own process.

The client does not report failures: on a full disk wandb 0.31 lost 10 of 16 rows, ended with exit code 0 and
reported the failure only in its own log. After the first failed write it writes no more, even if there is
space again.
"""

import tempfile
import time
from pathlib import Path

from google.protobuf.message import DecodeError

from ampcompare import metrics
from ampcompare.errors import reason
from ampcompare.wandb_client.framing import BLOCK_BYTES, LogReader, NotWandbFile
from ampcompare.wandb_client.protocol import Item, Record

POLL_SECONDS = 5.0  # between two looks at the file; the client writes each second
PROBE_BYTES = 65_536


class WriteMonitor:
    """Watches the file of one run. One thread calls `poll`; other threads only read.

    Attributes:
        path: The `.wandb` file, which need not exist yet.
        grown_at: When the file was last seen to grow, in seconds of the monotonic clock.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.grown_at = time.monotonic()
        self._polled_at = self.grown_at
        self._size = -1  # bytes at the last check; -1: there was no file

    def poll(self) -> str | None:
        """Return why rows no longer reach the file, or None. Call it for each row."""
        if time.monotonic() - self._polled_at < POLL_SECONDS:
            return None
        self._polled_at = time.monotonic()
        return None if self.has_grown() else self._problem()

    def has_grown(self) -> bool:
        """Return whether the file has grown since the last call."""
        before = self._size
        self._size = self.path.stat().st_size if self.path.exists() else -1
        has_grown = self._size > before
        if has_grown:
            self.grown_at = time.monotonic()
        return has_grown

    def end_problem(self) -> str | None:
        """Return why the file is not complete after the client has ended; None: it is complete."""
        if self.path.exists() and ends_whole(self.path):
            return None
        return self._problem() or "its end is missing"

    def _problem(self) -> str | None:
        """Return why writing to the folder of the file fails, or None."""
        if not self.path.exists():
            return "the file was removed"
        try:
            with tempfile.TemporaryFile(dir=self.path.parent, buffering=0) as probe:
                probe.seek(self.path.stat().st_size)  # `ulimit -f` limits the size, not what is added
                whole = probe.write(bytes(PROBE_BYTES)) == PROBE_BYTES
        except OSError as problem:
            return reason(problem)
        return None if whole else "No space left on device"


def ends_whole(path: Path) -> bool:
    """Return whether the file ends with a complete record, and the run's exit is among the last ones."""
    records, is_whole = _last_records(path, blocks=1)
    return is_whole and any(record.HasField("exit") for record in records)


def last_written_row(path: Path) -> tuple[int, int | None] | None:
    """Return the client's own step (`_step`) of the last row in the file, and its optimizer step.

    Returns:
        The second one is None where the row has none. None: the file has no row.
    """
    records, _ = _last_records(path, blocks=32)
    rows = [record.history for record in records if record.HasField("history")]
    if not rows:
        return None
    items = map(Item.FromString, rows[-1].item)
    steps = [int(item.value_json) for item in items if metrics.STEP in (item.key, *item.nested_key)]
    return rows[-1].step.num, next(iter(steps), None)


def is_part_of(path: Path, run_id: str, rows: int) -> bool:
    """Return whether the file is a complete record of this run with so many rows."""
    records, is_whole = _last_records(path, blocks=path.stat().st_size // BLOCK_BYTES)
    run_ids = {record.run.run_id for record in records if record.HasField("run")}
    has_rows = sum(record.HasField("history") for record in records) == rows
    has_end = any(record.HasField("exit") for record in records)
    return is_whole and has_end and has_rows and run_ids == {run_id}


def _last_records(path: Path, blocks: int) -> tuple[list[Record], bool]:
    """Return the records in the last blocks of the file, and whether all of them are complete.

    Args:
        blocks: The number of complete blocks before the last one.
    """
    records = []
    with path.open("rb") as file:
        size = file.seek(0, 2)
        reader = LogReader(file, file.seek(max(0, size // BLOCK_BYTES - blocks) * BLOCK_BYTES))
        try:
            for payload in reader:
                records.append(Record.FromString(payload))
        except (NotWandbFile, DecodeError):
            return records, False
    return records, not reader.problems()
