"""The process of a run: start it and end it.

`RunLauncher` starts a run, or several in one process, with the environment that `wandb agent` gives it.
`RunProcess` is the running program, and `SeriesProcess` (series_process.py) has its runs. Executors use them
on the machine on which the run happens.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from ampcompare.config.load import RESUME_VARIABLE
from ampcompare.config.schema import ONE_ULP, PERTURBATION, PlanConfig
from ampcompare.run_series import FLAG, progress_file
from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.command_macros import build_command
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.process_guard import ProcessGuard, heeds_sigterm, note_stop, write_end
from ampcompare.sweeps.run_end import DRIVER, SIGNAL_CODES, RunEnd
from ampcompare.sweeps.series_process import POLL_SECONDS, SeriesProcess, end_file_of
from ampcompare.sweeps.sweep import CHAOS, SEED, Sweep

log = logging.getLogger(__name__)

STOP_SECONDS = 30.0  # between SIGTERM and SIGKILL, as for W&B's agent
LEFTOVER_SECONDS = 5.0  # for processes that a program leaves running when it ends
# A scheduler that signals all processes of a job may reach the run before the process that started it.
SAME_SIGNAL_SECONDS = 2.0
LAST_BYTES, MAX_LINE_CHARS = 4096, 200  # of a log
WANDB_LINES = "wandb:"  # how lines of W&B's client begin
RECORD_LINE, RECORD_LINES = "record: ", 5  # how a run's last lines begin, and how many there are at most
# The ids of all runs of a process that trains several: its environment has W&B's variable of the first one.
SERIES_VARIABLE = "AMPCOMPARE_SERIES"
SERIES = "series"  # folder in the sweep's output folder: the runs of each process that trains several
CODE_KEY = "changed_code"  # key in the config of runs that were started after the user's code changed


class RunProcess:
    """A running program in a process group of its own. Its output goes to a file.

    Args:
        command: The program and its arguments.
        environment: All its environment variables.
        log: The file to which its output is appended.
        guard: Ends it if this process dies.
        facts: Where the guard then notes that it has asked the program to end; None: nowhere.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        guard: ProcessGuard,
        facts: Path | None = None,
    ) -> None:
        self._guard = guard
        self._exit_code: int | None = None
        self._ended_at = 0.0  # by time.monotonic
        self._asked_at: float | None = None  # by time.time
        self._asked_by = DRIVER
        self._kill_at: float | None = None
        self._ignores_stop = False
        self.end: RunEnd | None = None
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        guard.watch(self.pid, facts)

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its process group."""
        return self._process.pid

    def poll(self) -> RunEnd | None:
        """Return the facts about the end once the program and all its processes have ended.

        W&B's service ends shortly after its program. Other processes that the program left are killed after
        LEFTOVER_SECONDS. A program that was asked to stop is killed when its time is over.

        If a signal ended the program, a stop request within SAME_SIGNAL_SECONDS counts as the reason.

        Returns:
            The facts; None while something is running.
        """
        if self.end is not None:
            return self.end
        now = time.monotonic()
        if self._exit_code is None:
            if self._kill_at is not None and now > self._kill_at:
                self.kill()
            self._exit_code = self._process.poll()
            if self._exit_code is None:
                return None
            self._ended_at = now
        if _is_group_running(self.pid):
            if now > self._ended_at + LEFTOVER_SECONDS:
                self.kill()
            return None
        may_be_asked = self._exit_code in SIGNAL_CODES and self._asked_at is None
        if may_be_asked and now < self._ended_at + SAME_SIGNAL_SECONDS:
            return None
        asked_by = None if self._asked_at is None else self._asked_by
        self.end = RunEnd(self._exit_code, self._asked_at, asked_by, self._ignores_stop, ended_at=time.time())
        self._guard.forget(self.pid)
        return self.end

    def stop(
        self, number: int = signal.SIGTERM, patience: float = STOP_SECONDS, asked_by: str = DRIVER
    ) -> None:
        """Ask the program to end, and kill it if it has not ended after `patience` seconds.

        The signal goes to the program alone: W&B's service has to complete the record.

        Args:
            number: The signal.
            patience: In seconds.
            asked_by: Who asks, as in `RunEnd`.
        """
        if self._asked_at is not None or self.end is not None:
            return
        asked_at = time.time()
        ignores_stop = False
        if self._exit_code is None:
            ignores_stop = number == signal.SIGTERM and not heeds_sigterm(self.pid)
            self._process.send_signal(number)  # no effect if the process has ended already
        has_ended = self._process.returncode is not None
        if has_ended and self._process.returncode not in SIGNAL_CODES:
            return  # it ended by itself, before it was asked to
        self._asked_at, self._asked_by = asked_at, asked_by
        self._ignores_stop = ignores_stop and not has_ended
        self._kill_at = time.monotonic() + patience

    def kill(self) -> None:
        """Kill the program and all its processes at once."""
        _send_to_group(self.pid, signal.SIGKILL)


@dataclass(frozen=True)
class RunLauncher:
    """Starts the runs of one sweep, on this machine or in the job or task to which it travels.

    Attributes:
        folder: Output folder of the sweep.
        overrides: `key=value` words that are added to every command.
        environment: Variables of the runs, in addition to those of this process.
        trains_here: Whether the runs are our own training, which has an option for the plan and resumes.
        prefix: Arguments before every command.
    """

    sweep: Sweep
    folder: Path
    overrides: tuple[str, ...]
    environment: Mapping[str, str]
    trains_here: bool
    prefix: tuple[str, ...] = ()

    def log_file(self, run_id: str) -> Path:
        """Return the file for the output of the run."""
        return self.folder / "logs" / f"{run_id}.log"

    def start(
        self,
        runs: Sequence[SweepRun],
        guard: ProcessGuard,
        gpu: str | None = None,
        code: Mapping[str, str] | None = None,
        *,
        is_requeued: bool = False,
    ) -> SeriesProcess | None:
        """Start a process that trains these runs one after the other.

        Args:
            runs: The runs; several may differ only in the seed. With `starts` above 0, an earlier start of a
                run may have left a checkpoint.
            guard: Ends the process if this one dies.
            gpu: Value of CUDA_VISIBLE_DEVICES; None leaves it as it is.
            code: Dates of the user's files that changed since the sweep began, for the records of the runs.
            is_requeued: Whether this start of the runs has begun before, in a job that Slurm has requeued.

        Returns:
            The process; None if it cannot be started. Then the log of the first run has the reason, and the
            facts about its end say so.
        """
        first = runs[0]
        facts = end_file_of(self.folder, first)
        try:
            for run in runs:  # of this start before Slurm requeued its job
                end_file_of(self.folder, run).unlink(missing_ok=True)
            command = self._command(first, code)
            environment = self._environment(first, gpu, is_requeued=is_requeued)
            file = None
            if len(runs) > 1:
                file = self._write_series(runs, environment, gpu, code)
                command += [FLAG, str(file)]
                environment[SERIES_VARIABLE] = ",".join(run.run_id for run in runs)
            process = RunProcess(command, environment, self.log_file(first.run_id), guard, facts)
        except (OSError, ValueError) as problem:  # ValueError: a NUL in an argument
            self._note_failed_start(first, facts, problem)
            return None
        return SeriesProcess(process, runs, self.folder, guard, file)

    def _write_series(
        self,
        runs: Sequence[SweepRun],
        environment: Mapping[str, str],
        gpu: str | None,
        code: Mapping[str, str] | None,
    ) -> Path:
        """Write the file that lists the runs of a process (`run_series`), and return the file.

        Args:
            environment: The variables of the process.
            gpu: As in `start`.
            code: As in `start`.
        """
        first, entries = runs[0], []
        for run in runs:
            self._write_parameters(run, code)
            own = self._environment(run, gpu)
            entries.append(
                {
                    "overrides": [f"{SEED}={run.parameters[SEED]}", *self._plan_words(run)],
                    "environment": {k: v for k, v in own.items() if environment.get(k) != v},
                    "log": str(self.log_file(run.run_id)),
                }
            )
        file = self.folder / SERIES / f"{first.run_id}-{first.last_start}.json"
        file.parent.mkdir(exist_ok=True)
        # A process of this start may have left its progress: a driver was killed before it wrote the start
        # down, or Slurm has requeued the job.
        progress_file(file).unlink(missing_ok=True)
        file.write_text(json.dumps(entries, indent=1), encoding="utf-8")
        return file

    def _note_failed_start(self, run: SweepRun, facts: Path, problem: Exception) -> None:
        log = self.log_file(run.run_id)
        with suppress(OSError), log.open("a", encoding="utf-8", errors="backslashreplace") as output:
            print(f"cannot be started: {problem}", file=output)
        write_end(facts, RunEnd(is_started=False).facts())

    def _parameters_file(self, run: SweepRun) -> Path:
        """Return the file from which W&B's client takes a run's sweep parameters."""
        return self.folder / "wandb" / f"sweep-{self.sweep.name}" / f"config-{run.run_id}.yaml"

    def _write_parameters(self, run: SweepRun, code: Mapping[str, str] | None) -> Path:
        """Write the file with a run's sweep parameters, make the folder of its log, and return the file."""
        file = self._parameters_file(run)
        values = recorded_parameters(run) | ({CODE_KEY: dict(code)} if code else {})
        content = {"wandb_version": 1, **{key: {"value": value} for key, value in values.items()}}
        self.log_file(run.run_id).parent.mkdir(parents=True, exist_ok=True)
        file.parent.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(content, allow_unicode=True, sort_keys=False)
        file.write_text(text, encoding="utf-8")
        return file

    def _command(self, run: SweepRun, code: Mapping[str, str] | None) -> list[str]:
        """Return the words of a run's command, after writing the files that it reads."""
        sweep, file = self.sweep, self._write_parameters(run, code)
        command = build_command(sweep.command, sweep.program, run.parameters, file.with_suffix(".json"))
        command += self.overrides
        if self.trains_here:
            command += self._plan_words(run)
            command += [f"{PERTURBATION}={ONE_ULP}"] if run.plan.get("arm") == CHAOS else []
        return [*self.prefix, *command]

    @staticmethod
    def _plan_words(run: SweepRun) -> list[str]:
        """Return the overrides with a run's part of the plan."""
        known = PlanConfig.__dataclass_fields__
        return [f"plan.{key}={value}" for key, value in run.plan.items() if key in known]

    def _environment(self, run: SweepRun, gpu: str | None, *, is_requeued: bool = False) -> dict[str, str]:
        """Return the variables of W&B's agent, the record's folder, and whether a server knows the sweep."""
        sweep = self.sweep
        # Our own training always looks for an earlier start: its folder may be that of an earlier sweep.
        resumes = self.trains_here or run.starts > 0 or is_requeued
        given = {
            "WANDB_SWEEP_ID": sweep.name,
            "WANDB_RUN_ID": run.run_id,
            "WANDB_SWEEP_PARAM_PATH": str(self._parameters_file(run)),
            "WANDB_DIR": str(self.folder),
            "WANDB_PROJECT": sweep.project,
            "WANDB_ENTITY": sweep.entity,
            "AMPCOMPARE_LOCAL_SWEEP": None if sweep.on_server else sweep.name,
            RESUME_VARIABLE: "auto" if resumes else None,
            "CUDA_VISIBLE_DEVICES": gpu,
            # `ampcompare run` of a command is found also where the environment is not activated.
            "PATH": os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)]),
        }
        # A sweep may itself be the program of a run: that run's service and resuming are not for these runs.
        own = ("WANDB_SERVICE", RESUME_VARIABLE, "AMPCOMPARE_LOCAL_SWEEP", SERIES_VARIABLE)
        inherited = {key: value for key, value in os.environ.items() if key not in own}
        known = {key: value for key, value in given.items() if value is not None}
        return {**self.environment, **inherited, **known}


