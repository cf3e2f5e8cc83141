"""Runs as jobs of Slurm: job arrays, submitted by submitit.

By default the driver submits what is left, a job for the report behind it, and leaves. The same command
later finds the jobs by their ids in the journal. With `--wait` the driver stays until all has ended.

A submission is written to the journal before sbatch is asked, with a mark that its jobs bear in their names.
So the queue tells which runs its jobs are, even if the driver did not live to hear sbatch's answer.

Words `slurm.partition=gpu` are submitit's parameters. submitit refuses those that it does not have.
"""

import contextlib
import io
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ampcompare.errors import UserError, did_you_mean, one_line, reason
from ampcompare.runs.run_state import RunState
from ampcompare.runtime.atomic_files import make_folder
from ampcompare.runtime.yaml_io import parse_yaml_value
from ampcompare.sweeps.executors.slurm_task import SlurmTask, make_report
from ampcompare.sweeps.journal import Journal, SweepRun, SweepState
from ampcompare.sweeps.prepare import PreparedSweep
from ampcompare.sweeps.process_guard import note_stop
from ampcompare.sweeps.run_end import DRIVER, MAX_SIGNAL_ENDS, end_file_of, runs_left
from ampcompare.sweeps.run_launcher import RunLauncher

MAX_TASKS = 1000  # of one array: Slurm's own MaxArraySize is 1001
END_SECONDS = 15  # of the warning's time, for what is left to do when the training has ended
PREFIX = "slurm."
MARK = "ampcompare-"
DEFAULT_TIME = "4:00:00"  # of a job; submitit's own 5 minutes would end most trainings
NEVER = 10**7  # minutes
SQUEUE_SECONDS = 120  # for squeue to answer
SCANCEL_SECONDS = 30  # for scancel to answer
FACTS_SECONDS = 1.0  # between two checks whether runs have ended
QUEUE_SECONDS = 15.0  # between questions to squeue
ONE_PROCESS = ("nodes", "ntasks_per_node", "use_srun")
# The queue would not tell which jobs they are, or sbatch not what it has queued.
RESERVED = ("array", "clusters", "job-name", "parsable", "quiet", "test-only")
# What Slurm's clients print when the connection fails: the controller may have taken the jobs.
CONNECTION_TROUBLE = "timed out|conne|contact|communicat|socket|messag|receiv|send|bytes|pipe|shut|killed"
PARAMETER_TYPES: dict[str, type] = {
    "additional_parameters": dict,
    "setup": list,
    "teardown": list,
    "srun_args": list,
    "array_parallelism": int,
    "signal_delay_s": int,
}
ONLY_FOR_RUNS = re.compile(r".*gpu|gres|tres|array_parallelism")  # not for the report's job


