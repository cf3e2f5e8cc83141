"""What of an array waits or runs, as Slurm's queue says."""

from __future__ import annotations

import os
import re
import subprocess

from ampcompare.errors import UserError, reason
from ampcompare.sweeps.cluster.array import MARK, Array

SECONDS = 120  # for squeue to answer
REPORT = "report"  # in place of a run's id, of the job that makes the report


def in_queue(array: Array) -> dict[str, list[str]]:
    """The runs of the array that wait or run, each with the ids of its jobs, and the report.

    Everybody's jobs are asked for: an array may have been submitted by a colleague, or under another name of
    the account. Nobody is asked where nothing was submitted. Raises UserError: squeue cannot be asked.
    """
    if not (submissions := array.submissions()):
        return {}
    # SQUEUE_USERS, SQUEUE_STATES and their like would leave jobs out; sbatch has its own word for clusters.
    own = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}
    if clusters := os.environ.get("SBATCH_CLUSTERS"):
        own["SLURM_CLUSTERS"] = clusters
    asked = {"capture_output": True, "text": True, "errors": "replace", "check": True, "timeout": SECONDS}
    try:
        done = subprocess.run(["squeue", "-h", "-r", "-a", "-o", "%i|%j"], env=own, **asked)  # type: ignore[call-overload]
    except (OSError, subprocess.SubprocessError) as problem:
        said = getattr(problem, "stderr", None) or reason(problem)
        raise UserError(f"what is in Slurm's queue cannot be asked ({' '.join(str(said).split())})") from None
    found: dict[str, list[str]] = {}
    for job, mark in re.findall(rf"^\s*(\d+(?:_\d+)?)\|.*({MARK}\w+)", done.stdout, re.M):
        if mark in submissions:
            index = int(job.partition("_")[2] or 0)  # submitit makes no array of one run
            run = submissions[mark][index] if submissions[mark] else REPORT
            found.setdefault(run, []).append(job)
    return found


def most_tasks() -> int | None:
    """How many tasks an array may have; None where that cannot be asked."""
    words = ["scontrol", "show", "config"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", done.stdout, re.M)
    return max(1, int(found[1])) if found else None
