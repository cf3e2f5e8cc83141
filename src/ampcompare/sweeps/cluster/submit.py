"""`ampcompare sweep FILE --cluster slurm`: what is left of a sweep as an array, and its report behind it.

The words of a batch system, `slurm.partition=gpu`, are submitit's parameters. It refuses those it has not.
"""

import contextlib
import dataclasses
import io
import os
import re
import secrets
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rich.console import Console

from ampcompare.config.load import parse_override
from ampcompare.errors import UserError, one_line
from ampcompare.program.console import print_line
from ampcompare.program.yaml_file import read_word
from ampcompare.report.words import plural
from ampcompare.sweeps.answer import report
from ampcompare.sweeps.cluster.array import MARK, REPORT, Array, held
from ampcompare.sweeps.cluster.task import RunTask, make_report
from ampcompare.sweeps.prepare import GRACE_SECONDS, Prepared, Request, prepare
from ampcompare.sweeps.run import EXIT_FAILED_RUNS, launch_of, make_output, print_failed
from ampcompare.sweeps.table import QUEUED, RUNNING, Row

MOST_TASKS = 1000  # at once: Slurm's own MaxArraySize is 1001
END_SECONDS = 15  # of the warning's time, for what is left to do when the training has ended
PREFIX = "slurm."
TIME = "4:00:00"  # of a run, where nobody says; submitit's own 5 minutes would end most trainings
NEVER = 10**7  # minutes
ONE_PROCESS = ("nodes", "ntasks_per_node", "use_srun")
# The queue would not tell which jobs they are, or sbatch not what it has queued.
OURS = ("array", "clusters", "job-name", "parsable", "quiet", "test-only")
# What Slurm's clients say of trouble with the connection: the controller may have taken the jobs.
UNHEARD = "timed out|conne|contact|communicat|socket|messag|receiv|send|bytes|pipe|shut|killed"
READ: dict[str, type] = {"additional_parameters": dict, "setup": list, "teardown": list, "srun_args": list}
READ |= {"array_parallelism": int, "signal_delay_s": int}
OF_RUNS = re.compile(r".*gpu|gres|tres|array_parallelism")  # not of the report


def submit_sweep(
    path: str, words: Sequence[str], console: Console, request: Request, cluster: str, *, fill: bool
) -> int:
    """Submit what is left of the sweep in the file, with `fill` what failed, too.

    Returns 0 once it is submitted. Raises UserError, with nothing submitted, for what cannot be an array, and
    where submitit or the batch system is not there.
    """
    if cluster != "slurm":
        raise UserError(f"--cluster {cluster!r}: expected slurm")
    own, of_runs = split(words)
    ready = prepare(path, of_runs, request)
    _check(ready)
    options, array = parameters(own, request.workers), Array(ready.output.resolve())
    _executor(array, options)  # whether there is one, before anything is written
    make_output(ready.output)
    array.make()
    with held(array.place / "lock") as is_ours:
        if not is_ours:
            raise UserError(f"{array.folder}: another command submits this sweep just now")
        try:
            queue = array.in_queue()
        except UserError as problem:
            raise UserError(f"--cluster slurm: {problem}; nothing was submitted") from None
        ready, kept = array.agreed(ready)
        runs = array.rows(ready, kept, queue)
        if fill:  # as new runs: those that failed stay in the record
            for run in (run for run in runs if run.state == "failed"):
                kept["runs"][run.place] = secrets.token_hex(6)
            runs = array.rows(ready, kept, queue)
        array.write("sweep", kept)
        of = Counter(run.state for run in runs)
        jobs = sorted({job.partition("_")[0] for run, ids in queue.items() if run != REPORT for job in ids})
        said = [f"{ready.sweep.name}: {ready.sweep.method}, {plural(len(runs), 'run')}"]
        said += [f"{of['finished']} of them done before"] if of["finished"] else []
        said += [f"{of['failed']} failed"] if of["failed"] else []
        said += [f"{of[RUNNING]} waiting or running as job {', '.join(jobs)}"] if jobs else []
        lines, head = [*ready.said], ", ".join(said)
        if left := [run for run in runs if run.state == QUEUED][:MOST_TASKS]:
            jobs.append(_submit_runs(array, ready, options, left))
            part = f"{len(left)} of {of[QUEUED]}" if len(left) < of[QUEUED] else f"{len(left)}"
            most = options.get("array_parallelism", len(left))
            at_a_time = f", {most} at a time" if most < len(left) else ""
            time = f"time limit {options['additional_parameters'].get('time')}"
            alone = dataclasses.replace(ready, request=dataclasses.replace(request, workers=None))
            lines.append(f"{head}: {part} submitted as job {jobs[-1]}{at_a_time}, {time}")
            lines.append(f"logs: {array.folder / 'logs'}, those of the jobs in {array.jobs}")
            lines.append(f"to look: squeue -j {','.join(jobs)}, or: {alone.again('--missing')}")
        else:
            lines.append(f"{head}; nothing {'new was submitted' if jobs else 'is left to run'}")
        for line in lines:
            print_line(console, one_line(line))
        if jobs and (left or REPORT not in queue):
            behind_all = {**of_report(options), "dependency": f"afterany:{':'.join(jobs)}"}
            last = _submit(array, REPORT, behind_all, [], [partial(make_report, ready.sweep, array.folder)])
            where = array.folder / "report"
            print_line(console, one_line(f"report: job {last}, behind the last of them, into {where}"))
    if jobs:
        return 0
    print_failed(console, [run.run_id for run in runs if run.state == "failed"], len(runs), array.folder)
    status = report(console, ready.sweep, array.folder)
    return EXIT_FAILED_RUNS if of["failed"] else status


