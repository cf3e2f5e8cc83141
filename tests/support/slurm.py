"""A stand-in for Slurm: its commands on PATH, its signals and its environment, on this machine alone.

`with Slurm(folder) as slurm:` begins a controller in this process; programs that are started with
`slurm.environment()` find `sbatch`, `srun`, `scontrol requeue`, `scancel` and `squeue`: this file, run as a
program. A
test says when a job is warned that it loses its machine (`slurm.warn`), and waits for what comes of it.

As in Slurm's documentation (from memory of its pages; nothing was compared with a real Slurm):

- sbatch copies the script as it is submitted; `#SBATCH` lines up to the first command, the command line above
  them; an option that it does not know is an error. Each task of an array is a job with an id of its own, the
  first with that of the array.
- `--signal=SIG@SECONDS` goes to every process of the steps (what srun started), not to the batch shell; with
  `B:` to the batch shell alone.
- A job that is queued again gets SIGCONT and SIGTERM, all its processes; when they have gone it starts under
  its id, from its script's beginning.

It knows no accounts, limits, memory, GPUs, machines, times or steps of several tasks. A process of a job is
known by its environment, as Slurm knows it by its cgroup.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

OPEN = ("PENDING", "RUNNING")
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
    """Return the options in the `#SBATCH` lines, which end at the first command."""
    lines = re.match(r"(?:(?:#.*|\s*)\n)*", text)[0].splitlines()  # type: ignore[index]
    return [word for line in lines for word in shlex.split(line.partition("#SBATCH")[2], comments=True)]


def file_name(pattern: str, **names: object) -> str:
    """Return the file name of a pattern such as `%A_%a.out`."""
    return re.sub(r"%([a-zA-Z])", lambda found: str(names.get(found[1], found[0])), pattern)


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
    history: list[str] = field(default_factory=lambda: ["PENDING"])
    process: subprocess.Popen[bytes] | None = None
    is_requeued: bool = False  # once its processes have gone

    @property
    def state(self) -> str:
        return next(word for word in reversed(self.history) if not word.startswith("SIG"))

    @property
    def restarts(self) -> int:
        return self.history.count("PENDING") - 1

    @property
    def name(self) -> str:
        """Its id as squeue shows it."""
        return str(self.id) if self.array_id is None else f"{self.array_id}_{self.index}"


class Slurm:
    """The controller. `slots`: jobs at a time."""

    def __init__(self, folder: Path, slots: int = 2) -> None:
        self.folder, self.slots = folder, slots
        self.cluster = f"standin-{secrets.token_hex(6)}"
        self.jobs: list[Job] = []
        self.lock = threading.RLock()
        self._closed = threading.Event()
        self._listener = Listener(("127.0.0.1", 0))
        self._scheduler = threading.Thread(target=self._schedule, name="slurm", daemon=True)

    def __enter__(self) -> Slurm:
        (self.folder / "bin").mkdir(parents=True)
        for name in ("sbatch", "srun", "scontrol", "scancel", "squeue"):
            command, port = self.folder / "bin" / name, self._listener.address[1]
            command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{__file__}" {port} {name} "$@"\n')
            command.chmod(0o755)
        threading.Thread(target=self._listen, daemon=True).start()
        self._scheduler.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        self._scheduler.join()
        self._listener.close()
        for job in self.jobs:
            self._send(job, signal.SIGKILL)
            if job.process:
                job.process.wait()

    # What a test asks and does

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment with the fake commands first on PATH, without variables of an outer job."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
        return kept | {"PATH": f"{self.folder / 'bin'}{os.pathsep}{kept['PATH']}"} | more

    def find(self, word: str | int) -> list[Job]:
        """Return the jobs with an id: all tasks of an array, or one."""
        array = [job for job in self.jobs if str(job.array_id) == str(word)]
        return array or [job for job in self.jobs if str(word) in (job.name, str(job.id))]

    def output(self, job: Job, option: str = "output") -> Path:
        """Return the file for a job's output."""
        usual = "slurm-%j.out" if job.array_id is None else "slurm-%A_%a.out"
        pattern = job.options.get(option) or job.options.get("output") or usual
        return Path(job.folder) / file_name(pattern, j=job.id, A=job.array_id or job.id, a=job.index, t=0)

    def wait(self, what: Callable[[], bool]) -> None:
        """Until something is so."""
        while not what():
            time.sleep(LOOK_SECONDS)

    def wait_until_ended(self) -> None:
        """Until no job waits or runs."""
        self.wait(lambda: not any(job.state in OPEN for job in [*self.jobs]))

    def warn(self, job: Job) -> None:
        """Send a job that runs the signal of its `--signal`, as some time before it loses its machine."""
        to_shell, name = re.fullmatch(r"(B:)?(?:SIG)?(\w+)@\d+", job.options["signal"]).groups()  # type: ignore[union-attr]
        number = signal.Signals[f"SIG{name.upper()}"]
        with self.lock:
            assert job.process
            job.history.append(number.name)
            if to_shell:
                job.process.send_signal(number)
            else:
                self._send(job, number, in_steps=True)

    def cancel(self, word: str) -> None:
        """Take jobs that wait out of the queue."""
        with self.lock:
            for job in self.find(word):
                job.history.append("CANCELLED")

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
        if job.process.poll() is not None and not (job.is_requeued and self._processes(job)):
            self._send(job, signal.SIGKILL)
            ended = "FAILED" if job.process.returncode else "COMPLETED"
            job.history.append("PENDING" if job.is_requeued else ended)
            job.is_requeued = False

    def _may_start(self, job: Job) -> bool:
        running = [other for other in self.jobs if other.state == "RUNNING"]
        most = int(job.options.get("array", "").partition("%")[2] or len(self.jobs))
        _, *ids = job.options.get("dependency", "").split(":")  # afterany:12:13
        open_ones = [
            other for word in ids for other in self.find(word) if other.state in ("PENDING", "RUNNING")
        ]
        same = sum(other.array_id == job.array_id for other in running)
        return len(running) < self.slots and same < most and not open_ones

    def _start(self, job: Job) -> None:
        mode = "ab" if job.options.get("open-mode") == "append" else "wb"
        out, errors = self.output(job), self.output(job, "error")
        own: dict[str, Any] = {"CLUSTER_NAME": self.cluster, "JOB_ID": job.id, "JOB_NODELIST": "localhost"}
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
        job.history.append("RUNNING")

    def _processes(self, job: Job, *, in_steps: bool = False) -> list[int]:
        """Every process of a job; only those of its steps, if asked."""
        wanted = {f"SLURM_CLUSTER_NAME={self.cluster}".encode(), f"SLURM_JOB_ID={job.id}".encode()}
        wanted |= {b"SLURM_STEP_ID=0"} if in_steps else set()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = {*(folder / "environ").read_bytes().split(b"\0")}
                if wanted <= words and ") Z " not in (folder / "stat").read_text():
                    found.append(int(folder.name))
        return found

    def _send(self, job: Job, *numbers: int, in_steps: bool = False) -> None:
        """Each signal to every process of a job."""
        for number in numbers:
            for pid in self._processes(job, in_steps=in_steps):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    # What the commands answer

    def _listen(self) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(OSError, EOFError), self._listener.accept() as line:
                name, *asked = line.recv()
                try:
                    with self.lock:
                        answer = getattr(self, f"_{name}")(*asked), "", 0
                except Refused as problem:
                    answer = "", f"{name}: error: {problem}\n", 1
                line.send(answer)

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
            job.is_requeued = True
            job.history.append("SIGTERM")
            self._send(job, signal.SIGCONT, signal.SIGTERM)
        return ""

    def _scancel(self, words: list[str], cwd: str, env: dict[str, str]) -> str:
        """`ID ...`: SIGCONT and SIGTERM to all processes of a job that runs; one that waits is gone."""
        for job in [job for word in words for job in self.find(word)]:
            if job.state == "PENDING":
                job.history.append("CANCELLED")
            elif job.state == "RUNNING":
                job.history.append("SIGTERM")
                self._send(job, signal.SIGCONT, signal.SIGTERM)
        return ""

    def _squeue(self, words: list[str], cwd: str, env: dict[str, str]) -> str:
        """`-o FORMAT`: what waits and runs."""
        pattern, states = words[words.index("-o") + 1], env.get("SQUEUE_STATES", "PENDING,RUNNING").split(",")
        seen = [job for job in self.jobs if job.state in states]
        return "".join(f"{file_name(pattern, i=job.name, j=job.options['job-name'])}\n" for job in seen)


def srun(words: list[str]) -> int:
    """Run a step with one task, forward signals to it, and return its exit code."""
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
    with Client(("127.0.0.1", int(port))) as line:
        line.send((name, [*words], os.getcwd(), dict(os.environ)))
        said, refused, code = line.recv()
    sys.stdout.write(said)
    sys.stderr.write(refused)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
