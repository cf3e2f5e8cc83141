"""What is left of a sweep, as arrays of Slurm, and the job behind them that makes the report."""

from __future__ import annotations

import contextlib
import io
import secrets
import sys
from collections.abc import Sequence
from typing import Any

from ampcompare.errors import UserError, reason
from ampcompare.program.place import as_typed
from ampcompare.sweeps.cluster.array import PlannedRun
from ampcompare.sweeps.cluster.book import Submitted
from ampcompare.sweeps.cluster.queue import (
    adopt,
    jobs_in_queue,
    known_by_mark,
    most_tasks,
    report_is_queued,
    tasks_in_queue,
)
from ampcompare.sweeps.cluster.task import ReportTask, RunTask
from ampcompare.sweeps.cluster.whole import WholeArray
from ampcompare.sweeps.cluster.words import clusters_of, marked, of_report

MOST_TIMEOUTS = 100  # of a run: each goes on where the last one was
END_SECONDS = 15  # of the warning's time, for what is left to do when the training has ended
LOOKS = "the same command again looks for them in the queue"


class Refused(Exception):
    """sbatch took nothing: in words. `is_sure` is False where it may have, all the same."""

    def __init__(self, why: str, *, is_sure: bool) -> None:
        super().__init__(why)
        self.is_sure = is_sure


