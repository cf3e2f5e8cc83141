"""A stand-in for Slurm: its commands on PATH, its signals and its environment, on this machine alone.

`with Slurm(folder) as slurm:` begins a controller in this process; programs that are started with
`slurm.environment()` find `sbatch`, `srun`, `scontrol requeue`, `squeue` and `scancel`: this file, run as a
program. A test says when a job loses its machine (`slurm.preempt`), and waits for what comes of it.

As in Slurm's documentation (from memory of its pages; nothing was compared with a real Slurm):

- sbatch copies the script as it is submitted; `#SBATCH` lines up to the first command, the command line above
  them; an option that it does not know is an error. Each task of an array is a job with an id of its own, the
  first with that of the array.
- `--signal=SIG@SECONDS` goes to every process of the steps (what srun started), not to the batch shell; with
  `B:` to the batch shell alone. At the end of the time SIGCONT and SIGTERM go to every process of the job,
  and SIGKILL after KillWait.
- A job that is preempted is queued again if it was submitted with `--requeue`, as by `scontrol requeue`:
  under its id, from its script's beginning. One that ends by itself meanwhile has ended.

It knows no accounts, limits, memory, GPUs, machines, times or steps of several tasks. A process of a job is
known by its environment, as Slurm knows it by its cgroup.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shlex
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ENDED = ("COMPLETED", "FAILED", "CANCELLED", "PREEMPTED")
COMMANDS = ("sbatch", "srun", "scontrol", "squeue", "scancel")
LOOK_SECONDS = 0.02
FLAGS = set("exclusive no-requeue parsable requeue unbuffered".split())
VALUED = set(
    "array comment cpu-bind cpus-per-gpu cpus-per-task dependency error gpu-bind gpus-per-node".split()
)
VALUED |= set(
    "gpus-per-task gres job-name mem nodes ntasks ntasks-per-node open-mode output partition".split()
)
VALUED |= set("signal time wckey".split())


class BadOption(Exception):
    """What Slurm would refuse, in its words."""


def parse(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Options (flags as "") and what is behind them: the first word that is none, and all that follow it."""
    found: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        name, given, value = word.removeprefix("--").partition("=")
        if name not in FLAGS | VALUED:
            raise BadOption(f"unrecognized option '{word}'")
        found[name] = value if given or name in FLAGS else rest.pop(0)
    return found, rest


def of_script(text: str) -> list[str]:
    """The words of its `#SBATCH` lines, which end at the first command."""
    words: list[str] = []
    for line in text.splitlines()[1:]:
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith("#SBATCH"):
            words += shlex.split(line.removeprefix("#SBATCH"), comments=True)
    return words


def file_name(pattern: str, names: dict[str, object]) -> str:
    """A pattern such as `%A_%a.out`."""
    return re.sub(r"%([a-zA-Z])", lambda found: str(names.get(found[1], found[0])), pattern)


def of_job(cluster: str, job_id: int, *, in_steps: bool = False) -> list[int]:
    """Every process whose environment says that it belongs to the job; only those of its steps, if asked."""
    wanted = {f"SLURM_CLUSTER_NAME={cluster}".encode(), f"SLURM_JOB_ID={job_id}".encode()}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = set((folder / "environ").read_bytes().split(b"\0"))
            ended = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
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


@dataclass
class Job:
    """A job, or one task of an array; `history` has its states and the signals it was sent, in order."""

    id: int
    options: dict[str, str]
    script: Path
    words: list[str]
    env: dict[str, str]
    folder: str
    array_id: int | None = None
    index: int | None = None
    most: int = 0  # of its array at a time; 0: any number
    state: str = "PENDING"
    restarts: int = 0
    history: list[str] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None
    goes: str = ""  # the state that it is to end in, once its processes have gone: it was told to
    killed_at: float = 0.0  # when what is left of it is killed

    @property
    def name(self) -> str:
        """Its id as squeue shows it."""
        return str(self.id) if self.array_id is None else f"{self.array_id}_{self.index}"

    def turn(self, state: str) -> None:
        self.state = state
        self.history.append(state)


