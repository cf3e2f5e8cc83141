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
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ampcompare.errors import UserError, reason
from ampcompare.runs.run_state import RunState
from ampcompare.runtime.atomic_files import make_folder
from ampcompare.runtime.yaml_io import parse_yaml_value
from ampcompare.sweeps.code_version import changed_code_dates
from ampcompare.sweeps.executors import RunEvent
from ampcompare.sweeps.executors.slurm_task import SlurmTask, make_report, read_end
from ampcompare.sweeps.journal import Journal, SweepRun, SweepState
from ampcompare.sweeps.prepare import PreparedSweep
from ampcompare.sweeps.run_process import MAX_SIGNAL_ENDS, RunLauncher

MAX_TASKS = 1000  # of one array: Slurm's own MaxArraySize is 1001
END_SECONDS = 15  # of the warning's time, for what is left to do when the training has ended
PREFIX = "slurm."
MARK = "ampcompare-"
REPORT = -1  # in place of the index of a run
DEFAULT_TIME = "4:00:00"  # of a run; submitit's own 5 minutes would end most trainings
NEVER = 10**7  # minutes
SQUEUE_SECONDS = 120  # for squeue to answer
NOTES_SECONDS = 1.0  # between two checks of the notes of ended runs
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
    """Submits runs as job arrays, and follows them by their notes and by squeue.

    Args:
        launcher: Starts the runs, within the jobs.
        options: submitit's parameters.
        journal: The sweep's journal, in which each submission is noted.
    """

    slots = MAX_TASKS  # Slurm itself keeps to `--workers` within an array
    has_live_records = True

    def __init__(self, launcher: RunLauncher, options: Mapping[str, Any], journal: Journal) -> None:
        self.options = options
        self._launcher, self._journal = launcher, journal
        self._folder = journal.folder
        self._news: list[RunEvent] = []
        self._not_in_queue: set[int] = set()
        self._cancelled: set[int] = set()
        self._next_squeue = 0.0
        for folder in (jobs_folder(self._folder), self._folder / "cluster" / "ends"):
            make_folder(folder, str(folder))

    def submit(self, runs: Sequence[SweepRun]) -> None:
        """Submit these runs as one array.

        Raises:
            UserError: If sbatch refuses it, or its answer was lost.
        """
        patience = max(1.0, self.options.get("signal_delay_s", 90) - END_SECONDS)
        code = dict(changed_code_dates(self._journal.state))
        tasks = [SlurmTask(self._launcher, run, patience, code) for run in runs]
        indices = [run.index for run in runs]
        job = submit_array(self._journal, self._launcher.sweep.name, self.options, indices, tasks)
        for number, run in enumerate(runs):
            job_id = f"{job}_{number}" if len(runs) > 1 else job  # submitit makes no array of one run
            self._news.append(RunEvent(run.index, RunState.RUNNING, process={"job": job_id}))
        self._next_squeue = time.monotonic() + QUEUE_SECONDS

    def recover(self) -> None:
        """See what became of the jobs that an earlier driver submitted.

        Raises:
            UserError: If squeue cannot be asked and a run may be in its queue.
        """
        state = self._journal.state
        submitted = {index for indices in state.submissions.values() for index in indices}
        jobs = self._jobs_if_needed(state.runs.values(), submitted)
        for run in [*state.runs.values()]:
            if run.is_external or not (run.state is RunState.RUNNING or run.index in submitted):
                continue
            if run.state.is_final or (run.state is RunState.RUNNING and "job" not in run.process):
                continue
            if event := read_end(self._folder, run):
                if run.state is not RunState.RUNNING:
                    self._news.append(RunEvent(run.index, RunState.RUNNING, process={"job": "?"}))
                self._news.append(event)
            elif run.index in jobs and run.state is not RunState.RUNNING:
                # sbatch took it, and the driver did not live to write that down.
                self._news.append(RunEvent(run.index, RunState.RUNNING, process={"job": jobs[run.index]}))
            elif run.index not in jobs and run.state is RunState.RUNNING:
                self._news.append(RunEvent(run.index, RunState.PREEMPTED))

    def poll(self, seconds: float) -> list[RunEvent]:
        """Return what the notes of the jobs and squeue tell, after `seconds` at the latest."""
        deadline = time.monotonic() + seconds
        while not self._news:
            self._poll_jobs()
            left = deadline - time.monotonic()
            if self._news or left <= 0:
                break
            time.sleep(min(NOTES_SECONDS, left))
        news, self._news = self._news, []
        return news

    def cancel(self, run: SweepRun, *, at_once: bool = False) -> None:
        """Cancel the job. Slurm sends it SIGTERM, and SIGKILL after its own KillWait."""
        if "job" in run.process:
            self._cancelled.add(run.index)
            subprocess.run(["scancel", str(run.process["job"])], check=False, timeout=SQUEUE_SECONDS)
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
        return not last and REPORT in jobs_in_queue(self._journal.state)

    def _poll_jobs(self) -> None:
        running = [run for run in self._journal.state.with_state(RunState.RUNNING) if "job" in run.process]
        for run in running:
            if event := read_end(self._folder, run):
                self._news.append(event)
        if self._news or time.monotonic() < self._next_squeue:
            return
        self._next_squeue = time.monotonic() + QUEUE_SECONDS
        try:
            jobs = jobs_in_queue(self._journal.state)
        except UserError:  # squeue does not answer; it may the next time
            return
        gone = {run.index for run in running} - jobs.keys()
        for run in running:
            # Twice: the note of a run that has just ended may come a moment later on a shared drive.
            if run.index in gone & self._not_in_queue:
                by_signal = run.index not in self._cancelled
                is_last = by_signal and run.signal_ends + 1 >= MAX_SIGNAL_ENDS
                state = RunState.FAILED if is_last else RunState.PREEMPTED
                self._news.append(RunEvent(run.index, state, by_signal=by_signal))
        self._not_in_queue = gone

    def _jobs_if_needed(self, runs: Any, submitted: set[int]) -> dict[int, str]:
        """Return the jobs in the queue; squeue is not asked where it could tell nothing."""
        unknown = [
            run
            for run in runs
            if not run.state.is_final
            and not run.is_external
            and (run.index in submitted or "job" in run.process)
            and read_end(self._folder, run) is None
        ]
        return jobs_in_queue(self._journal.state) if unknown else {}


