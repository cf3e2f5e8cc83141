"""The process of a run: started with W&B's sweep environment, stopped politely, never left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from ampcompare.config.load import RESUME_VARIABLE
from ampcompare.config.schema import PlanConfig
from ampcompare.program.files import replacing
from ampcompare.records.sources import CHECKPOINTS
from ampcompare.sweeps.command import build_command
from ampcompare.sweeps.follow import Follower
from ampcompare.sweeps.sweep import Sweep
from ampcompare.sweeps.table import Row

ENDS = ("finished", "failed", "stopped")  # of a run that is not made once more by itself
REST_SECONDS = 5  # for what a program left running
STOP_SECONDS = 30  # from SIGTERM to SIGKILL, as W&B's agent has it
LAST_BYTES, LONGEST = 4096, 200  # of a log
OF_CLIENT = "wandb:"  # lines of W&B's

# A process of its own that outlives a SIGKILL of ours: it knows the process groups of our runs from a pipe
# and ends them when the pipe closes. Else a killed worker's run would go on while another repeats it. What a
# batch system sends to every process of a job is not for it.
_GUARD = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, signal.SIG_IGN)
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for number in (signal.SIGTERM, signal.SIGKILL):
    for group in list(groups):
        try:
            os.killpg(group, number)
        except OSError:
            groups.discard(group)
    if groups and number == signal.SIGTERM:
        time.sleep(5)
"""


class Guard:
    """Ends the runs of this process should it die without doing so itself.

    All goes on without where somebody has killed the guard: runs are worth more than what ends them in an
    emergency.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD],
            stdin=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # a Ctrl-C in the terminal is not for it
        )

    def say(self, change: str, group: int) -> None:
        """Watch a process group from here on ("+"), or no more ("-")."""
        assert self._process.stdin
        with suppress(OSError):
            self._process.stdin.write(f"{change}{group}\n".encode())  # at once whole, from any thread

    def close(self) -> None:
        """There is nothing left to guard."""
        self._process.communicate()


class Run:
    """One running program in a process group of its own; its output goes to a file."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], log: Path, guard: Guard) -> None:
        self._guard = guard
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                words,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        guard.say("+", self._process.pid)

    def wait(self, seconds: float) -> int | None:
        """The exit code, None if it has not ended after `seconds`. A signal's number comes negative."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        # What it left running: W&B's service ends by itself in a moment, anything else is ended.
        until = time.monotonic() + REST_SECONDS
        while self._signal(0):
            if time.monotonic() > until:
                self.kill()
                break
            time.sleep(0.02)
        self._guard.say("-", self._process.pid)
        return code

    def tell(self, number: int) -> bool:
        """Send the program a signal, and not its helpers: W&B's service is needed for a whole record. False
        if it had ended.
        """
        self._process.send_signal(number)  # to a process that it has not found ended
        return self._process.returncode is None

    def kill(self) -> None:
        """End it and all it started, at once."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> bool:
        """Whether there was anybody to get it."""
        try:
            os.killpg(self._process.pid, number)
        except OSError:  # nobody, or a zombie on macOS
            return False
        return True


