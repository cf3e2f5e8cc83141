"""What is kept of an array beside its runs' records: what it began as, what was submitted, how runs ended.

Small files in `output_dir/cluster`, each written by one process at a time: no database, nothing to keep open.
"""

from __future__ import annotations

import contextlib
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
    """A job, or an array of them: its id, and the run of each task.

    `job` is "" where it is not known: whoever submitted it did not live to hear it. `mark` is what its jobs
    bear in the queue; `clusters` are those that were named for it, "": the usual one.
    """

    job: str
    runs: tuple[str, ...]
    mark: str = ""
    clusters: str = ""
    number: int = 0  # of its file

    def name(self, task: int) -> str:
        """What the batch system calls a task; submitit makes no array of one run."""
        return self.job if len(self.runs) == 1 else f"{self.job}_{task}"


class Book:
    """The folder `cluster` of a sweep. All raise UserError for files that cannot be read or written."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.place = folder, folder / "cluster"
        self.runs, self.jobs = self.place / "runs", self.place / "jobs"

    def make(self) -> None:
        """The folders."""
        for path in (self.runs, self.jobs):
            try:
                path.mkdir(parents=True, exist_ok=True)
            except OSError as problem:
                raise UserError(f"{path}: this folder cannot be made ({reason(problem)})") from None

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """While entered nobody else submits the sweep. Raises UserError where somebody does; yields False on
        a drive that knows no locks.
        """
        path, is_sure = self.place / "lock", True
        try:
            file = path.open("a")
        except OSError as problem:
            raise UserError(f"{path}: cannot be opened ({reason(problem)})") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"{self.folder}: another command submits this sweep just now") from None
            except OSError:
                is_sure = False
            yield is_sure

    def sweep(self) -> dict[str, Any] | None:
        """What the sweep began as: `definition`, the groups of seeds that were `added`, and the `salt` of its
        ids, which older ones have not; None: not yet.
        """
        path = self.place / "sweep.json"
        if not path.exists():
            return None
        found = self._read(path)
        added = found.get("added")
        is_whole = isinstance(found.get("definition"), dict) and isinstance(found.setdefault("salt", ""), str)
        if not (is_whole and isinstance(added, list) and all(isinstance(group, list) for group in added)):
            raise _strange(path)
        return found

    def keep_sweep(self, content: dict[str, Any]) -> None:
        self._write(self.place / "sweep.json", content)

    def has_begun(self) -> bool:
        """Whether anything was submitted, or noted of a run."""
        return any(self.place.glob("submitted-*.json")) or any(self.runs.glob("*.json"))

    def submitted(self) -> list[Submitted]:
        """What was submitted, oldest first."""
        return [self._submitted(path) for path in sorted(self.place.glob("submitted-*.json"))]

    def _submitted(self, path: Path) -> Submitted:
        entry, number = self._read(path), path.stem.removeprefix("submitted-")
        runs, words = entry.get("runs"), [entry.get(key, "") for key in ("job", "mark", "clusters")]
        strings = isinstance(runs, list) and all(isinstance(word, str) for word in [*runs, *words])
        if not (strings and number.isascii() and number.isdigit()):
            raise _strange(path)
        job, mark, clusters = words
        return Submitted(job, tuple(runs or ()), mark, clusters, int(number))

    def keep_submitted(
        self, job: str, runs: Sequence[str], mark: str = "", clusters: str = "", number: int | None = None
    ) -> Submitted:
        """Note a submission; `number` is that of one that was noted before, without its job."""
        if number is None:
            number = 1 + max([one.number for one in self.submitted()], default=-1)
        entry = {"job": job, "runs": [*runs], "mark": mark, "clusters": clusters}
        self._write(self._place_of(number), entry)
        return Submitted(job, tuple(runs), mark, clusters, number)

    def forget_submitted(self, one: Submitted) -> None:
        """It was not submitted after all."""
        self._place_of(one.number).unlink(missing_ok=True)

    def _place_of(self, number: int) -> Path:
        return self.place / f"submitted-{number:04d}.json"

    def report(self) -> Submitted | None:
        """The job that makes the report, as it was last submitted."""
        path = self.place / "report.json"
        entry = self._read(path) if path.exists() else {}
        job, clusters = entry.get("job"), entry.get("clusters", "")
        return Submitted(job, (), clusters=clusters) if isinstance(job, str) else None

    def keep_report(self, job: str, clusters: str) -> None:
        self._write(self.place / "report.json", {"job": job, "clusters": clusters})

    def ended(self, run_id: str) -> int | None:
        """The exit code of a run that came to its end, None of one that did not, or was interrupted.

        What the job has noted, or the record's word for a run whose job was killed before it could.
        """
        noted: int | None = self.of_run(run_id).get("exit_code")
        if noted is not None:
            return noted
        return 0 if Follower(self.folder, run_id, None).exit_code() == 0 else None

    def of_run(self, run_id: str) -> dict[str, Any]:
        """What its job has noted: `starts`, and `exit_code` where it came to its end."""
        path = self.runs / f"{run_id}.json"
        found = self._read(path) if path.exists() else {}
        if not all(isinstance(found.get(key, 0), int) for key in ("starts", "exit_code")):
            raise _strange(path)
        return found

    @contextmanager
    def held(self, run_id: str) -> Iterator[bool]:
        """While entered no other job runs it; yields False where another does. True on a drive that knows
        no locks.
        """
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context((self.runs / f"{run_id}.lock").open("a"))
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            except OSError:
                pass
            yield True

    def is_held(self, run_id: str) -> bool:
        """Whether a job runs it now, as far as the drive's locks tell. Makes no file."""
        if not (self.runs / f"{run_id}.lock").exists():
            return False
        with self.held(run_id) as is_ours:
            return not is_ours

    def note(self, run_id: str, **fields: Any) -> None:
        self._write(self.runs / f"{run_id}.json", self.of_run(run_id) | fields)

    @staticmethod
    def _read(path: Path) -> dict[str, Any]:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise UserError(f"{path}: cannot be read ({reason(problem)})") from None
        if not isinstance(content, dict):
            raise _strange(path)
        return content

    @staticmethod
    def _write(path: Path, content: dict[str, Any]) -> None:
        try:
            with replacing(path) as file:
                file.write(json.dumps(content).encode())
        except OSError as problem:
            raise UserError(f"{path}: cannot be written ({reason(problem)})") from None


def _strange(path: Path) -> UserError:
    return UserError(f"{path}: expected what a sweep on a cluster keeps there")