def _submit_runs(array: Array, ready: Prepared, options: Mapping[str, Any], left: Sequence[Row]) -> str:
    launch = launch_of(ready, array.folder)
    patience = max(1.0, options.get("signal_delay_s", 90) - END_SECONDS)
    tasks = [RunTask(launch, row, patience) for row in left]
    return _submit(array, ready.sweep.name, options, [row.run_id for row in left], tasks)


def _executor(array: Array, options: Mapping[str, Any]) -> Any:
    """sbatch, by submitit. Raises UserError where that or the batch system is not there, and for words that
    submitit has not.
    """
    try:
        from submitit.slurm.slurm import SlurmExecutor
    except ImportError:
        todo = "needs submitit, which is not installed; install it with: pip install 'ampcompare[slurm]'"
        raise UserError(f"--cluster slurm: {todo}") from None
    if missing := [name for name in ("srun", "sbatch") if shutil.which(name) is None]:
        where = "run this on a machine of the cluster that can submit"
        raise UserError(f"--cluster slurm: there is no {missing[0]} on PATH; {where}")
    try:
        executor = SlurmExecutor(array.jobs)
        executor.update_parameters(**options)
    except (ValueError, TypeError) as problem:
        raise UserError(f"--cluster slurm: {problem}") from None
    return executor


