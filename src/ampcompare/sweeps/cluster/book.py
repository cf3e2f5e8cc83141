"""What is kept of an array beside its runs' records: what it began as, what was submitted, how runs ended.

Small files in `output_dir/cluster`, each written by one process at a time: no database, nothing to keep open.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ampcompare.errors import UserError, reason
from ampcompare.program.files import replacing
from ampcompare.sweeps.follow import Follower


@dataclass(frozen=True)
class Submitted:
    """A job, or an array of them: its id, and the run of each task."""

    job: str
    runs: tuple[str, ...]

    def name(self, task: int) -> str:
        """What the batch system calls a task; submitit makes no array of one run."""
        return self.job if len(self.runs) == 1 else f"{self.job}_{task}"


class Book:
    """The folder `cluster` of a sweep. All raise UserError for files that cannot be read."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.place = folder, folder / "cluster"
        self.runs, self.jobs = self.place / "runs", self.place / "jobs"

    def make(self) -> None:
        """The folders. Raises OSError."""
        for path in (self.runs, self.jobs):
            path.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While entered nobody else submits the sweep. Raises UserError where somebody does."""
        with (self.place / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"{self.folder}: another command submits this sweep just now") from None
            yield

    def sweep(self) -> dict[str, Any] | None:
        """What the sweep began as: `definition`, and the groups of seeds that were `added`; None: not yet."""
        path = self.place / "sweep.json"
        return self._read(path) if path.exists() else None

    def keep_sweep(self, content: dict[str, Any]) -> None:
        self._write(self.place / "sweep.json", content)

    def submitted(self) -> list[Submitted]:
        """What was submitted, oldest first."""
        found = [self._read(path) for path in sorted(self.place.glob("submitted-*.json"))]
        return [Submitted(entry["job"], tuple(entry["runs"])) for entry in found]

    def keep_submitted(self, job: str, runs: Sequence[str]) -> None:
        number = len(list(self.place.glob("submitted-*.json")))
        self._write(self.place / f"submitted-{number:04d}.json", {"job": job, "runs": [*runs]})

    def ended(self, run_id: str) -> int | None:
        """The exit code of a run that came to its end, None of one that did not, or was interrupted.

        What the job has noted, or the record's word for a run whose job was killed before it could.
        """
        noted = self.of_run(run_id).get("exit_code")
        if noted is not None:
            return int(noted)
        return 0 if Follower(self.folder, run_id, None).exit_code() == 0 else None

    def of_run(self, run_id: str) -> dict[str, Any]:
        """What its job has noted: `starts`, and `exit_code` where it came to its end."""
        path = self.runs / f"{run_id}.json"
        return self._read(path) if path.exists() else {}

    def note(self, run_id: str, **fields: Any) -> None:
        self._write(self.runs / f"{run_id}.json", self.of_run(run_id) | fields)

    @staticmethod
    def _read(path: Path) -> dict[str, Any]:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise UserError(f"{path}: cannot be read ({reason(problem)})") from None
        if not isinstance(content, dict):
            raise UserError(f"{path}: expected what a sweep on a cluster keeps there")
        return content

    @staticmethod
    def _write(path: Path, content: dict[str, Any]) -> None:
        with replacing(path) as file:
            file.write(json.dumps(content).encode())
