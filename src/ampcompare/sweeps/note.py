"""How a run ended, noted beside its log where the database could not be told."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

STATES = ("finished", "failed", "stopped")


class Note:
    """What a worker that had to give up leaves to the one that takes the run over in the same folder."""

    def __init__(self, folder: Path, run_id: str) -> None:
        self._file = folder / "logs" / f"{run_id}.ended"

    def read(self) -> str | None:
        """The state of the run in the words of `Search.finish`, None where none was noted."""
        with suppress(OSError, UnicodeDecodeError):
            state = self._file.read_text(encoding="utf-8").strip()
            return state if state in STATES else None
        return None

    def write(self, state: str) -> None:
        """Note it, where the folder takes it: without it the run is made once more."""
        with suppress(OSError):
            self._file.write_text(state, encoding="utf-8")

    def remove(self) -> None:
        """The database knows."""
        with suppress(OSError):
            self._file.unlink(missing_ok=True)
