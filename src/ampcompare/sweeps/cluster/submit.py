"""`ampcompare sweep FILE --cluster slurm`: what is left of a sweep as arrays, and its report behind them."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from ampcompare.errors import UserError, one_line
from ampcompare.program.console import print_line
from ampcompare.program.place import as_typed
from ampcompare.report.words import plural
from ampcompare.sweeps import definition
from ampcompare.sweeps.answer import report
from ampcompare.sweeps.cluster.array import Array, held, rows
from ampcompare.sweeps.cluster.queue import REPORT, in_queue, most_tasks
from ampcompare.sweeps.cluster.task import ReportTask, RunTask
from ampcompare.sweeps.cluster.words import of_report, parameters, split
from ampcompare.sweeps.file import Sweep
from ampcompare.sweeps.prepare import Prepared, prepare
from ampcompare.sweeps.process import of_others
from ampcompare.sweeps.row import Row
from ampcompare.sweeps.run import EXIT_FAILED_RUNS, GRACE_SECONDS, make_output
from ampcompare.sweeps.worker import Launch

MOST_TIMEOUTS = 100  # of a run: each goes on where the last one was
END_SECONDS = 15  # of the warning's time, for what is left to do when the training has ended
AGAIN = "the same command again submits what is neither done nor in the queue"


def submit_sweep(
    path: str, words: Sequence[str], console: Console, cluster: str, *, fill: bool = False, **asked: Any
) -> int:
    """Submit what is left of the sweep in the file, with `fill` what failed, too; `asked`: see `run_sweep`.

    Returns 0 once it is submitted. Raises UserError, with nothing submitted, for what cannot be an array, and
    where submitit or the batch system is not there.
    """
    if cluster != "slurm":
        raise UserError(f"--cluster {cluster!r}: expected slurm")
    own, of_runs = split(words)
    ready = prepare(path, of_runs, asked.get("name"), asked.get("control"))
    _check(ready, asked)
    batch = Batch(Array(ready.output.resolve()), parameters(own, asked.get("workers")))
    options = [f"--{key}={asked[key]}" for key in ("name", "control") if asked.get(key)]
    missing = as_typed("ampcompare", "sweep", path, *of_runs, *options, "--missing")
    make_output(ready.output)
    batch.array.make()
    with held(batch.array.place / "lock") as is_ours:
        if not is_ours:
            raise UserError(f"{batch.array.folder}: another command submits this sweep just now")
        return _submit(path, ready, batch, console, missing, fill=fill)


def _submit(path: str, ready: Prepared, batch: Batch, console: Console, missing: str, *, fill: bool) -> int:
    array, folder = batch.array, batch.array.folder

    def say(line: str) -> None:
        print_line(console, one_line(line))

    try:
        queue = in_queue(array)
        sweep, kept = array.agreed(ready.sweep, ready.words)
    except definition.Changed as changed:
        why = f"a sweep named {ready.sweep.name!r} is in {folder} already and differs in {changed}"
        raise UserError(f"{path}: {why}; set output_dir=... for a new one") from None
    except UserError as problem:
        raise UserError(f"--cluster slurm: {problem}; nothing was submitted") from None
    runs = rows(sweep, kept, ready.told)
    ended = {run.run_id: array.ended(run.run_id) for run in runs}
    failed = [run for run in runs if ended[run.run_id] and run.run_id not in queue]
    if fill and failed:  # new runs: those that failed stay in the record
        for run in failed:
            kept["again"][str(run.place)] = kept["again"].get(str(run.place), 0) + 1
        runs, failed = rows(sweep, kept, ready.told), []
    array.keep(kept)
    for line in ready.same.said(sweep):
        say(line)
    # Jobs whose command died before it gave them their tasks do nothing: their runs are submitted again.
    going = {run: jobs for run, jobs in queue.items() if any(map(array.has_task, jobs))}
    if idle := [job for jobs in queue.values() for job in jobs if not array.has_task(job)]:
        subprocess.run(["scancel", *idle], capture_output=True, check=False)
    left = [run for run in runs if run.run_id not in going and ended.get(run.run_id) is None]
    jobs = sorted({job.partition("_")[0] for run, jobs in going.items() if run != REPORT for job in jobs})
    waiting = sum(run.run_id in going for run in runs)
    done = sum(ended.get(run.run_id) == 0 and run.run_id not in going for run in runs)
    said = f"{sweep.name}: {sweep.method}, {plural(len(runs), 'run')}"
    said += "".join(
        [
            f", {done} of them done before" if done else "",
            f", {len(failed)} failed" if failed else "",
            f", {waiting} waiting or running as job {', '.join(jobs)}" if jobs else "",
        ]
    )
    if not left and not jobs:
        say(f"{said}; nothing is left to run")
        if failed:
            ids = ", ".join(run.run_id for run in failed[:5]) + (", ..." if len(failed) > 5 else "")
            say(f"{len(failed)} of {len(runs)} runs failed ({ids}); their output is in {folder / 'logs'}")
        status = report(console, sweep, folder)
        return EXIT_FAILED_RUNS if failed else status
    if left:
        behind = (*ready.words, f"output_dir={folder}") if ready.here else ready.words
        launch = Launch.of(sweep, folder, behind, {} if ready.here else of_others(), ready.here)
        new = batch.submit_runs(sweep, launch, left)
        most = batch.words.get("array_parallelism", len(left))
        at_a_time = f", {most} at a time" if most < len(left) else ""
        time = f"{batch.words['time']} minutes each at most"
        say(f"{said}: {len(left)} submitted as job {', '.join(new)}{at_a_time}, {time}")
        jobs += new
    else:
        say(f"{said}; nothing new was submitted")
    if left or REPORT not in going:
        dependency = f"afterany:{':'.join(jobs)}"
        words = {"job_name": "report", **of_report(batch.words), "dependency": dependency}
        try:
            last = batch.submit(words, [REPORT], [ReportTask(sweep, folder)])
        except UserError as problem:
            done_before = f"the runs are submitted, as job {', '.join(jobs)}: only the report is not"
            raise UserError(f"{problem}; {done_before}") from None
        say(f"report: job {last}, behind the last of them, into {folder / 'report'}")
    if left:
        say(f"logs: {folder / 'logs'}, those of the jobs in {array.jobs}")
        say(f"to look: squeue -j {','.join(jobs)}, or: {missing}")
        say(AGAIN)
    return 0


class Batch:
    """sbatch, by submitit. Raises UserError where that or the batch system is not there, and for words that
    submitit has not.
    """

    def __init__(self, array: Array, words: dict[str, Any]) -> None:
        self.array, self.words = array, words
        try:
            from submitit.slurm.slurm import SlurmExecutor
        except ImportError as problem:
            if (problem.name or "").partition(".")[0] not in ("submitit", "cloudpickle"):
                raise
            todo = "needs submitit, which is not installed; install it with: pip install 'ampcompare[slurm]'"
            raise UserError(f"--cluster slurm: {todo}") from None
        if missing := [name for name in ("srun", "sbatch") if shutil.which(name) is None]:
            where = "run this on a machine of the cluster that can submit"
            raise UserError(f"--cluster slurm: there is no {missing[0]} on PATH; {where}")
        try:
            SlurmExecutor(array.jobs).update_parameters(**words)
        except (ValueError, TypeError) as problem:
            raise UserError(f"--cluster slurm: {problem}") from None

    def submit_runs(self, sweep: Sweep, launch: Launch, left: Sequence[Row]) -> list[str]:
        """Arrays as large as they may be; so many runs at a time mean one array behind the other. Returns the
        ids of their jobs.
        """
        patience = max(1.0, self.words.get("signal_delay_s", 90) - END_SECONDS)
        size = (most_tasks() if len(left) > 1 else None) or len(left)
        name = re.sub(r"[^A-Za-z0-9_.-]", "-", sweep.name)
        jobs: list[str] = []
        for begin in range(0, len(left), size):
            some, words = left[begin : begin + size], {"job_name": name, **self.words}
            waits = [words["dependency"]] if "dependency" in words else []
            waits += [f"afterany:{jobs[-1]}"] if jobs and "array_parallelism" in words else []
            words |= {"dependency": ",".join(waits)} if waits else {}
            try:
                tasks = [RunTask(launch, row, patience) for row in some]
                jobs.append(self.submit(words, [row.run_id for row in some], tasks))
            except UserError as problem:
                done = (
                    f"; {begin} runs are submitted before, as job {', '.join(jobs)}: {AGAIN}" if jobs else ""
                )
                raise UserError(f"{problem}{done}") from None
        return jobs

    def submit(self, words: Mapping[str, Any], runs: Sequence[str], tasks: Sequence[Any]) -> str:
        """An array, noted before sbatch is asked; returns its job's id. Raises UserError."""
        from submitit.core.utils import FailedJobError, FailedSubmissionError
        from submitit.slurm.slurm import SlurmExecutor

        os.environ.pop("SBATCH_JOB_NAME", None)  # it would go before the script's, which has the mark
        mark = self.array.begin([] if runs == [REPORT] else runs)
        executor, said = SlurmExecutor(self.array.jobs, MOST_TIMEOUTS), io.StringIO()
        try:
            with contextlib.redirect_stderr(said):  # what sbatch says is part of our own line
                executor.update_parameters(**{**words, "job_name": f"{words['job_name']}-{mark}"})
                jobs = executor.submit_array(tasks)
        except (FailedJobError, FailedSubmissionError) as problem:
            # "Socket timed out on send/recv operation": the controller may have heard it nevertheless.
            if isinstance(problem, FailedJobError) and "timed out" not in str(problem):
                self.array.forget(mark)
                raise UserError(f"--cluster slurm: sbatch refused it: {_last_line(problem)}") from None
            answer = " ".join(str(problem).partition("Job instance will")[0].split())
            raise UserError(f"--cluster slurm: sbatch's answer was lost ({answer}); {AGAIN}") from None
        sys.stderr.write(said.getvalue())
        return str(jobs[0].job_id).partition("_")[0]