class Slurm:
    """The controller. `slots`: jobs at a time; `kill_wait`: seconds from SIGTERM to SIGKILL (Slurm: 30)."""

    def __init__(self, folder: Path, slots: int = 2, kill_wait: float = 30.0) -> None:
        self.folder, self.slots, self.kill_wait = folder, slots, kill_wait
        self.cluster = f"standin-{secrets.token_hex(6)}"
        self.jobs: list[Job] = []
        self.lock = threading.RLock()
        self._closed = threading.Event()
        self._scheduler = threading.Thread(target=self._schedule, name="slurm", daemon=True)

    def __enter__(self) -> Slurm:
        slurm = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                asked = json.loads(self.rfile.readline())
                self.wfile.write(json.dumps(slurm.answer(**asked)).encode() + b"\n")

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        (self.folder / "bin").mkdir(parents=True)
        for name in COMMANDS:
            command, port = self.folder / "bin" / name, self._server.server_address[1]
            command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{__file__}" {port} {name} "$@"\n')
            command.chmod(0o755)
        self._scheduler.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        self._scheduler.join()
        self._server.shutdown()
        self._server.server_close()
        for job in self.jobs:
            send(of_job(self.cluster, job.id), signal.SIGKILL)
            if job.process:
                job.process.wait()

    # What a test asks and does

    def environment(self, **more: str) -> dict[str, str]:
        """That of this process, its commands first on PATH, without what an outer job may have set."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
        return kept | {"PATH": f"{self.folder / 'bin'}{os.pathsep}{kept['PATH']}"} | more

    def find(self, word: str | int) -> list[Job]:
        """The jobs that an id names: one, a task, or all tasks of an array."""
        with self.lock:
            exact = [job for job in self.jobs if job.name == str(word)]
            array = [job for job in self.jobs if str(job.array_id) == str(word)]
            return exact or array or [job for job in self.jobs if str(job.id) == str(word)]

    def job(self, word: str | int) -> Job:
        (found,) = self.find(word)
        return found

    def output(self, job: Job, option: str = "output") -> Path:
        """The file of what it prints."""
        usual = "slurm-%j.out" if job.array_id is None else "slurm-%A_%a.out"
        pattern = job.options.get(option) or job.options.get("output") or usual
        names = {"j": job.id, "A": job.array_id or job.id, "a": job.index, "t": 0}
        return Path(job.folder) / file_name(pattern, names)

    def wait(self, what: Callable[[], bool]) -> None:
        """Until something is so."""
        while not what():
            time.sleep(LOOK_SECONDS)

    def wait_until_ended(self) -> None:
        """Until no job waits or runs."""
        self.wait(lambda: all(job.state in ENDED for job in [*self.jobs]))

    def warn(self, job: Job) -> None:
        """The signal of its `--signal`, as some time before its end; nothing if it asked for none."""
        found = re.fullmatch(r"(?:(B):)?(?:SIG)?(\w+)(?:@\d+)?", job.options.get("signal", ""))
        with self.lock:
            if job.state != "RUNNING" or found is None or job.process is None:
                return
            number = signal.Signals[f"SIG{found[2].upper()}"]
            job.history.append(number.name)
        send([job.process.pid] if found[1] else of_job(self.cluster, job.id, in_steps=True), number)

    def preempt(self, job: Job, seconds: float = 120.0) -> None:
        """Take its machine away: the warning, if it asked for one, and for `seconds` (Slurm: those of
        `--signal`) time to end by itself; then SIGTERM, KillWait, SIGKILL. Queued again if it is to be.
        """
        starts = job.restarts
        self.warn(job)
        until = time.monotonic() + (seconds if "signal" in job.options else 0)
        while job.state == "RUNNING" and job.restarts == starts and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
        with self.lock:
            if job.state == "RUNNING" and job.restarts == starts:
                self.end(job, "REQUEUED" if "requeue" in job.options else "PREEMPTED")

    def end(self, job: Job, goes: str) -> None:
        """Have what runs of it ended: SIGCONT, SIGTERM, after KillWait SIGKILL; then it is as `goes` says."""
        with self.lock:
            if job.state == "RUNNING":
                job.goes, job.killed_at = goes, time.monotonic() + self.kill_wait
                job.history.append("SIGTERM")
                send(of_job(self.cluster, job.id), signal.SIGCONT, signal.SIGTERM)
            elif job.state == "PENDING" and goes != "REQUEUED":
                job.turn(goes)
            elif job.state in ENDED and goes == "REQUEUED":
                self._again(job)

    # The queue. One thread looks at all of it.

    def _again(self, job: Job) -> None:
        job.restarts += 1
        job.process, job.goes = None, ""
        job.turn("PENDING")

    def _schedule(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            with self.lock:
                for job in self.jobs:
                    if job.state == "RUNNING":
                        self._look(job)
                for job in self.jobs:
                    if job.state == "PENDING" and self._may_start(job):
                        self._start(job)

    def _look(self, job: Job) -> None:
        """See whether it has ended. What a script has left behind ends with it."""
        assert job.process
        code = job.process.poll()
        if job.goes:
            left = of_job(self.cluster, job.id)
            if left and time.monotonic() < job.killed_at:
                return
            send(left, signal.SIGKILL)
            job.process.wait()
            self._again(job) if job.goes == "REQUEUED" else job.turn(job.goes)
        elif code is not None:
            send(of_job(self.cluster, job.id), signal.SIGKILL)
            job.turn("COMPLETED" if code == 0 else "FAILED")

    def _may_start(self, job: Job) -> bool:
        running = [other for other in self.jobs if other.state == "RUNNING"]
        of_array = sum(other.array_id == job.array_id for other in running)
        _, *ids = job.options.get("dependency", "").split(":")  # afterany:12:13
        has_room = len(running) < self.slots and not (job.most and of_array >= job.most)
        return has_room and all(other.state in ENDED for word in ids for other in self.find(word))

    def _start(self, job: Job) -> None:
        mode = "ab" if job.options.get("open-mode") == "append" else "wb"
        out, errors = self.output(job), self.output(job, "error")
        own: dict[str, Any] = {
            "CLUSTER_NAME": self.cluster,
            "JOB_ID": job.id,
            "NTASKS": 1,
            "JOB_NUM_NODES": 1,
        }
        own |= dict.fromkeys(("NODEID", "PROCID", "LOCALID"), 0) | {"JOB_NODELIST": "localhost"}
        if job.array_id is not None:
            own |= {"ARRAY_JOB_ID": job.array_id, "ARRAY_TASK_ID": job.index}
        with open(out, mode) as stdout, open(errors, "ab" if errors == out else mode) as stderr:
            job.process = subprocess.Popen(
                ["/bin/sh", "-c", 'exec "$0" "$@"', job.script, *job.words],
                cwd=job.folder,
                env=job.env | {f"SLURM_{name}": str(value) for name, value in own.items()},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        job.turn("RUNNING")

    # What the commands answer

    def answer(self, name: str, words: list[str], cwd: str, env: dict[str, str]) -> dict[str, Any]:
        """Out, err and exit code of a command."""
        try:
            with self.lock:
                return {"out": getattr(self, f"_{name}")(words, cwd, env), "err": "", "code": 0}
        except BadOption as problem:
            return {"out": "", "err": f"{name}: error: {problem}\n", "code": 1}

    def _named(self, words: list[str]) -> list[Job]:
        if found := [job for word in words for job in self.find(word)]:
            return found
        raise BadOption("Invalid job id specified")

    def _sbatch(self, words: list[str], cwd: str, env: dict[str, str]) -> str:
        """Put a job, or each task of an array, into the queue."""
        given, (script, *rest) = parse(words)
        text = (Path(cwd) / script).read_text()
        options = parse(of_script(text))[0] | given
        listed, _, most = options.get("array", "").partition("%")
        begin, _, end = listed.partition("-")
        first = 101 + len(self.jobs)
        spooled = self.folder / f"script-{first}"
        spooled.write_text(text)
        spooled.chmod(0o700)
        options.setdefault("job-name", Path(script).name)
        env = {name: value for name, value in env.items() if not name.startswith("SLURM")}
        for index in range(int(begin), int(end or begin) + 1) if listed else [None]:
            own = () if index is None else (first, index, int(most or 0))
            self.jobs.append(Job(101 + len(self.jobs), options, spooled, rest, env, cwd, *own))
        return f"{first}\n" if "parsable" in options else f"Submitted batch job {first}\n"

    def _scontrol(self, words: list[str], cwd: str, env: dict[str, str]) -> str:
        """`requeue ID`."""
        if words[0] != "requeue":
            raise BadOption(f"this stand-in does not know: scontrol {shlex.join(words)}")
        for job in self._named(words[1:]):
            self.end(job, "REQUEUED")
        return ""

    def _squeue(self, words: list[str], cwd: str, env: dict[str, str]) -> str:
        """`-h -r -a -o FORMAT`: what waits and runs. An option goes before its variable."""
        pattern = words[words.index("-o") + 1] if "-o" in words else env.get("SQUEUE_FORMAT", "%i %j %T")
        states = env.get("SQUEUE_STATES", "PENDING,RUNNING").split(",")
        lines = []
        for job in self.jobs:
            user = job.env.get("LOGNAME")
            if job.state in states and env.get("SQUEUE_USERS", user) == user:
                names = {"i": job.name, "j": job.options["job-name"], "T": job.state}
                lines.append(f"{file_name(pattern, names)}\n")
        return "".join(lines)

    def _scancel(self, words: list[str], cwd: str, env: dict[str, str]) -> str:
        """End jobs for good."""
        for job in self._named(words):
            self.end(job, "CANCELLED")
        return ""


def srun(words: list[str]) -> int:
    """A step of one task, to which the signals that it gets are handed on. Its exit code."""
    options, command = parse(words)
    given = os.environ.get
    names = {"j": given("SLURM_JOB_ID"), "A": given("SLURM_ARRAY_JOB_ID"), "a": given("SLURM_ARRAY_TASK_ID")}
    opened: dict[str, Any] = {
        stream: open(file_name(options[name], names | {"t": 0}), "ab")  # noqa: SIM115
        for stream, name in (("stdout", "output"), ("stderr", "error"))
        if name in options
    }
    env = os.environ | {"SLURM_STEP_ID": "0"}
    child = subprocess.Popen(command, env=env, start_new_session=True, **opened)
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, frame: child.send_signal(number))
    code = child.wait()
    return 128 - code if code < 0 else code


def main(port: str, name: str, *words: str) -> int:
    """One of the commands."""
    if name == "srun":
        return srun([*words])
    message = {"name": name, "words": words, "cwd": os.getcwd(), "env": dict(os.environ)}
    with socket.create_connection(("127.0.0.1", int(port))) as line, line.makefile("rw") as file:
        file.write(json.dumps(message) + "\n")
        file.flush()
        answer = json.loads(file.readline())
    sys.stdout.write(answer["out"])
    sys.stderr.write(answer["err"])
    return int(answer["code"])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
