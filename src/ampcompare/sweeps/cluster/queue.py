"""What of an array still waits or runs, as Slurm's queue says."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
from collections.abc import Mapping

from ampcompare.errors import UserError, reason
from ampcompare.sweeps.cluster.book import Book, Submitted

SECONDS = 120  # for squeue to answer


def tasks_in_queue(book: Book) -> dict[str, str]:
    """The runs that wait or run, each with its job's name there. Raises UserError: squeue cannot be asked.

    Nobody is asked where nothing was submitted.
    """
    submitted = book.submitted()
    queues = {clusters: jobs_in_queue(clusters) for clusters in {one.clusters for one in submitted}}
    found = {}
    for one in submitted:
        queue = queues[one.clusters]
        job = one if one.job else known_by_mark(one, queue)
        for task, run in enumerate(job.runs if job else ()):
            assert job
            if job.name(task) in queue:
                found[run] = job.name(task)
    return found


def known_by_mark(one: Submitted, queue: Mapping[str, str]) -> Submitted | None:
    """A submission whose job's id is not known, with the id; None where the queue has no such job."""
    for name, said in queue.items():
        if one.mark and one.mark in said:
            return dataclasses.replace(one, job=name.partition("_")[0])
    return None


def adopt(book: Book) -> list[Submitted]:
    """Settle what was about to be submitted when the command died, and return what the queue knows of it.

    What is not in the queue, and of which no run has begun, never was submitted: it is forgotten.
    """
    found = []
    for one in [one for one in book.submitted() if not one.job]:
        if job := known_by_mark(one, jobs_in_queue(one.clusters)):
            found.append(book.keep_submitted(job.job, job.runs, job.mark, job.clusters, job.number))
        elif not any(book.of_run(run) for run in one.runs):
            book.forget_submitted(one)
    return found


def report_is_queued(book: Book) -> bool:
    one = book.report()
    return one is not None and one.job in jobs_in_queue(one.clusters)


def most_tasks(clusters: str) -> int | None:
    """How many tasks an array may have; None where that cannot be asked."""
    words = ["scontrol", *(["-M", clusters] if clusters else []), "show", "config"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", done.stdout, re.M)
    return max(1, int(found[1])) if found else None


def jobs_in_queue(clusters: str) -> dict[str, str]:
    """Every job and every task of an array by its id, as squeue says it, with its name and comment.

    Everybody's: an array may have been submitted by a colleague, or under another name of the account.
    """
    words = ["squeue", "-h", "-r", "-a", "-o", "%i|%j|%k", *(["-M", clusters] if clusters else [])]
    # SQUEUE_USERS, SQUEUE_STATES and their like would leave jobs out.
    own = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", check=True, timeout=SECONDS, env=own
        )
    except (OSError, subprocess.SubprocessError) as problem:
        said = getattr(problem, "stderr", None) or reason(problem)
        raise UserError(f"what is in Slurm's queue cannot be asked ({' '.join(str(said).split())})") from None
    lines = [line.partition("|") for line in done.stdout.splitlines()]
    # A line without a number names the cluster of those that follow, or is a head that a site's squeue has.
    return {name.strip(): said for name, _, said in lines if name.strip()[:1].isdigit()}
