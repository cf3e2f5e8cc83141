"""`ampcompare sweep FILE --cluster slurm|local`: what is left of a sweep, as one array and its report."""

from __future__ import annotations

import dataclasses
import getpass
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from ampcompare.errors import UserError, reason
from ampcompare.program.place import as_typed
from ampcompare.sweeps.check import problems_of
from ampcompare.sweeps.cluster.array import PlannedRun
from ampcompare.sweeps.cluster.local import Local
from ampcompare.sweeps.cluster.task import ReportTask
from ampcompare.sweeps.cluster.whole import WholeArray
from ampcompare.sweeps.cluster.words import of_report, parameters, split
from ampcompare.sweeps.file.sweep import Sweep, read_sweep
from ampcompare.sweeps.run import GRACE_SECONDS, check_name, find_sweep

CLUSTERS = ("slurm", "local")
MOST_TIMEOUTS = 100  # of a run: each goes on where the last one was
END_SECONDS = 15  # of the warning's time, for what is left to do when the training has ended


def submit_sweep(path: str, words: Sequence[str], console: Console, cluster: str, **asked: Any) -> int:
    """Submit what is left of the sweep in the file. `asked` is as for `run_sweep`.

    Returns 0 once it is submitted; `local` waits, and returns 1 if runs failed. Raises UserError, with
    nothing submitted, for what cannot be an array, and where submitit or the batch system is not there.
    """
    if cluster not in CLUSTERS:
        raise UserError(f"--cluster {cluster!r}: expected one of {', '.join(CLUSTERS)}")
    batch, of_runs = split(words)
    sweep = read_sweep(find_sweep(path), lambda found, is_whole: problems_of(found, of_runs, is_whole))
    _check_options(sweep, cluster, batch, asked)
    name = asked.get("name")
    sweep = sweep if name is None else dataclasses.replace(sweep, name=name)
    check_name(sweep.name)
    executor = _executor(cluster)  # before anything is written
    batch_parameters = _batch_parameters(cluster, batch, asked.get("workers"))
    array = WholeArray(path, sweep, of_runs, console, asked.get("control"))
    array.options = [f"--{key}={asked[key]}" for key in ("name", "control") if asked.get(key)]
    with array.book.alone():
        array.agree()
        if cluster == "slurm":
            return _Slurm(array, executor(array.book.jobs, MOST_TIMEOUTS), batch_parameters).submit()
        return Local(array, executor(array.book.jobs, MOST_TIMEOUTS)).run()


def _check_options(sweep: Sweep, cluster: str, batch: Mapping[str, str], asked: Mapping[str, Any]) -> None:
    """Raises UserError for what an array, whose jobs do not know of each other, cannot do."""
    said = f"--cluster {cluster}"
    alone = "a job array is all submitted at once and has no database; leave --cluster out for it"
    for option, value in (
        ("--storage", asked.get("storage")),
        ("--until-decided", asked.get("until_decided")),
    ):
        if value:
            raise UserError(f"{said}: goes without {option}: {alone}")
    if asked.get("grace_seconds", GRACE_SECONDS) != GRACE_SECONDS:
        raise UserError(f"{said}: goes without --grace: {alone}")
    if sweep.method not in ("grid", "random"):
        raise UserError(f"{said}: goes with method grid or random, the file has {sweep.method}: {alone}")
    if sweep.hyperband:
        raise UserError(f"{said}: goes without early_terminate, which compares runs in passing: {alone}")
    if sweep.total() is None:
        raise UserError(f"{said}: a random search needs run_cap, the number of its runs")
    if cluster == "local" and batch:
        raise UserError(f"slurm.{next(iter(batch))}: goes with --cluster slurm alone")
    if cluster == "local" and asked.get("workers") is not None:
        raise UserError(f"{said}: goes without --workers: submitit starts all its jobs at once")


def _executor(cluster: str) -> Any:
    """submitit's executor, a class. Raises UserError where it is not installed or has no batch system."""
    try:
        from submitit.local.local import LocalExecutor
        from submitit.slurm.slurm import SlurmExecutor
    except ImportError as problem:
        if (problem.name or "").partition(".")[0] not in ("submitit", "cloudpickle"):
            raise
        todo = "needs submitit, which is not installed; install it with: pip install 'ampcompare[slurm]'"
        raise UserError(f"--cluster {cluster}: {todo}") from None
    if cluster == "local":
        return LocalExecutor
    if SlurmExecutor.affinity() <= 0:
        where = "run this on a machine of the cluster that can submit, or try --cluster local"
        raise UserError(f"--cluster slurm: there is no srun on PATH; {where}")
    return SlurmExecutor