def _last_line(problem: BaseException) -> str:
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower()), lines[-1] if lines else repr(problem))


def _check(ready: Prepared, asked: Mapping[str, Any]) -> None:
    """Raises UserError for what an array, whose jobs do not know of each other, cannot do, and for a folder
    in which the sweep was run without.
    """
    sweep, output = ready.sweep, ready.output
    alone = "a job array is all submitted at once and has no database; leave --cluster out for it"
    for option, value in {
        "--storage": asked.get("storage"),
        "--until-decided": asked.get("until_decided"),
        "--grace": asked.get("grace_seconds", GRACE_SECONDS) != GRACE_SECONDS,
        f"method {sweep.method}": sweep.method not in ("grid", "random"),
        "early_terminate": sweep.hyperband,
    }.items():
        if value:
            raise UserError(f"--cluster slurm: goes without {option}: {alone}")
    if sweep.total() is None:
        raise UserError("--cluster slurm: a random search needs run_cap, the number of its runs")
    said, place, has_begun = f"output_dir={str(output)!r}", str(output.absolute()), Array(output).has_begun
    if "%" in place or "\\" in place or not place.isprintable():
        expected = "expected a printable path without % and \\, which mean something to sbatch"
        raise UserError(f"{said}: {expected}")
    # With --storage its database is elsewhere; the parameters of its runs are here.
    was_run = not has_begun and any((output / "wandb" / f"sweep-{sweep.name}").glob("config-*.yaml"))
    if was_run or (output / "sweep.db").exists():
        what = "a sweep was run or filled there without --cluster, and its database goes on with it"
        todo = "go on with --fill" if has_begun else "leave --cluster out"
        raise UserError(f"{said}: {what}; name another folder, or {todo}")