def _submit(
    array: Array, name: str, options: Mapping[str, Any], runs: Sequence[str], tasks: Sequence[Any]
) -> str:
    """An array, noted before sbatch is asked; returns its job's id. Raises UserError."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    os.environ.pop("SBATCH_JOB_NAME", None)  # it would go before the script's, which has the mark
    mark, said = f"{MARK}{secrets.token_hex(6)}", io.StringIO()
    note = array.write(mark, {"runs": [*runs]})
    job_name = re.sub(r"[^A-Za-z0-9_.-]", "-", str(options.get("job_name", name)))
    executor = _executor(array, {**options, "job_name": f"{job_name}-{mark}"})
    try:
        with contextlib.redirect_stderr(said):  # what sbatch says is part of our own line
            jobs = executor.submit_array(tasks)
    except (FailedJobError, FailedSubmissionError) as problem:
        lines = [line for line in str(problem).splitlines() if line.strip()]
        why = next((line for line in lines if "error" in line.lower()), lines[0] if lines else "no word")
        if isinstance(problem, FailedJobError) and lines and not re.search(UNHEARD, str(problem), re.I):
            note.unlink()
            raise UserError(f"--cluster slurm: sbatch refused it: {why}") from None
        todo = "the same command again submits what is neither done nor in the queue"
        raise UserError(f"--cluster slurm: sbatch's answer was lost ({why}); {todo}") from None
    sys.stderr.write(said.getvalue())
    return str(jobs[0].job_id).partition("_")[0]


def _check(ready: Prepared) -> None:
    """Raises UserError for what an array, whose jobs do not know of each other, cannot do, and for a folder
    in which the sweep was run without.
    """
    sweep, output, request = ready.sweep, ready.output, ready.request
    needs = {
        "--storage": request.storage,
        "--until-decided": request.until_decided,
        "--grace": request.grace_seconds != GRACE_SECONDS,
        f"method {sweep.method}": sweep.learns,
        "early_terminate": sweep.hyperband,
    }
    if asked := next((option for option, is_asked in needs.items() if is_asked), None):
        alone = "a job array is all submitted at once and has no database; leave --cluster out for it"
        raise UserError(f"--cluster slurm: goes without {asked}: {alone}")
    if sweep.total() is None:
        raise UserError("--cluster slurm: a random search needs run_cap, the number of its runs")
    said, place = f"output_dir={str(output)!r}", str(output.absolute())
    if "%" in place or "\\" in place or not place.isprintable():
        raise UserError(f"{said}: expected a printable path without % and \\, which mean something to sbatch")
    has_begun = Array(output).has_begun
    # With --storage its database is elsewhere; the parameters of its runs are here.
    was_run = not has_begun and any((output / "wandb" / f"sweep-{sweep.name}").glob("config-*.yaml"))
    if was_run or (output / "sweep.db").exists():
        todo = "go on with --fill" if has_begun else "leave --cluster out"
        raise UserError(f"{said}: a sweep was run there without --cluster; name another folder, or {todo}")


def split(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The batch system's words by name, and those of the runs."""
    pairs = [(word, *parse_override(word)) for word in words]
    own = {key.removeprefix(PREFIX): value for _, key, value in pairs if key.startswith(PREFIX)}
    return own, [word for word, key, _ in pairs if not key.startswith(PREFIX)]


def parameters(given: Mapping[str, str], workers: int | None = None) -> dict[str, Any]:
    """The words as submitit's parameters; `workers` is the most runs at a time. Raises UserError for what
    submitit would take and an array cannot have.
    """
    found: dict[str, Any] = {}
    for name, text in given.items():
        said = f"{PREFIX}{name}={text!r}"
        if name in ONE_PROCESS:
            raise UserError(f"{said}: a run of the array is one process; leave it out")
        # sbatch reads them from lines of a script: a line break would begin another one, a command's.
        if not text.isprintable() or not text.strip():
            raise UserError(f"{said}: expected a printable word")
        # All else is a text, as sbatch has it: an account may begin with 0, a node be called 1e3.
        found[name] = read_word(said, text) if name in READ or text in ("true", "false") else text
        if not isinstance(found[name], READ.get(name, object)):
            todo = """such as slurm.setup='["module load cuda"]' or additional_parameters='{"wckey": "me"}'"""
            raise UserError(f"{said}: expected JSON or a number, {todo}")
    given_so = {str(name): value for name, value in found.get("additional_parameters", {}).items()}
    extra = {"requeue": True, "time": found.get("time", TIME), **given_so}
    if taken := [key for key in extra if key.replace("_", "-") in OURS]:
        why = f"goes without {taken[0]}, which this command has to say"
        raise UserError(f"{PREFIX}additional_parameters: {why}")
    # true is an option without a value, false one that is left out, such as our requeue
    extra = {name: value for name, value in extra.items() if value is not False}
    # submitit counts ends of time by minutes of its own, and would give up at last.
    found |= {"time": NEVER, "additional_parameters": extra}
    return found | ({"array_parallelism": workers} if workers else {})


def of_report(found: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of the job that makes the report: the runs' own, but for GPUs, however written."""

    def without(options: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in options.items() if not OF_RUNS.match(name)}

    return without(found) | {"additional_parameters": without(found["additional_parameters"])}
