"""What decides: the queue, who runs, who is told to go. One thread looks at all of it every 20 ms."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socketserver
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.slurm import processes
from support.slurm.options import Dependency, Warning, file_name

ENDED = ("COMPLETED", "FAILED", "CANCELLED", "PREEMPTED", "TIMEOUT")
COMMANDS = ("sbatch", "srun", "scontrol", "squeue", "sacct", "scancel")
LOOK_SECONDS = 0.02


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
    indices: list[int] = field(default_factory=list)
    most: int = 0
    state: str = "PENDING"
    reason: str = "None"
    restarts: int = 0
    exit_code: int | None = None
    history: list[str] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None
    steps: int = 0
    goes: str = ""  # the state that it is to end in, once its processes have gone: it was told to
    killed_at: float = 0.0  # when what is left of it is killed

    @property
    def name(self) -> str:
        """Its id as squeue and sacct show it."""
        return str(self.id) if self.array_id is None else f"{self.array_id}_{self.index}"

    @property
    def warning(self) -> Warning | None:
        return Warning.of(self.options["signal"]) if "signal" in self.options else None

    @property
    def is_requeued(self) -> bool:
        """Whether it waits for another start when its machine is taken away."""
        return "requeue" in self.options

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
        self.next_id = 101
        self.max_array_size = 1001  # Slurm's own
        self._closed = threading.Event()
        self._scheduler = threading.Thread(target=self._schedule, name="slurm", daemon=True)
        self._server: socketserver.ThreadingTCPServer | None = None

    def __enter__(self) -> Slurm:
        from support.slurm.answers import answer

        slurm = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                asked = json.loads(self.rfile.readline())
                self.wfile.write(json.dumps(answer(slurm, asked)).encode() + b"\n")

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        places = self.folder / "bin", self.folder / "spool"
        for place in places:
            place.mkdir(parents=True)
        client, port = Path(__file__).with_name("client.py"), self._server.server_address[1]
        for name in COMMANDS:
            command = self.folder / "bin" / name
            command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{client}" {port} {name} "$@"\n')
            command.chmod(command.stat().st_mode | stat.S_IXUSR)
        self._scheduler.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        self._scheduler.join()
        assert self._server
        self._server.shutdown()
        self._server.server_close()
        for job in self.jobs:
            processes.send(processes.of_job(self.cluster, job.id), signal.SIGKILL)
            if job.process:
                job.process.wait()

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
        names = {"j": job.id, "A": job.array_id or job.id, "a": job.index, "x": job.options.get("job-name")}
        return Path(job.folder) / file_name(
            pattern, {**names, "N": "localhost", "n": 0, "t": 0, "s": "batch"}
        )

    def wait(self, what: Callable[[], bool]) -> None:
        """Until something is so."""
        while not what():
            time.sleep(LOOK_SECONDS)

    def wait_until_ended(self) -> None:
        """Until no job waits or runs; one that waits for what will never be does not count."""

        def idle() -> bool:
            with self.lock:
                return all(j.state in ENDED or j.reason == "DependencyNeverSatisfied" for j in self.jobs)

        self.wait(idle)

    def warn(self, job: Job) -> None:
        """The signal of its `--signal`, as some time before its end; nothing if it asked for none."""
        with self.lock:
            warning, process = job.warning, job.process
            if job.state != "RUNNING" or warning is None or process is None:
                return
            steps = processes.of_job(self.cluster, job.id, in_steps=True)
            job.history.append(signal.Signals(warning.number).name)
        processes.send([process.pid] if warning.to_batch else steps, warning.number)

    def preempt(self, job: Job, seconds: float = 120.0) -> None:
        """Take its machine away: the warning, if it asked for one, and for `seconds` (Slurm: those of
        `--signal`) time to end by itself; then SIGTERM, KillWait, SIGKILL. Queued again if it is to be.
        """
        starts = job.restarts
        self.warn(job)
        until = time.monotonic() + (seconds if job.warning else 0)
        while job.state == "RUNNING" and job.restarts == starts and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
        with self.lock:
            if job.state == "RUNNING" and job.restarts == starts:
                self.end(job, "REQUEUED" if job.is_requeued else "PREEMPTED")

    def end(self, job: Job, goes: str) -> None:
        """Have what runs of it ended: SIGCONT, SIGTERM, after KillWait SIGKILL; then it is as `goes` says."""
        with self.lock:
            if job.state == "PENDING":
                if goes != "REQUEUED":
                    job.turn(goes)
                return
            if job.state != "RUNNING":
                if goes == "REQUEUED":
                    self._again(job)
                return
            job.goes, job.killed_at = goes, time.monotonic() + self.kill_wait
            job.history.append("SIGTERM")
            processes.send(processes.of_job(self.cluster, job.id), signal.SIGCONT, signal.SIGTERM)

    def _again(self, job: Job) -> None:
        job.restarts += 1
        job.process, job.goes, job.steps = None, "", 0
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
            left = processes.of_job(self.cluster, job.id)
            if left and time.monotonic() < job.killed_at:
                return
            processes.send(left, signal.SIGKILL)
            job.process.wait()
            if job.goes == "REQUEUED":
                self._again(job)
            else:
                job.turn(job.goes)
        elif code is not None:
            processes.send(processes.of_job(self.cluster, job.id), signal.SIGKILL)
            job.exit_code = code
            job.turn("COMPLETED" if code == 0 else "FAILED")

    def _may_start(self, job: Job) -> bool:
        running = [other for other in self.jobs if other.state == "RUNNING"]
        if len(running) >= self.slots or "hold" in job.options:
            job.reason = "Resources"
            return False
        if job.most and sum(other.array_id == job.array_id for other in running) >= job.most:
            job.reason = "JobArrayTaskLimit"
            return False
        for dependency in Dependency.all_of(job.options.get("dependency", "")):
            others = [other for word in dependency.ids for other in self.find(word)]
            if dependency.kind == "singleton":
                name = job.options.get("job-name")
                others = [o for o in self.jobs if o.options.get("job-name") == name and o.id < job.id]
            if not _holds(dependency.kind, others):
                done = all(other.state in ENDED for other in others)
                job.reason = "DependencyNeverSatisfied" if done else "Dependency"
                return False
        return True

    def _start(self, job: Job) -> None:
        job.reason = "None"
        out, errors = self.output(job), self.output(job, "error")
        mode = "ab" if job.options.get("open-mode") == "append" else "wb"
        with open(out, mode) as stdout, open(errors, "ab" if errors == out else mode) as stderr:
            job.process = subprocess.Popen(
                ["/bin/sh", "-c", 'exec "$0" "$@"', job.script, *job.words],
                cwd=job.folder,
                env=self._environment_of(job),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        job.turn("RUNNING")

    def _environment_of(self, job: Job) -> dict[str, str]:
        options = job.options
        nodes = int(options.get("nodes", "1").partition("-")[0])
        each = options.get("ntasks-per-node")
        tasks = options.get("ntasks") or str(int(each) * nodes if each else nodes)
        found: dict[str, Any] = {
            "SLURM_CLUSTER_NAME": self.cluster,
            "SLURM_JOB_ID": job.id,
            "SLURM_JOBID": job.id,
            "SLURM_JOB_NAME": options.get("job-name", job.script.name),
            "SLURM_JOB_PARTITION": options.get("partition", "standin"),
            "SLURM_JOB_NUM_NODES": nodes,
            "SLURM_NNODES": nodes,
            "SLURM_JOB_NODELIST": ",".join(["localhost"] * nodes),
            "SLURM_NODELIST": ",".join(["localhost"] * nodes),
            "SLURMD_NODENAME": "localhost",
            "SLURM_NTASKS": tasks,
            "SLURM_NPROCS": tasks,
            "SLURM_NTASKS_PER_NODE": each,
            "SLURM_CPUS_PER_TASK": options.get("cpus-per-task"),
            "SLURM_GPUS_PER_TASK": options.get("gpus-per-task"),
            "SLURM_NODEID": 0,
            "SLURM_PROCID": 0,
            "SLURM_LOCALID": 0,
            "SLURM_SUBMIT_DIR": job.env.get("PWD", job.folder),
            "SLURM_SUBMIT_HOST": "localhost",
            "SLURM_RESTART_COUNT": job.restarts or None,
        }
        if job.array_id is not None:
            found |= {
                "SLURM_ARRAY_JOB_ID": job.array_id,
                "SLURM_ARRAY_TASK_ID": job.index,
                "SLURM_ARRAY_TASK_COUNT": len(job.indices),
                "SLURM_ARRAY_TASK_MIN": min(job.indices),
                "SLURM_ARRAY_TASK_MAX": max(job.indices),
            }
        return job.env | {name: str(value) for name, value in found.items() if value is not None}


def _holds(kind: str, others: list[Job]) -> bool:
    if kind == "after":
        return all(other.state != "PENDING" for other in others)
    wanted = {"afterok": ("COMPLETED",), "afternotok": tuple(s for s in ENDED if s != "COMPLETED")}
    return all(other.state in wanted.get(kind, ENDED) for other in others)