def _batch_parameters(cluster: str, batch: Mapping[str, str], workers: int | None) -> dict[str, Any]:
    if cluster != "slurm":
        return {}
    from submitit.slurm.slurm import _get_default_parameters

    return parameters(batch, _get_default_parameters(), workers)


class _Slurm:
    """One array and its report, by sbatch."""

    def __init__(self, array: WholeArray, executor: Any, batch: dict[str, Any]) -> None:
        self.array, self.executor, self.batch = array, executor, batch

    def submit(self) -> int:
        array, book = self.array, self.array.book
        queue = self._queue() if (submitted := book.submitted()) else set()
        going = {run for s in submitted for i, run in enumerate(s.runs) if s.name(i) in queue}
        jobs = sorted({s.job for s in submitted for i in range(len(s.runs)) if s.name(i) in queue})
        runs = array.runs()
        ended = {run.run_id: book.ended(run.run_id) for run in runs if run.run_id not in going}
        left = [run for run in runs if run.run_id not in going and ended[run.run_id] is None]
        failed = [run for run in runs if ended.get(run.run_id)]
        said = array.headline(len([c for c in ended.values() if c == 0]), len(failed))
        if not left and not going:
            array.say(f"{said}; nothing is left to run")
            return array.finish(failed)
        if going:
            said += f", {len(going)} waiting or running as job {', '.join(jobs)}"
        if not left:
            array.say(f"{said}; nothing new was submitted")
            return 0
        job = self._submit(left)
        book.keep_submitted(job, [run.run_id for run in left])
        try:
            last = self._submit_report([*jobs, job])
        except UserError as problem:
            raise UserError(
                f"{problem}; the runs are submitted, as job {job}: only the report is not"
            ) from None
        self._say(said, job, last, len(left))
        return 0

    def _say(self, said: str, job: str, last: str, count: int) -> None:
        array = self.array
        most = self.batch.get("array_parallelism")
        at_a_time = f", {most} at a time" if most and most < count else ""
        array.say(
            f"{said}: {count} submitted as job {job}{at_a_time}, {self.batch['time']} minutes each at most"
        )
        array.say(f"report: job {last}, behind the last of them, into {array.folder / 'report'}")
        array.say(f"logs: {array.folder / 'logs'}, those of the jobs in {array.book.jobs}")
        missing = as_typed("ampcompare", "sweep", array.path, *array.words, *array.options, "--missing")
        array.say(f"to look: squeue -j {job}, or: {missing}")
        array.say("the same command again submits what is neither done nor in the queue")

    def _submit(self, runs: Sequence[PlannedRun]) -> str:
        name = "".join(
            c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in self.array.sweep.name
        )
        batch = {"job_name": name, **self.batch}
        delay = batch.get("signal_delay_s", 90)
        patience = max(1.0, delay - END_SECONDS)
        tasks = [self.array.task(run, patience) for run in runs]
        jobs = self._by_submitit(batch, tasks)
        return str(jobs[0].job_id).partition("_")[0]

    def _submit_report(self, jobs: Sequence[str]) -> str:
        batch = of_report({"job_name": "report", **self.batch}) | {"dependency": f"afterany:{':'.join(jobs)}"}
        executor = type(self.executor)(self.array.book.jobs, MOST_TIMEOUTS)
        self.executor = executor
        (job,) = self._by_submitit(batch, [ReportTask(self.array.sweep, self.array.folder)])
        return str(job.job_id)

    def _by_submitit(self, batch: dict[str, Any], tasks: Sequence[Any]) -> list[Any]:
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        try:
            self.executor.update_parameters(**batch)
            return list(self.executor.submit_array(tasks))
        except (FailedJobError, FailedSubmissionError, OSError) as problem:
            raise UserError(f"--cluster slurm: sbatch refused it: {_last_line(problem)}") from None

    def _queue(self) -> set[str]:
        """What of this user waits or runs, each task of an array by its name. Raises UserError."""
        words = ["squeue", "-h", "-r", "-u", getpass.getuser(), "-o", "%i"]
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
        except (OSError, subprocess.SubprocessError) as problem:
            said = getattr(problem, "stderr", None) or reason(problem)
            why = f"what is in the queue cannot be asked ({' '.join(str(said).split())})"
            raise UserError(f"--cluster slurm: {why}; nothing was submitted") from None
        return set(done.stdout.split())


def _last_line(problem: BaseException) -> str:
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower()), lines[-1] if lines else repr(problem))
