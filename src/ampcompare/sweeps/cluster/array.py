"""The runs of a job array, and what is kept of them in `output_dir/cluster`: files, each written as a whole.

- `sweep.json`: what the sweep began as, the seeds that came since, how often an index was begun anew;
- `MARK.json`: the runs of a submission, in their order. Written before sbatch is asked; its jobs bear the
  mark in their names, so that the queue tells which runs they are, whoever lived to hear sbatch's answer;
- `runs/RUN.json`: how often a run was started, and how it ended; `runs/RUN.lock`: a job sees it through;
- `jobs/`: what submitit keeps, the task of each job among it.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ampcompare.errors import UserError, reason
from ampcompare.program.files import replacing
from ampcompare.sweeps import definition
from ampcompare.sweeps.file import Sweep
from ampcompare.sweeps.follow import Follower
from ampcompare.sweeps.row import Row
from ampcompare.sweeps.search import row_at

MARK = "ampcompare-"


class Array:
    """The array in a folder, if there is one. Raises UserError where a file cannot be read or written."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.place = folder, folder / "cluster"
        self.jobs, self._runs = self.place / "jobs", self.place / "runs"

    def make(self) -> None:
        """The folders."""
        for path in (self.jobs, self._runs):
            try:
                path.mkdir(parents=True, exist_ok=True)
            except OSError as problem:
                raise UserError(f"{path}: this folder cannot be made ({reason(problem)})") from None

    @property
    def has_begun(self) -> bool:
        """Whether anything was submitted; what was refused binds nobody."""
        return bool(self.submissions())

    def agreed(self, sweep: Sweep, words: Sequence[str]) -> tuple[Sweep, dict[str, Any]]:
        """The sweep as it began here, with all seeds so far, and what is kept of it (`keep`). Raises
        definition.Changed where it was another sweep.
        """
        ours = definition.definition(sweep, words)
        # With a salt of its folder the same sweep has other ids in another one, and so other runs at W&B.
        new = {"definition": ours, "added": [], "salt": secrets.token_hex(8), "again": {}}
        kept = self._read(self.place / "sweep.json") if self.has_begun else new
        sweep, more = definition.agreed(sweep, kept["definition"], ours)
        known = [seed for group in kept["added"] for seed in group]
        if unknown := [seed for seed in more if seed not in known]:
            kept["added"].append(unknown)
        return dataclasses.replace(sweep, added=tuple(map(tuple, kept["added"]))), kept

    def keep(self, kept: Mapping[str, Any]) -> None:
        """Write down what `agreed` gave, as it is now."""
        self._write(self.place / "sweep.json", kept)

    def submissions(self) -> dict[str, list[str]]:
        """The runs of each submission by its mark; of the report's own none."""
        return {path.stem: self._read(path)["runs"] for path in sorted(self.place.glob(f"{MARK}*.json"))}

    def begin(self, runs: Sequence[str]) -> str:
        """Note a submission of these runs; returns its mark."""
        mark = f"{MARK}{secrets.token_hex(6)}"
        self._write(self.place / f"{mark}.json", {"runs": [*runs]})
        return mark

    def forget(self, mark: str) -> None:
        """It was refused."""
        (self.place / f"{mark}.json").unlink()

    def has_task(self, job: str) -> bool:
        """Whether submitit has given a job its task; it does so when sbatch has answered."""
        return (self.jobs / f"{job}_submitted.pkl").exists()

    def noted(self, run_id: str) -> dict[str, Any]:
        """What its jobs have noted of a run: `starts`, and `exit_code` where it came to its end."""
        path = self._runs / f"{run_id}.json"
        return self._read(path) if path.exists() else {}

    def note(self, run_id: str, **fields: Any) -> None:
        self._write(self._runs / f"{run_id}.json", self.noted(run_id) | fields)

    def ended(self, run_id: str) -> int | None:
        """The exit code of a run that came to its end, by its job or, where that was killed before it could
        say so, by its record; else None.
        """
        code: int | None = self.noted(run_id).get("exit_code")
        return 0 if code is None and Follower(self.folder, run_id, None).exit_code() == 0 else code

    @contextmanager
    def seeing_through(self, run_id: str, seconds: float) -> Iterator[bool]:
        """While entered no other job has the run. False: another had it for all these seconds."""
        with held(self._runs / f"{run_id}.lock", seconds) as is_ours:
            yield is_ours

    @staticmethod
    def _read(path: Path) -> Any:
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise UserError(f"{path}: cannot be read ({reason(problem)})") from None

    @staticmethod
    def _write(path: Path, content: Mapping[str, Any]) -> None:
        try:
            with replacing(path) as file:
                file.write(json.dumps(content).encode())
        except OSError as problem:
            raise UserError(f"{path}: cannot be written ({reason(problem)})") from None


def rows(sweep: Sweep, kept: Mapping[str, Any], told: Mapping[str, Any] | None) -> list[Row]:
    """Every run of an array by its index: a function of the sweep and of what is kept of it, as its jobs ask
    nobody. `told` is what of the plan every run is told.
    """
    name = json.dumps([sweep.name, kept["definition"]])
    found = []
    for index in range(sweep.total() or 0):
        told_apart = json.dumps([kept["salt"], index, kept["again"].get(str(index), 0)])
        run_id = hashlib.sha256(told_apart.encode()).hexdigest()[:12]
        found.append(dataclasses.replace(row_at(sweep, name, told, index), run_id=run_id))
    return found


@contextmanager
def held(path: Path, seconds: float = 0.0) -> Iterator[bool]:
    """A lock that the file system keeps while entered; False where somebody had it for so many seconds.

    True on a drive that knows no locks: some of clusters' do not.
    """
    until = time.monotonic() + seconds
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < until:
                    time.sleep(1.0)
                    continue
                yield False
                return
            except OSError:
                pass
            yield True
            return
