"""The processes of a job, by their environment: Slurm knows them by their cgroup."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def of_job(cluster: str, job_id: int, *, in_steps: bool = False) -> list[int]:
    """Every process whose environment says that it belongs to the job; only those of its steps, if asked."""
    wanted = {f"SLURM_CLUSTER_NAME={cluster}".encode(), f"SLURM_JOB_ID={job_id}".encode()}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = set((folder / "environ").read_bytes().split(b"\0"))
            ended = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            continue
        is_step = any(word.startswith(b"SLURM_STEP_ID=") for word in words)
        if wanted <= words and not ended and (is_step or not in_steps):
            found.append(int(folder.name))
    return found


def send(pids: list[int], *numbers: int) -> None:
    """Each signal to every one of them that is still there."""
    for number in numbers:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
