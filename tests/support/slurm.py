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
LOOK_SECONDS = 0.02
FLAGS = {"exclusive", "no-requeue", "parsable", "requeue", "unbuffered"}
KNOWN = FLAGS | set(
    "array comment cpu-bind cpus-per-gpu cpus-per-task dependency error gpu-bind gpus-per-node gpus-per-task "
    "gres job-name mem nodes ntasks ntasks-per-node open-mode output partition signal time wckey".split()
)


class Refused(Exception):
    """What Slurm would refuse, in its words."""


def parse(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Options (flags as "") and what is behind them: the first word that is none, and all that follow it."""
    found: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        name, given, value = word.removeprefix("--").partition("=")
        if name not in KNOWN:
            raise Refused(f"unrecognized option '{word}'")
        found[name] = value if given or name in FLAGS else rest.pop(0)
    return found, rest


def of_script(text: str) -> list[str]:
    """The words of its `#SBATCH` lines, which end at the first command."""
    lines = re.match(r"(?:(?:#.*|\s*)\n)*", text)[0].splitlines()  # type: ignore[index]
    return [word for line in lines for word in shlex.split(line.partition("#SBATCH")[2], comments=True)]


def file_name(pattern: str, **names: object) -> str:
    """A pattern such as `%A_%a.out`."""
    return re.sub(r"%([a-zA-Z])", lambda found: str(names.get(found[1], found[0])), pattern)


def of_job(cluster: str, job_id: int, *, in_steps: bool = False) -> list[int]:
    """Every process whose environment says that it belongs to the job; only those of its steps, if asked."""
    wanted = {f"SLURM_CLUSTER_NAME={cluster}".encode(), f"SLURM_JOB_ID={job_id}".encode()}
    wanted |= {b"SLURM_STEP_ID=0"} if in_steps else set()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = {*(folder / "environ").read_bytes().split(b"\0")}
            if wanted <= words and ") Z " not in (folder / "stat").read_text():
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
    command: list[str]
    env: dict[str, str]
    folder: str
    array_id: int | None = None
    index: int | None = None
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
        self.state, self.goes = state, ""
        self.history.append(state)
        self.restarts += state == "PENDING"


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
                answer = slurm.answer(**json.loads(self.rfile.readline()))
                self.wfile.write(json.dumps(answer).encode() + b"\n")

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        (self.folder / "bin").mkdir(parents=True)
        for name in ("sbatch", "srun", "scontrol", "squeue", "scancel"):
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
        """The jobs that an id names: all tasks of an array, or one."""
        array = [job for job in self.jobs if str(job.array_id) == str(word)]
        return array or [job for job in self.jobs if str(word) in (job.name, str(job.id))]

    def output(self, job: Job, option: str = "output") -> Path:
        """The file of what it prints."""
        usual = "slurm-%j.out" if job.array_id is None else "slurm-%A_%a.out"
        pattern = job.options.get(option) or job.options.get("output") or usual
        return Path(job.folder) / file_name(pattern, j=job.id, A=job.array_id or job.id, a=job.index, t=0)

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
                self.end(job, "PENDING" if "requeue" in job.options else "PREEMPTED")

    def end(self, job: Job, goes: str) -> None:
        """Have what runs of it ended: SIGCONT, SIGTERM, after KillWait SIGKILL; then it is as `goes` says."""
        with self.lock:
            if job.state == "RUNNING":
                job.goes, job.killed_at = goes, time.monotonic() + self.kill_wait
                job.history.append("SIGTERM")
                send(of_job(self.cluster, job.id), signal.SIGCONT, signal.SIGTERM)
            elif (job.state == "PENDING") != (goes == "PENDING"):  # it waits, or it has ended
                job.turn(goes)

    # The queue. One thread looks at all of it.

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
        code, left = job.process.poll(), of_job(self.cluster, job.id) if job.goes else []
        if (job.goes and left and time.monotonic() < job.killed_at) or (not job.goes and code is None):
            return
        send(of_job(self.cluster, job.id), signal.SIGKILL)
        code = job.process.wait()
        job.turn(job.goes or ("FAILED" if code else "COMPLETED"))

    def _may_start(self, job: Job) -> bool:
        running = [other for other in self.jobs if other.state == "RUNNING"]
        most = int(job.options.get("array", "").partition("%")[2] or len(self.jobs))
        _, *ids = job.options.get("dependency", "").split(":")  # afterany:12:13
        has_room = len(running) < self.slots and sum(o.array_id == job.array_id for o in running) < most
        return has_room and all(other.state in ENDED for word in ids for other in self.find(word))

    def _start(self, job: Job) -> None:
        mode = "ab" if job.options.get("open-mode") == "append" else "wb"
        out, errors = self.output(job), self.output(job, "error")
        own: dict[str, Any] = {"CLUSTER_NAME": self.cluster, "JOB_ID": job.id, "JOB_NODELIST": "localhost"}
        own |= {"NTASKS": 1, "JOB_NUM_NODES": 1, "NODEID": 0, "PROCID": 0, "LOCALID": 0}
        if job.array_id is not None:
            own |= {"ARRAY_JOB_ID": job.array_id, "ARRAY_TASK_ID": job.index}
        with open(out, mode) as stdout, open(errors, "ab" if errors == out else mode) as stderr:
            job.process = subprocess.Popen(
                ["/bin/sh", "-c", 'exec "$0" "$@"', *job.command],
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
        except Refused as problem:
            return {"out": "", "err": f"{name}: error: {problem}\n", "code": 1}

    def _sbatch(self, words: list[str], cwd: str, env: dict[str, str]) -> str:
        """Put a job, or each task of an array, into the queue."""
        given, (script, *rest) = parse(words)
        text = (Path(cwd) / script).read_text()
        options = {"job-name": Path(script).name} | parse(of_script(text))[0] | given
        begin, _, end = options.get("array", "").partition("%")[0].partition("-")
        first = 101 + len(self.jobs)
        spooled = self.folder / f"script-{first}"
        spooled.write_text(text)
        spooled.chmod(0o700)
        env = {name: value for name, value in env.items() if not name.startswith("SLURM")}
        for index in range(int(begin), int(end or begin) + 1) if begin else [None]:
            task = () if index is None else (first, index)
            self.jobs.append(Job(101 + len(self.jobs), options, [str(spooled), *rest], env, cwd, *task))
        return f"{first}\n" if "parsable" in options else f"Submitted batch job {first}\n"

    def _scontrol(self, words: list[str], cwd: str, env: dict[str, str]) -> str:
        """`requeue ID`."""
        assert words[0] == "requeue"
        for job in self.find(words[1]):
            self.end(job, "PENDING")
        return ""

    def _squeue(self, words: list[str], cwd: str, env: dict[str, str]) -> str:
        """`-h -r -a -o FORMAT`: what waits and runs. An option goes before its variable."""
        pattern = words[words.index("-o") + 1] if "-o" in words else env.get("SQUEUE_FORMAT", "%i %j %T")
        states = env.get("SQUEUE_STATES", "PENDING,RUNNING").split(",")
        seen = [job for job in self.jobs if job.state in states]
        seen = [job for job in seen if env.get("SQUEUE_USERS") in (None, job.env.get("LOGNAME"))]
        return "".join(f"{file_name(pattern, i=j.name, j=j.options['job-name'], T=j.state)}\n" for j in seen)

    def _scancel(self, words: list[str], cwd: str, env: dict[str, str]) -> str:
        """End jobs for good."""
        for job in self.find(words[0]):
            self.end(job, "CANCELLED")
        return ""


def srun(words: list[str]) -> int:
    """A step of one task, to which the signals that it gets are handed on. Its exit code."""
    options, command = parse(words)
    given = os.environ.get
    names = {"j": given("SLURM_JOB_ID"), "A": given("SLURM_ARRAY_JOB_ID"), "a": given("SLURM_ARRAY_TASK_ID")}
    opened: dict[str, Any] = {
        stream: open(file_name(options[name], t=0, **names), "ab")  # noqa: SIM115
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
