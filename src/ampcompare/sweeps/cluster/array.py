"""The runs of a job array, what is kept of them, and what Slurm's queue says.

Kept are files in `output_dir/cluster`, each written as a whole:

- `sweep.json`: what the sweep began as, the seeds that came since, the id of each run;
- `MARK.json`: the runs of a submission, in their order. Written before sbatch is asked; its jobs bear the
  mark in their names, so that the queue tells which runs they are, whoever lived to hear sbatch's answer;
- `runs/RUN.lock`: a job sees it through. How it ended is noted beside its log, as in any sweep;
- `jobs/`: what submitit keeps, the task of each job among it.
"""

import fcntl
import json
import os
import re
import secrets
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ampcompare.errors import UserError, reason
from ampcompare.program.files import make_folder, replacing
from ampcompare.sweeps.definition import agreed, definition, seed_of
from ampcompare.sweeps.prepare import Prepared
from ampcompare.sweeps.process import ended
from ampcompare.sweeps.search import row_at
from ampcompare.sweeps.table import QUEUED, RUNNING, Row

MARK = "ampcompare-"
SECONDS = 120  # for squeue to answer
REPORT = "report"  # in place of a run's id, of the job that makes the report


class Array:
    """The array in a folder, if there is one."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.place = folder, folder / "cluster"
        self.jobs, self._runs = self.place / "jobs", self.place / "runs"

    def make(self) -> None:
        """The folders. Raises UserError."""
        for path in (self.jobs, self._runs):
            make_folder(path, str(path))

    @property
    def has_begun(self) -> bool:
        """Whether anything was submitted; what was refused binds nobody."""
        return any(self.place.glob(f"{MARK}*.json"))

    def agreed(self, ready: Prepared) -> tuple[Prepared, dict[str, Any]]:
        """The sweep as it began here, with all seeds so far, and what is to be kept of it. Raises UserError
        where it was another sweep.
        """
        path, sweep = self.place / "sweep.json", ready.sweep
        kept: dict[str, Any] = {"definition": definition(sweep, ready.words), "added": [], "runs": []}
        if self.has_begun:
            kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if "runs" not in kept:
            what = "is of an earlier version of AMP Compare and cannot be gone on with"
            raise UserError(f"{path}: {what}; finish it with that version, or set output_dir=...")
        sweep, more = agreed(sweep, ready.words, kept["definition"], kept["added"], str(self.folder))
        kept["added"] += [[*more]] if more else []
        while len(kept["runs"]) < (sweep.total() or 0):
            kept["runs"].append(secrets.token_hex(6))
        return replace(ready, sweep=sweep), kept

    def write(self, name: str, content: Mapping[str, Any]) -> Path:
        """Keep this, in a file of that name."""
        path = self.place / f"{name}.json"
        with replacing(path) as file:
            file.write(json.dumps(content).encode())
        return path

    def rows(self, ready: Prepared, kept: Mapping[str, Any], jobs: Mapping[str, Sequence[str]]) -> list[Row]:
        """Every run by its index: a function of the sweep and of what is kept of it, as its jobs ask nobody;
        running where `jobs`, those in the queue, have it.
        """
        found, seed = [], seed_of(ready.sweep, kept["definition"])
        for place, run_id in enumerate(kept["runs"][: ready.sweep.total()]):
            state = RUNNING if run_id in jobs else ended(self.folder, run_id) or QUEUED
            row = row_at(ready.sweep, seed, ready.told, place)
            found.append(replace(row, run_id=run_id, state=state, starts=0 if state == QUEUED else 1))
        return found

    def lock(self, run_id: str) -> Path:
        """What a job that sees the run through holds."""
        return self._runs / f"{run_id}.lock"

    def in_queue(self) -> dict[str, list[str]]:
        """The runs that wait or run, each with the ids of its jobs, and the report.

        Everybody's jobs are asked for: an array may have been submitted by a colleague, or under another name
        of the account. Nobody is asked where nothing was submitted. Raises UserError: squeue cannot be asked.
        """
        if not self.has_begun:
            return {}
        # SQUEUE_USERS, SQUEUE_STATES and their like would leave jobs out; sbatch names clusters its own way.
        own = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}
        if clusters := os.environ.get("SBATCH_CLUSTERS"):
            own["SLURM_CLUSTERS"] = clusters
        asked = ["squeue", "-h", "-r", "-a", "-o", "%i|%j"]
        try:
            done = subprocess.run(asked, env=own, timeout=SECONDS, capture_output=True, text=True, check=True)
        except (OSError, subprocess.SubprocessError) as problem:
            why = " ".join(str(getattr(problem, "stderr", None) or reason(problem)).split())
            raise UserError(f"what is in Slurm's queue cannot be asked ({why})") from None
        found: dict[str, list[str]] = {}
        for job, mark in re.findall(rf"^\s*(\d+(?:_\d+)?)\|.*({MARK}\w+)", done.stdout, re.M):
            if (path := self.place / f"{mark}.json").exists():
                runs = json.loads(path.read_text(encoding="utf-8"))["runs"] or [REPORT]
                index = int(job.partition("_")[2] or 0)  # submitit makes no array of one run
                found.setdefault(runs[index], []).append(job)
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