class SlurmExecutor:
    """Submits runs as job arrays, and follows them by the facts about their ends and by squeue.

    Args:
        launcher: Starts the runs, within the jobs.
        options: submitit's parameters.
        journal: The sweep's journal, in which each submission is noted.
    """

    slots = MAX_TASKS  # Slurm itself keeps to `--workers` within an array
    max_signal_ends: int | None = MAX_SIGNAL_ENDS

    def __init__(self, launcher: RunLauncher, options: Mapping[str, Any], journal: Journal) -> None:
        self.options = options
        self.poll_seconds = FACTS_SECONDS
        self._launcher, self._journal = launcher, journal
        self._folder = journal.folder
        # The jobs and their runs, as squeue last told; None: it was not asked yet.
        self._jobs: dict[str, Sequence[SweepRun]] | None = None
        self._not_in_queue: set[str] = set()
        self._cancelled: set[str] = set()
        self.assigned: list[list[int]] = []
        self._next_squeue = 0.0
        make_folder(jobs_folder(self._folder), str(jobs_folder(self._folder)))

    def submit(self, groups: Sequence[Sequence[SweepRun]]) -> list[dict[str, Any]]:
        """Submit these groups as one array; return the job of each.

        Raises:
            UserError: If sbatch refuses it, or its answer was lost.
        """
        patience = max(1.0, self.options.get("signal_delay_s", 90) - END_SECONDS)
        tasks = [SlurmTask(self._launcher, tuple(runs), patience) for runs in groups]
        indices = [[run.index for run in runs] for runs in groups]
        job = submit_array(self._journal, self._launcher.sweep.name, self.options, indices, tasks)
        # submitit makes no array of one task
        jobs = [f"{job}_{number}" for number in range(len(groups))] if len(groups) > 1 else [job]
        self._next_squeue = time.monotonic() + QUEUE_SECONDS
        if self._jobs is not None:
            self._jobs.update(zip(jobs, groups, strict=True))
        self.assigned += [job_indices[1:] for job_indices in indices]
        return [{"job": job_id} for job_id in jobs]

    def alive(self) -> dict[int, dict[str, Any]]:
        """Return the run that is under way, or comes first, in each job that waits or runs.

        Raises:
            UserError: If squeue cannot be asked the first time, and a run may be in its queue.
        """
        if self._jobs is None:
            self._jobs = jobs_in_queue(self._journal.state) if self._open_runs() else {}
            self._next_squeue = time.monotonic() + QUEUE_SECONDS
        elif time.monotonic() >= self._next_squeue and self._open_runs():
            self._next_squeue = time.monotonic() + QUEUE_SECONDS
            self._ask_again()
        alive: dict[int, dict[str, Any]] = {}
        self.assigned = []
        for job, runs in runs_in_jobs(self._jobs, self._journal.state, self._folder):
            # A job that was cancelled is about to end, and begins no further run.
            if runs[0].state is RunState.RUNNING or job not in self._cancelled:
                current, *runs = runs
                alive[current.index] = {"job": job}
            self.assigned.append([run.index for run in runs])
        return alive

    def _ask_again(self) -> None:
        """Ask squeue. A job has left the queue when two answers in a row lack it.

        The facts about a run that has just ended may come a moment later on a shared drive.
        """
        try:
            jobs = jobs_in_queue(self._journal.state)
        except UserError:  # squeue does not answer; it may the next time
            return
        assert self._jobs is not None
        gone = {job: runs for job, runs in self._jobs.items() if job not in jobs}
        self._jobs = jobs | {job: runs for job, runs in gone.items() if job not in self._not_in_queue}
        self._not_in_queue = set(gone)

    def cancel(self, runs: Sequence[SweepRun], *, at_once: bool = False) -> None:
        """Cancel the jobs of these runs. Slurm sends them SIGTERM, and SIGKILL after its own KillWait.

        Raises:
            UserError: If Slurm does not answer.
        """
        # A run that waits in a job is not in the queue by itself.
        running = [run for run in runs if run.state is RunState.RUNNING and "job" in run.process]
        jobs = [str(run.process["job"]) for run in running]
        if not jobs:
            return
        for run in running:
            note_stop(end_file_of(self._folder, run), time.time(), DRIVER)
        command = ["scancel", *jobs]
        problem = ""
        try:
            done = subprocess.run(
                command, timeout=SCANCEL_SECONDS, capture_output=True, text=True, check=False
            )
            if done.returncode and re.search(CONNECTION_TROUBLE, done.stderr, re.I):
                problem = one_line(done.stderr)
        except (OSError, subprocess.SubprocessError) as error:
            problem = reason(error)
        if problem:
            raise UserError(
                f"--cluster slurm: scancel failed ({problem}), so jobs of this sweep go on; "
                f"cancel them with: {' '.join(command)}"
            )
        self._cancelled |= {*jobs}
        self._next_squeue = 0.0

    def close(self) -> None:
        """Leave the jobs to Slurm."""

    def submit_report(self, jobs: Sequence[str]) -> str:
        """Submit the job that makes the report behind these jobs; return its id.

        Raises:
            UserError: If sbatch refuses it.
        """
        options = {**_report_options(self.options), "dependency": f"afterany:{':'.join(jobs)}"}
        task = partial(make_report, self._launcher.sweep, self._folder)
        return submit_array(self._journal, "report", options, [], [task])

    def has_report_job(self) -> bool:
        """Return whether the queue has the report's job, behind the last runs that were submitted."""
        *_, last = self._journal.state.submissions.values()
        return not last and any(not runs for runs in jobs_in_queue(self._journal.state).values())

    def _open_runs(self) -> list[SweepRun]:
        """Return the runs of which only squeue can tell whether they are alive."""
        state = self._journal.state
        submitted = state.submitted
        candidates = [*state.own_running, *(run for run in state.startable if run.index in submitted)]
        in_jobs = [run for run in candidates if run.index in submitted or "job" in run.process]
        return runs_left(in_jobs, self._folder)


