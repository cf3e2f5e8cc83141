"""A real Slurm on this machine, with all of its files in a folder of its own.

`Slurm` starts munged, slurmctld and slurmd, which listen on free ports of the loopback, and ends them by
their files of process ids. Nothing is installed and no file of the system is touched. The commands of Slurm
find it by the variable SLURM_CONF of `environment()`.

The node has four CPUs and four GPUs, whatever the machine has. Of its partitions, `high` takes the node from
`low` and `gpu`, whose jobs go back into the queue. What would take minutes, a test does by Slurm's own
commands: it ends the grace time of a job that has saved its checkpoint, and the delay before the job starts
again.
"""

import getpass
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from support.quick import ROOT
from support.sweep_project import SweepProject

LOOK_SECONDS = 0.2
OPEN = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED", "SIGNALING")
DAEMONS = ("slurmctld", "slurmd", "munged")
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
MpiDefault=none
KillWait=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MinJobAge=3600
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=16000 Gres=gpu:4 State=UNKNOWN
PartitionName=low Nodes={host} Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=600
PartitionName=gpu Nodes={host} MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=600
PartitionName=high Nodes={host} MaxTime=INFINITE State=UP PriorityTier=10
"""


@dataclass(frozen=True)
class Job:
    """A job in Slurm's list, or one task of an array.

    Attributes:
        id: As squeue shows it, such as `5` or `5_0`.
    """

    id: str
    state: str
    name: str
    reason: str

    @property
    def array(self) -> str:
        """The id without the number of the task."""
        return self.id.partition("_")[0]


class Slurm:
    """The daemons. `with Slurm() as slurm:` starts and ends them.

    Attributes:
        programs: A folder that comes first on PATH, for programs in place of Slurm's.
    """

    def __enter__(self) -> "Slurm":
        # A short path: that of a socket is limited.
        self._folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        self._last_known = 0
        self.programs = self._folder / "programs"
        for name in ("state", "spool", "programs"):
            (self._folder / name).mkdir()
        key = self._folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        self._folder.chmod(0o755)  # as munge demands
        ports = free_ports(2)
        (self._folder / "slurm.conf").write_text(
            CONFIGURATION.format(
                host=socket.gethostname(),
                user=getpass.getuser(),
                folder=self._folder,
                controller_port=ports[0],
                node_port=ports[1],
            )
        )
        devices = ("null", "zero", "full", "random")  # a GPU needs a device that is there
        gpus = "".join(f"Name=gpu File=/dev/{name}\n" for name in devices)
        (self._folder / "gres.conf").write_text(gpus)
        (self._folder / "cgroup.conf").touch()
        munge = {"key-file": key, "socket": self._folder / "munge.sock", "pid-file": self._pid_file("munged")}
        munge |= {"log-file": self._folder / "munge.log", "seed-file": self._folder / "munge.seed"}
        try:
            self._start("munged", "--force", *(f"--{name}={path}" for name, path in munge.items()))
            self._start("slurmctld", "-f", str(self._folder / "slurm.conf"))
            self.start_node()
        except BaseException:  # an earlier daemon would outlive the tests
            self._end_all()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        try:
            with suppress(subprocess.CalledProcessError):
                self.clear()
        finally:
            self._end_all()

    def _end_all(self) -> None:
        for name in DAEMONS:
            self._end(name, signal.SIGTERM)
        shutil.rmtree(self._folder, ignore_errors=True)

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment for commands of Slurm, and for ours."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
        path = f"{self.programs}{os.pathsep}{kept['PATH']}"
        return kept | {"SLURM_CONF": str(self._folder / "slurm.conf"), "PATH": path} | more

    def write_program(self, name: str, text: str) -> Path:
        """Write a shell program that is found in place of one of Slurm's, which it may call as $own."""
        path = self.programs / name
        path.write_text(f"#!/bin/sh\nown={shutil.which(name)}\n{text}\n")
        path.chmod(0o755)
        return path

    def call(self, *command: str) -> str:
        """Run a command of Slurm; return its output."""
        environment = self.environment(PATH=os.environ["PATH"])
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    def jobs(self, name: str = "") -> list[Job]:
        """Return the jobs since `clear`, in their order, also those that have ended in the last minutes.

        Args:
            name: A part of the jobs' names.
        """
        lines = self.call("squeue", "-h", "-r", "-a", "-t", "all", "-S", "i", "-o", "%i|%T|%j|%r")
        jobs = [Job(*line.strip().split("|")) for line in lines.splitlines()]
        return [job for job in jobs if name in job.name and int(job.array) > self._last_known]

    def show(self, job: str, field: str) -> str:
        """Return a field of `scontrol show job`, such as `Restarts`."""
        found = re.search(rf"\b{field}=(\S*)", self.call("scontrol", "show", "job", "-o", job))
        assert found, field
        return found[1]

    def wait(self, is_so: Callable[[], object]) -> None:
        """Wait until something is so. Jobs that were queued again need not wait for their two minutes."""
        while not is_so():
            queued_again = [
                job.id for job in self.jobs() if (job.state, job.reason) == ("PENDING", "BeginTime")
            ]
            if queued_again:
                time.sleep(1)  # a node refuses a job in the second in which it ended the job's former start
            for job_id in queued_again:
                with suppress(subprocess.CalledProcessError):  # it has just begun
                    self.call("scontrol", "update", f"JobId={job_id}", "StartTime=now")
            time.sleep(LOOK_SECONDS)

    def wait_until_ended(self, name: str = "") -> None:
        """Wait until no job waits or runs."""
        self.wait(lambda: not any(job.state in OPEN for job in self.jobs(name)))

    def stop_starting(self) -> None:
        """Let jobs wait in the queue from now on."""
        self._set_partitions("DOWN")

    def start_again(self) -> None:
        """Let jobs start again."""
        self._set_partitions("UP")

    def _set_partitions(self, state: str) -> None:
        for name in ("low", "gpu"):
            self.call("scontrol", "update", f"PartitionName={name}", f"State={state}")

    def preempt(self, has_saved: Callable[[], object]) -> None:
        """Give the whole node to a job of higher priority, and end that job when the node is its own.

        Args:
            has_saved: Whether the jobs that lose the node have saved their checkpoints. Then their grace
                time is over.
        """
        known = self.jobs()
        script = ["sbatch", "--parsable", "-p", "high", "-n4", "-J", "urgent", "-o", "/dev/null"]
        urgent = self.call(*script, "--wrap", "sleep 100000").strip()
        self.wait(has_saved)
        for job in known:
            if job.state == "RUNNING":
                self.call("scontrol", "requeue", job.id)
        self.wait(lambda: any(job.id == urgent and job.state == "RUNNING" for job in self.jobs()))
        self.call("scancel", urgent)

    def kill_node(self) -> None:
        """Kill slurmd, and the processes of all its jobs, as if the node had lost its power."""
        self._end("slurmd", signal.SIGKILL)
        processes = self._processes()
        attendants = {parent for each in processes for parent in parents_of(each) if is_attendant(parent)}
        # All at once: none sees the end of another, and notes or reports it.
        for process in (*attendants, *processes):
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        for process in (*attendants, *processes):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        # The controller would notice it by itself after minutes.
        self.call("scontrol", "update", f"NodeName={socket.gethostname()}", "State=DOWN", "Reason=test")

    def start_node(self) -> None:
        """Start slurmd, and wait until the node takes jobs.

        The controller still has to tell the node to end its former jobs. That would end such a job when it
        starts again, so it is waited for, too.
        """
        self._start("slurmd", "-f", str(self._folder / "slurm.conf"))
        while "idle" not in self.call("sinfo", "-h", "-o", "%t"):
            with suppress(subprocess.CalledProcessError):  # it is up already
                self.call("scontrol", "update", f"NodeName={socket.gethostname()}", "State=RESUME")
            time.sleep(LOOK_SECONDS)
        agents = r"^Agent (?:queue size|count):\s+(\d+)"
        while re.findall(agents, self.call("sdiag"), re.M) != ["0", "0"]:
            time.sleep(LOOK_SECONDS)

    def clear(self) -> None:
        """Cancel all jobs, so that the next test finds an empty queue."""
        for program in self.programs.iterdir():
            program.unlink()
        self.start_again()
        arrays = {job.array for job in self.jobs() if job.state in OPEN}
        for options in (["-f", "-s", "KILL"], []) if arrays else ():
            command = ["scancel", *options, *arrays]
            subprocess.run(command, env=self.environment(), check=False, capture_output=True)
        self.wait_until_ended()
        self._last_known = max((int(job.array) for job in self.jobs()), default=self._last_known)

    def _processes(self) -> list[psutil.Process]:
        """Return the processes of the jobs."""
        own = {"SLURM_CONF": str(self._folder / "slurm.conf")}
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                environment = process.environ()
                if own.items() <= environment.items() and "SLURM_JOB_ID" in environment:
                    found.append(process)
        return found

    def _pid_file(self, name: str) -> Path:
        return self._folder / f"{name}.pid"

    def _start(self, name: str, *arguments: str) -> None:
        self._pid_file(name).unlink(missing_ok=True)
        subprocess.run([name, *arguments], env=self.environment(), check=True, capture_output=True)
        while not self._pid_file(name).exists() or not self._pid_file(name).read_text().strip():
            time.sleep(LOOK_SECONDS)

    def _end(self, name: str, number: int) -> None:
        with suppress(OSError, ValueError, psutil.Error):
            process = psutil.Process(int(self._pid_file(name).read_text()))
            process.send_signal(number)
            process.wait()


def parents_of(process: psutil.Process) -> list[psutil.Process]:
    """Return the processes above a process; none if it has just ended."""
    with suppress(psutil.NoSuchProcess):
        return process.parents()
    return []


def is_attendant(process: psutil.Process) -> bool:
    """Return whether this is the process of Slurm that attends to the processes of a step."""
    with suppress(psutil.NoSuchProcess):
        return process.name().startswith("slurmstepd")
    return False


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def start_sweep(slurm: Slurm, project: SweepProject, *words: str, **env: str) -> subprocess.Popen[str]:
    """Start `ampcompare sweep --cluster slurm` of a project."""
    return subprocess.Popen(
        project.command("--cluster", "slurm", *words),
        cwd=project.folder,
        env=slurm.environment(PYTHONPATH=f"{ROOT / 'src'}", COLUMNS="1000", **env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
