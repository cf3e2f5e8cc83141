"""Whether what was logged reaches the file of the record, which W&B's client writes in a process of its own.

The client does not say when it does not: on a full disk wandb 0.31 lost 10 of 16 rows, ended with exit code 0
and told only its own log. After the first write that fails it writes no more, even when there is room again.
"""

import tempfile
import time
from pathlib import Path

from google.protobuf.message import DecodeError

from ampcompare.errors import reason
from ampcompare.wandb_client.framing import BLOCK_BYTES, LogReader, NotWandbFile
from ampcompare.wandb_client.protocol import Record

LOOK_SECONDS = 5.0  # between two looks at the file; the client writes each second
PROBE_BYTES = 65_536


class WriteMonitor:
    """The file of one run. Rows are handed over in one thread; the others only read."""

    def __init__(self, path: Path) -> None:
        self.path, self._size = path, -1
        self.grown_at = self._looked_at = time.monotonic()  # `grown_at`: when it was last seen to take rows

    def look(self) -> str | None:
        """Why rows no longer reach the file; to be called for each row that is handed over."""
        if time.monotonic() - self._looked_at < LOOK_SECONDS:
            return None
        self._looked_at = time.monotonic()
        return None if self.has_grown() else self._trouble()

    def has_grown(self) -> bool:
        """Whether it has, since this was asked before."""
        before, self._size = self._size, self.path.stat().st_size if self.path.exists() else -1
        if self._size > before:
            self.grown_at = time.monotonic()
        return self._size > before

    def trouble_at_end(self) -> str | None:
        """Why the file does not hold the run to its end, None if it does. For when the client has ended."""
        is_whole = self.path.exists() and ends_whole(self.path)
        return None if is_whole else self._trouble() or "its end is missing"

    def _trouble(self) -> str | None:
        """What befalls who writes beside the file."""
        if not self.path.exists():
            return "the file is gone"
        try:
            with tempfile.TemporaryFile(dir=self.path.parent, buffering=0) as probe:
                whole = probe.write(bytes(PROBE_BYTES)) == PROBE_BYTES
        except OSError as problem:
            return reason(problem)
        return None if whole else "No space left on device"


def ends_whole(path: Path) -> bool:
    """Whether the file ends at the end of a record, and the run's exit is among its last."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        reader = LogReader(file, file.seek(max(0, size // BLOCK_BYTES - 1) * BLOCK_BYTES))
        try:
            exits = [Record.FromString(payload).HasField("exit") for payload in reader]
        except (NotWandbFile, DecodeError):
            return False
    return any(exits) and not reader.problems()
