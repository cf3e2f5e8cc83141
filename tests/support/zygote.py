"""Runs of the training in forked processes, which can be killed for real without loading torch for each.

Reads lists of jobs as JSON lines, each job {"words": [...]} and, as wanted, "env": {...}, "kill_at": step,
"kill_later": seconds from its first step ("all": true: W&B's service, too; "once_saved": folder: and when
this part of the run has rows and a checkpoint there), "pace": seconds a step takes at least,
"end_service_at": step, "signal_at": [step, number] ("all", too), "twice": true, "file_limit": bytes,
"stdout": path; answers with a list of {"code": exit code or -signal, "said": output}.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from support.quick import ROOT

AT_ONCE = 4


class Zygote:
    """The process that forks, from a test's side."""

    def __init__(self, **env: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
        ours = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=kept | ours | env,
            cwd=ROOT,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, *words: str, **job: Any) -> dict[str, Any]:
        """One run, to its end."""
        return self.run_all([{"words": words, **job}])[0]

    def run_all(self, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Several runs at the same time, as most of one is waiting for W&B's client."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(jobs) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def children_of(pid: int) -> list[int]:
    """The processes that one has started, as W&B's service by a run."""
    stats = [of_process(path.name, "stat") for path in Path("/proc").glob("[0-9]*")]
    found = [(stat.split()[0], stat.rpartition(b")")[2].split()[1]) for stat in stats if stat]
    return [int(child) for child, parent in found if int(parent) == pid]


def of_process(pid: int | str, name: str) -> bytes:
    """What the system tells of a process; nothing of one that has just ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def until_saved(folder: Path) -> str:
    """Shell's words that wait for a checkpoint from now on, and for a record of several rows."""
    mark = folder / "mark"
    mark.touch()
    wanted = ("step-*.pt", "run-*.wandb -size +16k")
    waits = (
        f"until find {folder} -newer {mark} -name {name} | grep -q .; do sleep 0.1; done;" for name in wanted
    )
    return " ".join(waits)


def child(job: dict[str, Any]) -> None:
    """One run, with its trouble."""
    import run_experiment
    from ampcompare.program.stopping import leave
    from ampcompare.train.display import TrainingDisplay

    os.environ.update(job.get("env", {}))
    shown = TrainingDisplay.step

    def step(self: TrainingDisplay, step: int) -> None:
        shown(self, step)
        cause(job, step)

    TrainingDisplay.step = step  # type: ignore[method-assign]
    if limit := job.get("file_limit"):
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        from ampcompare.tracking import record_file

        record_file.PROBE_BYTES = limit + 1  # it stands for a disk that is full for the record
    leave(run_experiment.main(list(job["words"])))


def cause(job: dict[str, Any], step: int) -> None:
    """What is to happen behind this step."""
    at, number = job.get("signal_at") or (job.get("kill_at"), signal.SIGKILL)
    if wait := job.pop("kill_later", None):  # from the first step on, whatever the start took
        also = " ".join(map(str, children_of(os.getpid()))) if job.get("all") else ""
        until = until_saved(Path(folder)) if (folder := job.get("once_saved")) else ""
        killing = ["sh", "-c", f"sleep {wait}; {until} kill -9 {os.getpid()} {also}"]
        subprocess.Popen(killing, start_new_session=True)
    time.sleep(job.get("pace", 0))
    if job.get("end_service_at") == step:
        for pid in children_of(os.getpid()):
            os.kill(pid, signal.SIGKILL)
    if job.get("remove_at", [0])[0] == step:
        while Path(job["remove_at"][1]).exists():  # W&B's client may write into it meanwhile
            shutil.rmtree(job["remove_at"][1], ignore_errors=True)
    if job.get("out_of_memory_at") == step:
        import torch

        raise torch.OutOfMemoryError("CUDA out of memory")
    if job.get("watch_every") and step % job["watch_every"] == 0:
        pages, handles = Path("/proc/self/statm").read_text().split()[1], len(os.listdir("/proc/self/fd"))
        with Path(job["watched"]).open("a") as file:
            file.write(f"{pages} {handles}\n")
    if step == at:
        for _ in range(1 + bool(job.get("twice"))):
            for pid in [*(children_of(os.getpid()) if job.get("all") else []), os.getpid()]:
                os.kill(pid, number)


def fork(job: dict[str, Any], output: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    os.dup2(os.open(job["stdout"], os.O_WRONLY) if "stdout" in job else output, 1)
    os.dup2(output, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.setpgid(0, 0)
    code: Any = 70
    try:
        child(job)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


class Output:
    """What a run says, through a pipe: a limit to the size of files must not fall on it."""

    def __init__(self) -> None:
        self.start, self.end = os.pipe()
        os.set_blocking(self.start, False)
        self.parts: list[bytes] = []

    def drain(self) -> None:
        """Take what is there. The end of the pipe does not come before that of W&B's client."""
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self.start, 65_536):
                self.parts.append(part)


def play(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    waiting, going, answers = list(enumerate(jobs)), {}, {}
    while waiting or going:
        while waiting and len(going) < AT_ONCE:
            number, job = waiting.pop(0)
            output = Output()
            going[fork(job, output.end)] = number, output
            os.close(output.end)
        for _, output in going.values():
            output.drain()
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            time.sleep(0.02)
            continue
        number, output = going.pop(pid)
        output.drain()
        os.close(output.start)
        answers[number] = {
            "code": os.waitstatus_to_exitcode(status),
            "said": b"".join(output.parts).decode("utf-8", "replace"),
        }
    return [answers[number] for number in range(len(jobs))]


def main() -> None:
    sys.path.insert(0, str(ROOT))
    # What a run loads, once for all: half of the time of a short one. PyTorch and W&B load these when they
    # begin.
    import torch._inductor  # noqa: F401
    import wandb.sdk.launch  # noqa: F401

    import ampcompare.experiment  # noqa: F401

    for line in sys.stdin:
        sys.stdout.write(json.dumps(play(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