def slurm_factory(
    prepared: PreparedSweep, cluster_options: Mapping[str, str]
) -> Callable[[Journal], SlurmExecutor]:
    """Return a function that makes the executor of a sweep.

    Args:
        prepared: The sweep.
        cluster_options: Options of the command line, `slurm.NAME=VALUE`, by name.

    Raises:
        UserError: If Slurm or submitit is missing, or an array cannot do what the sweep needs.
    """
    sweep, output, options = prepared.sweep, prepared.output, prepared.options
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
        why = "this search depends on the runs that have ended, or has no end"
        raise UserError(f"--cluster slurm: {why}; add --workers N, the number of runs at a time")
    text, path = f"output_dir={str(output)!r}", str(output.absolute())
    if "%" in path or "\\" in path or not path.isprintable():
        raise UserError(f"{text}: expected a printable path without % and \\, which sbatch would replace")
    parameters = submitit_parameters(cluster_options, options.workers)
    _submitit_executor(output, parameters)  # whether there is Slurm, before anything is written

    def make(journal: Journal) -> SlurmExecutor:
        executor = SlurmExecutor(prepared.launcher(journal.folder), parameters, journal)
        if is_stepwise:
            executor.slots = options.workers or 1
        executor.recover()
        return executor

    return make


def jobs_folder(folder: Path) -> Path:
    """Return where submitit keeps its files: the task and the output of each job."""
    return folder / "cluster" / "jobs"