def end_leftovers(runs: Sequence[SweepRun], folder: Path, *, announces: bool = False) -> None:
    """End the processes that runs or a killed driver left on this machine, and wait for their end.

    The programs in the journal get SIGTERM and have STOP_SECONDS to save a checkpoint. Processes that they
    started (with the run's id and this folder in their environment) have LEFTOVER_SECONDS more: W&B's
    service completes the record. Then all are killed. The facts about the end of each run say that it was
    asked to end.

    Args:
        folder: Output folder of the sweep.
        announces: Whether to tell the user about the wait.
    """
    asked_at = time.time()
    started = {(run.process.get("pid"), run.process.get("process_started")) for run in runs}
    found = _processes_of(runs, folder, started)
    for run in runs:
        pid = run.process.get("pid")
        is_running = run.state is RunState.RUNNING and (pid is None or heeds_sigterm(pid))
        has_begun = run.is_startable and run.run_id in found.values()  # though the journal does not say so
        if is_running or has_begun:
            note_stop(end_file_of(folder, run), asked_at, DRIVER)
    left = [*found]
    if not left:
        return
    if announces:
        processes = "1 process" if len(left) == 1 else f"{len(left)} processes"
        log.info(f"waiting for {processes} left over from a sweep command that was killed")
    # By the pid alone: when the machine's clock is set, the start times of processes change.
    programs = [process for process in left if process.pid in {pid for pid, _ in started}]
    for process in programs:
        with suppress(psutil.Error):
            process.terminate()
    _wait_for(programs, STOP_SECONDS)
    left = _wait_for(left, LEFTOVER_SECONDS)
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    _wait_for(left, LEFTOVER_SECONDS)