def slurm_factory(
    prepared: PreparedSweep, cluster_options: Mapping[str, str]
) -> Callable[[Journal], SlurmExecutor]:
    """Return a function that makes the executor of a sweep.

    Args:
        cluster_options: Options of the command line, `slurm.NAME=VALUE`, by name.

    Raises:
        UserError: If Slurm or submitit is missing, or an array cannot do what the sweep needs.
    """
    sweep, output, options = prepared.sweep, prepared.output, prepared.command.options
    needs = {
        "--until-decided": options.until_decided,
        f"method {sweep.method}": sweep.learns,
        "early_terminate": sweep.hyperband,
    }
    if not options.wait and (needed := next((name for name, is_needed in needs.items() if is_needed), None)):
        raise UserError(f"--cluster slurm: {needed} needs a command that keeps running; add --wait")
    if not options.wait and sweep.total() is None:
        raise UserError(
            "--cluster slurm: a random search needs run_cap, the number of runs; set it, or add --wait"
        )
    is_stepwise = sweep.learns or sweep.total() is None
    if is_stepwise and options.workers is None:
        raise UserError(
            "--cluster slurm: this search depends on the runs that have ended, or has no end; add "
            "--workers N, the number of runs at a time"
        )
    text, path = f"output_dir={str(output)!r}", str(output.absolute())
    if "%" in path or "\\" in path or not path.isprintable():
        raise UserError(f"{text}: expected a printable path without % and \\, which sbatch would replace")
    parameters = submitit_parameters(cluster_options, options.workers)
    _submitit_executor(output, parameters)  # whether there is Slurm, before anything is written

    def make(journal: Journal) -> SlurmExecutor:
        executor = SlurmExecutor(prepared.launcher(journal.folder), parameters, journal)
        if is_stepwise:
            executor.slots = options.workers or 1
        return executor

    return make


def jobs_folder(folder: Path) -> Path:
    """Return where submitit keeps its files: the task and the output of each job."""
    return folder / "cluster" / "jobs"


def jobs_in_queue(state: SweepState) -> dict[str, Sequence[SweepRun]]:
    """Return the jobs of a sweep that wait or run, with their runs at submission; the report's job has none.

    Everybody's jobs are asked for: an array may have been submitted by a colleague, or under another account.

    Raises:
        UserError: If squeue cannot be asked.
    """
    submissions = state.submissions
    if not submissions:
        return {}
    # SQUEUE_USERS, SQUEUE_STATES and their like would leave jobs out; sbatch names clusters its own way.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}
    if clusters := os.environ.get("SBATCH_CLUSTERS"):
        environment["SLURM_CLUSTERS"] = clusters
    command = ["squeue", "-h", "-r", "-a", "-o", "%i|%j"]
    try:
        done = subprocess.run(
            command, env=environment, timeout=SQUEUE_SECONDS, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.SubprocessError) as problem:
        why = " ".join(str(getattr(problem, "stderr", None) or reason(problem)).split())
        raise UserError(
            f"--cluster slurm: squeue failed ({why}); run the command where squeue works, so that queued "
            "runs are not started twice"
        ) from None
    jobs: dict[str, Sequence[SweepRun]] = {}
    for job, mark in re.findall(rf"^\s*(\d+(?:_\d+)?)\|.*({MARK}\w+)", done.stdout, re.M):
        if mark in submissions:
            tasks = submissions[mark] or [[]]
            jobs[job] = tasks[int(job.partition("_")[2] or 0)]  # submitit makes no array of one task
    return jobs


def runs_in_jobs(
    jobs: Mapping[str, Sequence[SweepRun]], state: SweepState, folder: Path
) -> Iterator[tuple[str, list[SweepRun]]]:
    """Yield each job that has runs left, with these runs. The first of them is under way, or comes next.

    A run that has ended and waits for another start is not in its former job any more, although the job may
    train others.

    Args:
        jobs: The jobs in the queue, with their runs at submission.
        folder: Output folder of the sweep.
    """
    for job, submitted in jobs.items():
        now = [(run, state.runs[run.index]) for run in submitted]
        same_start = [
            new
            for old, new in now
            if (new.run_id, new.last_start) == (old.run_id, old.last_start) and not new.state.is_final
        ]
        if left := runs_left(same_start, folder):
            yield job, left