class Slurm:
    """The arrays and their report, by sbatch. `executor` is submitit's class."""

    def __init__(self, array: WholeArray, executor: Any, batch: dict[str, Any]) -> None:
        self.array, self.executor, self.batch = array, executor, batch
        self.book, self.clusters = array.book, clusters_of(batch)

    def submit(self) -> int:
        array, book = self.array, self.book
        try:
            adopted = adopt(book)
            queue = tasks_in_queue(book)
        except UserError as problem:
            raise UserError(f"--cluster slurm: {problem}; nothing was submitted") from None
        array.agree()
        for one in adopted:
            self._complete(one)
        going, jobs = {*queue}, sorted({name.partition("_")[0] for name in queue.values()})
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
            if not report_is_queued(book):
                self._say_report(self._submit_report(jobs))
            return 0
        new = self._submit_all(left)
        try:
            last = self._submit_report([*jobs, *new])
        except UserError as problem:
            done = f"the runs are submitted, as job {', '.join(new)}: only the report is not"
            raise UserError(f"{problem}; {done}") from None
        self._say(said, new, last, len(left))
        return 0

    def _say(self, said: str, jobs: Sequence[str], last: str, count: int) -> None:
        array = self.array
        most = self.batch.get("array_parallelism")
        at_a_time = f", {most} at a time" if most and most < count else ""
        time = f"{self.batch['time']} minutes each at most"
        array.say(f"{said}: {count} submitted as job {', '.join(jobs)}{at_a_time}, {time}")
        self._say_report(last)
        array.say(f"logs: {array.folder / 'logs'}, those of the jobs in {array.book.jobs}")
        missing = as_typed("ampcompare", "sweep", array.path, *array.words, *array.options, "--missing")
        array.say(f"to look: squeue -j {','.join(jobs)}, or: {missing}")
        array.say("the same command again submits what is neither done nor in the queue")

    def _say_report(self, job: str) -> None:
        self.array.say(f"report: job {job}, behind the last of them, into {self.array.folder / 'report'}")

    def _submit_all(self, runs: Sequence[PlannedRun]) -> list[str]:
        """Arrays as large as they may be. So many at a time means one array behind the other."""
        size = most_tasks(self.clusters) if len(runs) > 1 else None
        size = size or len(runs)
        jobs: list[str] = []
        for begin in range(0, len(runs), size):
            behind = jobs[-1:] if "array_parallelism" in self.batch else []
            try:
                jobs.append(self._submit(runs[begin : begin + size], behind))
            except UserError as problem:
                if not jobs:
                    raise
                done = f"{begin} runs are submitted before, as job {', '.join(jobs)}"
                raise UserError(f"{problem}; {done}: the same command again submits the rest") from None
        return jobs

    def _submit(self, runs: Sequence[PlannedRun], behind: Sequence[str]) -> str:
        """An array. It is noted before sbatch is asked: should this command die then, the next one finds its
        job by the mark.
        """
        mark = f"ampcompare-{secrets.token_hex(6)}"
        try:
            one = self.book.keep_submitted("", [run.run_id for run in runs], mark, self.clusters)
        except UserError as problem:
            raise UserError(f"--cluster slurm: {problem}; nothing was submitted") from None
        name = "".join(
            c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in self.array.sweep.name
        )
        batch = marked({"job_name": name, **self.batch}, mark)
        waits = [word for word in (self.batch.get("dependency"), *map("afterany:{}".format, behind)) if word]
        if waits:
            batch["dependency"] = ",".join(waits)
        try:
            jobs = self._by_submitit(batch, [self._task(run) for run in runs])
        except Refused as problem:
            return self._look_for(one, problem)
        job = str(jobs[0].job_id).partition("_")[0]
        try:
            self.book.keep_submitted(job, one.runs, mark, self.clusters, one.number)
        except UserError as problem:
            done = f"the runs are submitted all the same, as job {job}; make room, then {LOOKS}"
            raise UserError(f"--cluster slurm: {problem}; {done}") from None
        return job

    def _look_for(self, one: Submitted, problem: Refused) -> str:
        """sbatch has failed: the job that the queue has of it nevertheless. Raises UserError: none."""
        try:
            found = known_by_mark(one, jobs_in_queue(one.clusters))
        except UserError as unknown:
            raise UserError(f"--cluster slurm: {problem}; {unknown}: jobs may be queued, {LOOKS}") from None
        if found is None and problem.is_sure:
            self.book.forget_submitted(one)
            raise UserError(f"--cluster slurm: {problem}") from None
        if found is None:
            raise UserError(f"--cluster slurm: {problem}; jobs may be queued, {LOOKS}") from None
        self.book.keep_submitted(found.job, one.runs, one.mark, one.clusters, one.number)
        self._complete(found)
        return found.job

    def _complete(self, one: Submitted) -> None:
        """What submitit would have given the jobs, had it heard of them: their tasks."""
        from submitit.core.utils import DelayedSubmission, JobPaths, temporary_save_path

        tasks = {run.run_id: run for run in self.array.runs()}
        for number, run_id in enumerate(one.runs):
            path = JobPaths(self.book.jobs, job_id=one.name(number)).submitted_pickle
            if path.exists() or run_id not in tasks:
                continue
            submission = DelayedSubmission(self._task(tasks[run_id]))
            submission.set_timeout(self.batch["time"], MOST_TIMEOUTS)
            with temporary_save_path(path) as temporary:
                submission.dump(temporary)

    def _task(self, run: PlannedRun) -> RunTask:
        return self.array.task(run, max(1.0, self.batch.get("signal_delay_s", 90) - END_SECONDS))

    def _submit_report(self, jobs: Sequence[str]) -> str:
        batch = of_report({"job_name": "report", **self.batch}) | {"dependency": f"afterany:{':'.join(jobs)}"}
        try:
            (job,) = self._by_submitit(batch, [ReportTask(self.array.sweep, self.array.folder)])
        except Refused as problem:
            raise UserError(f"--cluster slurm: {problem}") from None
        self.book.keep_report(str(job.job_id), self.clusters)
        return str(job.job_id)

    def _by_submitit(self, batch: dict[str, Any], tasks: Sequence[Any]) -> list[Any]:
        """submitit's jobs. Raises Refused."""
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        executor = self.executor(self.book.jobs, MOST_TIMEOUTS)
        said = io.StringIO()  # what sbatch says is part of our own line
        try:
            with contextlib.redirect_stderr(said):
                executor.update_parameters(**batch)
                jobs = list(executor.submit_array(tasks))
        except FailedJobError as problem:
            # "Socket timed out on send/recv operation": the controller may have heard it nevertheless.
            is_sure = "timed out" not in str(problem)
            raise Refused(f"sbatch refused it: {_last_line(problem)}", is_sure=is_sure) from None
        except FailedSubmissionError as problem:
            answer = " ".join(str(problem).partition("Job instance will")[0].split())
            raise Refused(f"sbatch's answer is not understood ({answer})", is_sure=False) from None
        except OSError as problem:
            raise Refused(f"it cannot be submitted ({reason(problem)})", is_sure=True) from None
        sys.stderr.write(said.getvalue())
        return jobs


def _last_line(problem: BaseException) -> str:
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower()), lines[-1] if lines else repr(problem))