def _processes_of(
    runs: Sequence[SweepRun], folder: Path, started: Container[tuple[Any, Any]]
) -> dict[psutil.Process, str | None]:
    """Return the processes of runs on this machine, with the id of the run in their environment."""
    run_ids = {run.run_id for run in runs}
    found: dict[psutil.Process, str | None] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_program = (process.pid, process.create_time()) in started
            environment = {} if is_program else process.environ()
            run_id = environment.get("WANDB_RUN_ID")
            marks = {run_id, *environment.get(SERIES_VARIABLE, "").split(",")}
            is_marked = run_ids & marks and environment.get("WANDB_DIR") == str(folder)
            if (is_program or is_marked) and process.pid != os.getpid() and not _has_ended(process):
                found[process] = run_id
    return found


def _wait_for(processes: Sequence[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait for the end of these processes, at most `seconds`; return those that still run."""
    deadline = time.monotonic() + seconds
    while (left := [p for p in processes if not _has_ended(p)]) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return left


def _has_ended(process: psutil.Process) -> bool:
    """Return whether a process is gone, or a zombie: a container may have no process that collects them."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def recorded_parameters(run: SweepRun) -> dict[str, Any]:
    """Return a run's parameters with its part of the plan, in the group where the file has the plan."""
    there = run.parameters.get("plan", {})
    if not isinstance(there, Mapping):  # an option of the user's program that is called so
        return {**run.parameters, **{f"plan.{key}": value for key, value in run.plan.items()}}
    return {**run.parameters, "plan": {**there, **run.plan}} if run.plan else dict(run.parameters)


def offline_environment() -> dict[str, str]:
    """Return WANDB_MODE=offline for other programs where no W&B account is known.

    Without an account W&B's client would refuse to start them. Our own training decides for itself.

    Raises:
        UserError: If the credentials have the wrong form.
    """
    if any(os.environ.get(f"WANDB_{name}") for name in ("MODE", "DISABLED", "API_KEY")):
        return {}
    offline = {"WANDB_MODE": "offline"}
    # Importing W&B's client is half of the CPU time of a driver's start, so the files are checked first.
    config = os.environ.get("WANDB_CONFIG_DIR", "~/.config/wandb")
    paths = [os.environ.get("NETRC") or "~/.netrc", "~/_netrc", f"{config}/settings"]
    is_there = any(os.path.exists(os.path.expanduser(path)) for path in paths)
    if not is_there and not os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return offline
    from ampcompare.wandb_client.client import end_service, has_account

    try:
        return {} if has_account() else offline
    finally:
        end_service()  # else it would run as long as the sweep


def last_line(log: Path) -> str:
    """Return the last line that a program printed, or an empty text.

    Lines of W&B's client and a run's lines about its record are skipped: they come after the reason of a
    failure.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LAST_BYTES))
            printed = file.read().decode(errors="replace").splitlines()
    except (OSError, ValueError):
        return ""
    lines = [line.strip() for line in printed if line.strip() and not line.startswith(WANDB_LINES)]
    for index in range(len(lines) - 1, max(-1, len(lines) - 1 - RECORD_LINES), -1):
        if lines[index].startswith(RECORD_LINE):
            lines = lines[:index]
            break
    return lines[-1].removeprefix("error: ")[:MAX_LINE_CHARS] if lines else ""


def _is_group_running(group: int) -> bool:
    """Return whether a process group has a member that has not ended."""
    if not _send_to_group(group, 0):
        return False
    for pid in psutil.pids():
        with suppress(OSError, psutil.Error):
            if os.getpgid(pid) == group and not _has_ended(psutil.Process(pid)):
                return True
    return False


def _send_to_group(group: int, number: int) -> bool:
    """Send a signal to a process group; return whether the group exists."""
    try:
        os.killpg(group, number)
    except OSError:  # no process, or a zombie on macOS
        return False
    return True