def submit_array(
    journal: Journal,
    name: str,
    options: Mapping[str, Any],
    indices: Sequence[Sequence[int]],
    tasks: Sequence[Any],
) -> str:
    """Submit tasks as one array, noted in the journal before sbatch is asked.

    Args:
        journal: The sweep's journal.
        name: Name of the jobs, unless the options have one.
        options: submitit's parameters.
        indices: The runs of each task; empty for the report.
        tasks: What the jobs do.

    Returns:
        The id of the job.

    Raises:
        UserError: If sbatch refuses the array, or its answer was lost.
    """
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    os.environ.pop("SBATCH_JOB_NAME", None)  # it would go before the script's, which has the mark
    mark, output = f"{MARK}{secrets.token_hex(6)}", io.StringIO()
    journal.append("submission", mark=mark, indices=[runs if len(runs) > 1 else runs[0] for runs in indices])
    job_name = re.sub(r"[^A-Za-z0-9_.-]", "-", str(options.get("job_name", name)))
    executor = _submitit_executor(journal.folder, {**options, "job_name": f"{job_name}-{mark}"})
    try:
        with contextlib.redirect_stderr(output):  # what sbatch prints is part of our own line
            jobs = executor.submit_array(tasks)
    except (FailedJobError, FailedSubmissionError) as problem:
        lines = [line for line in str(problem).splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        why = [*errors, *lines, "no output"][0]
        is_refused = isinstance(problem, FailedJobError) and lines
        if is_refused and not re.search(CONNECTION_TROUBLE, str(problem), re.I):
            journal.append("submission", mark=mark, indices=None)
            raise UserError(f"--cluster slurm: sbatch refused the job: {why}") from None
        raise UserError(
            f"--cluster slurm: sbatch's answer was lost ({why}); run the same command again: it submits "
            "runs that are neither done nor queued"
        ) from None
    sys.stderr.write(output.getvalue())
    return str(jobs[0].job_id).partition("_")[0]


def _submitit_executor(folder: Path, options: Mapping[str, Any]) -> Any:
    """Return submitit's executor.

    Raises:
        UserError: If submitit or Slurm is not there, or submitit does not have a parameter.
    """
    try:
        from submitit.slurm.slurm import SlurmExecutor as SubmititExecutor
    except ImportError:
        raise UserError(
            "--cluster slurm: needs submitit, which is not installed; install it with: pip install "
            "'ampcompare[slurm]'"
        ) from None
    if missing := [name for name in ("srun", "sbatch") if shutil.which(name) is None]:
        raise UserError(
            f"--cluster slurm: {missing[0]} is not on PATH; run the command on a machine of the cluster "
            "that can submit jobs"
        )
    known = SubmititExecutor._valid_parameters()
    if unknown := [name for name in options if name not in known]:
        near = did_you_mean(unknown[0], known, count=3)
        others = "other options of sbatch belong into slurm.additional_parameters"
        raise UserError(f"{PREFIX}{unknown[0]}: submitit has no such parameter; {near or others}")
    try:
        executor = SubmititExecutor(jobs_folder(folder))
        executor.update_parameters(**options)
    except (ValueError, TypeError) as problem:
        raise UserError(f"--cluster slurm: {one_line(problem)}") from None
    return executor


def array_of(run: SweepRun) -> str:
    """Return the id of the job array of a run."""
    return str(run.process["job"]).partition("_")[0]


def submitit_parameters(cluster_options: Mapping[str, str], workers: int | None = None) -> dict[str, Any]:
    """Return the options of the command line as submitit's parameters.

    Args:
        cluster_options: Texts by the name of the option, without prefix.
        workers: Number of runs at a time.

    Raises:
        UserError: For a parameter that submitit would take and an array cannot have.
    """
    parameters: dict[str, Any] = {}
    for name, text in cluster_options.items():
        option = f"{PREFIX}{name}={text!r}"
        if name in ONE_PROCESS:
            raise UserError(f"{option}: each run is one process; leave the option out")
        # sbatch reads them from lines of a script: a line break would begin another one, a command's.
        if not text.isprintable() or not text.strip():
            raise UserError(f"{option}: expected a printable word")
        # All else is a text, as sbatch has it: an account may begin with 0, a node be called 1e3.
        parameters[name] = (
            parse_yaml_value(option, text) if name in PARAMETER_TYPES or text in ("true", "false") else text
        )
        if not isinstance(parameters[name], PARAMETER_TYPES.get(name, object)):
            raise UserError(
                f"{option}: expected JSON or a number, such as slurm.setup='[\"module load cuda\"]' or "
                'additional_parameters=\'{"wckey": "me"}\''
            )
    own_extra = {str(name): value for name, value in parameters.get("additional_parameters", {}).items()}
    extra = {"requeue": True, "time": parameters.get("time", DEFAULT_TIME), **own_extra}
    if taken := [key for key in extra if key.replace("_", "-") in RESERVED]:
        raise UserError(
            f"{PREFIX}additional_parameters: cannot have {taken[0]}, which AMP Compare sets itself; leave "
            "it out"
        )
    # true is an option without a value, false one that is left out, such as our requeue
    extra = {name: value for name, value in extra.items() if value is not False}
    # submitit counts ends of time by minutes of its own, and would give up at last.
    parameters |= {"time": NEVER, "additional_parameters": extra}
    return parameters | ({"array_parallelism": workers} if workers else {})


def _report_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of the report's job: those of the runs without GPUs, however written."""

    def without(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if not ONLY_FOR_RUNS.match(name)}

    return without(options) | {"additional_parameters": without(options["additional_parameters"])}
