"""Whether what was logged reaches the file of the record, which W&B's client writes in a process of its own.

The client does not say when it does not: on a full disk wandb 0.31 lost 10 of 16 rows, ended with exit code 0
and told only its own log. After the first write that fails it writes no more, even when there is room again.
"""

from __future__ import annotations

import re
import tempfile
import time
from pathlib import Path

from google.protobuf.message import DecodeError

from ampcompare.errors import reason
from ampcompare.wandb_client.framing import BLOCK_BYTES, LogReader, NotWandbFile
from ampcompare.wandb_client.protocol import Record

POLL_SECONDS = 1.0  # between two looks at the file's size; the client writes as often
# Polls in a row without growth, not seconds: a process group that was stopped for an hour has lost nothing.
SUSPECT_POLLS = 5
SURE_POLLS = 60
PROBE_BYTES = 65_536


class RecordFile:
    """The file of one run. Rows are handed over in one thread; the others only read."""

    def __init__(self, path: Path, log: Path) -> None:
        self.path, self.log = path, log
        self._size = -1
        self._grown_at = self._polled_at = time.monotonic()
        self._waits = False  # rows were handed over since the file grew
        self._polls = 0

    def check_after_row(self) -> str | None:
        """To be called for each row that the client was given; says why rows no longer reach the file."""
        trouble, now = None, time.monotonic()
        if now - self._polled_at >= POLL_SECONDS:
            self._polled_at = now
            self.check_growth()
            self._polls += self._waits
            trouble = self._trouble()
        self._waits = True
        return trouble

    def check_growth(self) -> None:
        """See whether the file has grown."""
        size = self._size_now()
        if size != self._size:
            self._size, self._grown_at, self._waits, self._polls = size, time.monotonic(), False, 0

    def reached_at(self) -> float:
        """The last moment (monotonic) at which the file was seen to take what it was given."""
        return self._grown_at if self._waits else time.monotonic()

    def trouble_at_end(self) -> str | None:
        """Why the file does not hold the run to its end, None if it does. For when the client has ended."""
        if self._size_now() < 0:
            return "the file is gone"
        try:
            return None if ends_whole(self.path) else self._why() or "its end is missing"
        except OSError as problem:
            return reason(problem)

    def _size_now(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return -1

    def _trouble(self) -> str | None:
        if self._size < 0:
            return "the file is gone"
        if self._polls < SUSPECT_POLLS:
            return None
        if self._polls < SURE_POLLS:
            return self._why()
        return self._why() or f"it has not grown while {self._polls} s of rows were logged"

    def _why(self) -> str | None:
        """What stands in the client's log, or befalls who writes beside the file."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - PROBE_BYTES))
                said = re.findall(rb'failed (?:to save record|closing store): [^"]*?([^":]+)"', file.read())
            if said:
                return said[-1].decode("utf-8", "replace").strip()
            with tempfile.TemporaryFile(dir=self.path.parent, buffering=0) as probe:
                if probe.write(bytes(PROBE_BYTES)) < PROBE_BYTES:
                    return "No space left on device"
        except OSError as problem:
            return reason(problem)
        return None


def ends_whole(path: Path) -> bool:
    """Whether the file ends at the end of a record, and the run's exit is among its last. Raises OSError."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        reader = LogReader(file, file.seek(max(0, size // BLOCK_BYTES - 1) * BLOCK_BYTES))
        try:
            exits = [Record.FromString(payload).HasField("exit") for payload in reader]
        except (NotWandbFile, DecodeError):
            return False
    return any(exits) and not reader.problems()
