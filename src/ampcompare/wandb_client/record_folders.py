"""The folders in which W&B's client records the starts of a run.

A start of the run `ID` has the folder `run-DATE_TIME-ID` or `offline-run-DATE_TIME-ID`, with the file
`run-ID.wandb`. The time is in seconds: a second start within one second gets the suffix `-1`, the next one
`-2`.
"""

import os
import re
from pathlib import Path


def find_record_files(folder: Path, run_id: str) -> list[Path]:
    """Return the record files of all starts of a run, oldest first.

    Args:
        folder: The folder that has the folder `wandb`.
    """
    return RecordIndex(folder).files(run_id)


def parse_start(name: str, run_id: str) -> tuple[str, int] | None:
    """Return time and number of a start within its second, None for a folder of another run.

    >>> parse_start("offline-run-20260102_030405-abc-2", "abc")
    ('20260102_030405', 2)
    """
    match = re.fullmatch(rf"(?:offline-)?run-(.+?)-{re.escape(run_id)}(?:-(\d+))?", name)
    return None if match is None else (match[1], int(match[2] or 0))


class RecordIndex:
    """The folders of all starts of all runs, listed once for many questions.

    Args:
        folder: The folder that has the folder `wandb`.
    """

    def __init__(self, folder: Path) -> None:
        self._top = folder / "wandb"
        self._names: set[str] = set()
        self._by_run: dict[str, list[str]] = {}  # names that may be those of a run, by its id
        self._is_current = False

    def refresh(self) -> None:
        """Let the next question list the folder again."""
        self._is_current = False

    def files(self, run_id: str) -> list[Path]:
        """Return the record files of all starts of a run, oldest first."""
        if not self._is_current:
            self._list()
        found = [
            (start, self._top / name / f"run-{run_id}.wandb")
            for name in self._by_run.get(run_id, ())
            if (start := parse_start(name, run_id)) is not None
        ]
        return [file for _, file in sorted(found) if file.is_file()]

    def _list(self) -> None:
        names = set(os.listdir(self._top)) if self._top.is_dir() else set()
        for name in names - self._names:
            # `run-TIME-ab-1` is the first start of the run `ab-1`, or the second one of the run `ab`.
            _, _, ended = name.removeprefix("offline-").removeprefix("run-").partition("-")
            head, _, number = ended.rpartition("-")
            self._by_run.setdefault(ended, []).append(name)
            if number.isdigit():
                self._by_run.setdefault(head, []).append(name)
        self._names |= names
        self._is_current = True