@dataclass(frozen=True)
class Launch:
    """How the runs of one sweep are started, by a worker or by a job of an array, to which it travels."""

    sweep: Sweep
    folder: Path
    words: tuple[str, ...]  # overrides of the command line, behind every command
    environment: Mapping[str, str]  # what its runs have beside the environment of this process
    here: bool  # whether our own training is run; its exit code tells that it was stopped
    front: tuple[str, ...] = ()  # of every command

    def log(self, run_id: str) -> Path:
        """What the run prints."""
        return self.folder / "logs" / f"{run_id}.log"

    def start(self, row: Row, guard: Guard, gpu: str | None = None) -> Run | None:
        """Start a run. None, with the reason in its log, for what cannot be started."""
        sweep, log = self.sweep, self.log(row.run_id)
        # The file from which W&B's client takes a run's sweep parameters.
        file = self.folder / "wandb" / f"sweep-{sweep.name}" / f"config-{row.run_id}.yaml"
        content = {"wandb_version": 1, **{key: {"value": value} for key, value in planned(row).items()}}
        try:
            _note(self.folder, row.run_id).unlink(missing_ok=True)  # how an earlier start ended is past
            file.parent.mkdir(parents=True, exist_ok=True)
            text = yaml.safe_dump(content, allow_unicode=True, sort_keys=False)
            file.write_text(text, encoding="utf-8")
            words = build_command(sweep.command, sweep.program, row.parameters, file.with_suffix(".json"))
            words += self.words
            if self.here:
                known = PlanConfig.__dataclass_fields__
                words += [f"plan.{key}={value}" for key, value in row.plan.items() if key in known]
            return Run([*self.front, *words], self._environment(row, file, gpu), log, guard)
        except (OSError, ValueError) as problem:  # ValueError: words that no program can be given
            with log.open("a", encoding="utf-8", errors="backslashreplace") as said:
                print(f"cannot be started: {problem}", file=said)
            return None

    def _environment(self, row: Row, parameters_file: Path, gpu: str | None) -> dict[str, str]:
        """The variables of W&B's agent, the record's folder, and whether a server knows this sweep."""
        sweep = self.sweep
        # Our own training looks each time whether an earlier start has left something: its folder may be that
        # of an earlier sweep of this name.
        resumes = self.here or row.starts > 1
        given = {
            "WANDB_SWEEP_ID": sweep.name,
            "WANDB_RUN_ID": row.run_id,
            "WANDB_SWEEP_PARAM_PATH": str(parameters_file),
            "WANDB_DIR": str(self.folder),
            "WANDB_PROJECT": sweep.project,
            "WANDB_ENTITY": sweep.entity,
            "AMPCOMPARE_LOCAL_SWEEP": None if sweep.on_server else sweep.name,
            RESUME_VARIABLE: "auto" if resumes else None,
            "CUDA_VISIBLE_DEVICES": gpu,
            # `ampcompare run` of a command is found also where the environment is not activated.
            "PATH": os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)]),
        }
        # A sweep may be a run's own program: that run's service and its resuming are not those of ours.
        own = ("WANDB_SERVICE", RESUME_VARIABLE, "AMPCOMPARE_LOCAL_SWEEP")
        inherited = {key: value for key, value in os.environ.items() if key not in own}
        found = {key: value for key, value in given.items() if value is not None}
        return {**self.environment, **inherited, **found}

    def is_going_on(self, run_id: str) -> bool:
        """Whether a process of our training has the run, as that of a worker that is taken for dead."""
        lock = self.folder / CHECKPOINTS / run_id / "lock"
        with suppress(Timeout):
            if self.here and lock.is_file():
                with FileLock(lock, blocking=False):
                    pass
            return False
        return True


def _note(folder: Path, run_id: str) -> Path:
    return folder / "logs" / f"{run_id}.ended"


def note_end(folder: Path, run_id: str, state: str) -> None:
    """Write down how a run ended, for whoever takes it over if this process ends now. Raises OSError."""
    with replacing(_note(folder, run_id)) as file:
        file.write(state.encode())


def ended(folder: Path, run_id: str) -> str | None:
    """How a run ended that came to its end: by that note or, where who made the run was killed before it
    could say so, by its record.
    """
    with suppress(OSError, UnicodeDecodeError):
        noted = _note(folder, run_id).read_text(encoding="utf-8")
        if noted in ENDS:
            return noted
    return "finished" if Follower(folder, run_id, None).exit_code() == 0 else None


def planned(row: Row) -> dict[str, Any]:
    """The parameters of a run with what of the plan is its own, in the group where the file has the plan."""
    there = row.parameters.get("plan", {})
    if not isinstance(there, Mapping):  # an option of somebody's program
        return {**row.parameters, **{f"plan.{key}": value for key, value in row.plan.items()}}
    return {**row.parameters, "plan": {**there, **row.plan}} if row.plan else dict(row.parameters)


def of_others() -> dict[str, str]:
    """What other people's programs need beside: without an account W&B's client would refuse to start.

    Our own training says so itself. Raises UserError for credentials of the wrong form.
    """
    if any(os.environ.get(f"WANDB_{name}") for name in ("MODE", "DISABLED", "API_KEY")):
        return {}
    offline = {"WANDB_MODE": "offline"}
    # Half of the CPU time of a worker's start is W&B's client: it is asked where there is something to find.
    config = os.environ.get("WANDB_CONFIG_DIR", "~/.config/wandb")
    places = [os.environ.get("NETRC") or "~/.netrc", "~/_netrc", f"{config}/settings"]
    is_there = any(os.path.exists(os.path.expanduser(place)) for place in places)
    if not is_there and not os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return offline
    from ampcompare.wandb_client.client import end_service, has_account

    try:
        return {} if has_account() else offline
    finally:
        end_service()  # it would live as long as the sweep, and be missed at the end if a signal had ended it


def last_words(log: Path) -> str:
    """The last line that a program printed, nothing where it printed none. W&B's client says good-bye after
    the reason.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LAST_BYTES))
            printed = file.read().decode(errors="replace").splitlines()
    except (OSError, ValueError):
        return ""
    lines = [line.strip() for line in printed if line.strip() and not line.startswith(OF_CLIENT)]
    return lines[-1][:LONGEST] if lines else ""