def jobs_in_queue(state: SweepState) -> dict[int, str]:
    """Return the jobs of a sweep that wait or run: their ids by the index of the run, REPORT for the report.

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
        todo = "run the command where squeue works, so that queued runs are not started twice"
        raise UserError(f"--cluster slurm: squeue failed ({why}); {todo}") from None
    jobs: dict[int, str] = {}
    for job, mark in re.findall(rf"^\s*(\d+(?:_\d+)?)\|.*({MARK}\w+)", done.stdout, re.M):
        if mark in submissions:
            indices = submissions[mark] or [REPORT]
            jobs[indices[int(job.partition("_")[2] or 0)]] = job  # submitit makes no array of one run
    return jobs


def submit_array(
    journal: Journal, name: str, options: Mapping[str, Any], indices: Sequence[int], tasks: Sequence[Any]
) -> str:
    """Submit tasks as one array, noted in the journal before sbatch is asked.

    Args:
        journal: The sweep's journal.
        name: Name of the jobs, unless the options have one.
        options: submitit's parameters.
        indices: Runs of the tasks; empty for the report.
        tasks: What the jobs do.

    Returns:
        The id of the job.

    Raises:
        UserError: If sbatch refuses the array, or its answer was lost.
    """
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    os.environ.pop("SBATCH_JOB_NAME", None)  # it would go before the script's, which has the mark
    mark, output = f"{MARK}{secrets.token_hex(6)}", io.StringIO()
    journal.append("submission", mark=mark, indices=[*indices])
    job_name = re.sub(r"[^A-Za-z0-9_.-]", "-", str(options.get("job_name", name)))
    executor = _submitit_executor(journal.folder, {**options, "job_name": f"{job_name}-{mark}"})
    try:
        with contextlib.redirect_stderr(output):  # what sbatch prints is part of our own line
            jobs = executor.submit_array(tasks)
    except (FailedJobError, FailedSubmissionError) as problem:
        lines = [line for line in str(problem).splitlines() if line.strip()]
        why = next((line for line in lines if "error" in line.lower()), lines[0] if lines else "no output")
        is_refused = isinstance(problem, FailedJobError) and lines
        if is_refused and not re.search(CONNECTION_TROUBLE, str(problem), re.I):
            journal.append("submission", mark=mark, indices=None)
            raise UserError(f"--cluster slurm: sbatch refused the job: {why}") from None
        todo = "run the same command again: it submits runs that are neither done nor queued"
        raise UserError(f"--cluster slurm: sbatch's answer was lost ({why}); {todo}") from None
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
        todo = "install it with: pip install 'ampcompare[slurm]'"
        raise UserError(f"--cluster slurm: needs submitit, which is not installed; {todo}") from None
    if missing := [name for name in ("srun", "sbatch") if shutil.which(name) is None]:
        where = "run the command on a machine of the cluster that can submit jobs"
        raise UserError(f"--cluster slurm: {missing[0]} is not on PATH; {where}")
    try:
        executor = SubmititExecutor(jobs_folder(folder))
        executor.update_parameters(**options)
    except (ValueError, TypeError) as problem:
        raise UserError(f"--cluster slurm: {problem}") from None
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
            todo = """such as slurm.setup='["module load cuda"]' or additional_parameters='{"wckey": "me"}'"""
            raise UserError(f"{option}: expected JSON or a number, {todo}")
    own_extra = {str(name): value for name, value in parameters.get("additional_parameters", {}).items()}
    extra = {"requeue": True, "time": parameters.get("time", DEFAULT_TIME), **own_extra}
    if taken := [key for key in extra if key.replace("_", "-") in RESERVED]:
        why = f"cannot have {taken[0]}, which AMP Compare sets itself; leave it out"
        raise UserError(f"{PREFIX}additional_parameters: {why}")
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
