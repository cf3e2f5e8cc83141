"""Runs of the training in forked processes, which can be killed for real without loading torch for each.

What is to happen to a run is said by name: "kill_at": step, "kill_later": seconds from its first step ("all":
true: W&B's service, too; "once_saved": folder: and when this part of the run has rows and a checkpoint
there), "pace": seconds a step takes at least, "end_service_at": step, "block_at":
step after which the training waits without end, "signal_at": [step, number] ("all",
too), "once_in": folder (nothing happens before it exists), "twice": true, "file_limit": bytes, "stdout":
path.
"""

import contextlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from support.quick import ROOT

AT_ONCE = 4
FOLDERS = ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR")  # empty ones, of the tests
FORKS = multiprocessing.get_context("forkserver")
# What a run loads, once for all: half of the time of a short one. PyTorch and W&B load these when they begin;
# pytest is what Python's own child loads, as it is the main program.
FORKS.set_forkserver_preload(["torch._inductor", "wandb.sdk.launch", "ampcompare.experiment", "pytest"])


def run(
    *words: str, env: dict[str, str] | None = None, begun: Callable[[int], None] | None = None, **job: Any
) -> dict[str, Any]:
    """One run, to its end: its exit code or -signal, what it said. `begun` gets its process."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    kept |= {name: os.environ[name] for name in FOLDERS if name in os.environ}
    start, end = FORKS.Pipe(duplex=False)
    given = kept | {"OMP_NUM_THREADS": "1"} | (env or {})
    process = FORKS.Process(target=child, args=([*words], given, job, end))
    process.start()
    end.close()
    if begun:
        begun(process.pid or 0)
    # Through a pipe: a limit to the size of files must not fall on it. Its end does not come before that of
    # W&B's client.
    os.set_blocking(start.fileno(), False)
    said = b""
    is_over = False
    while not is_over:
        is_over = not process.is_alive()
        with contextlib.suppress(BlockingIOError):
            while part := os.read(start.fileno(), 65_536):
                said += part
        process.join(0.02)
    return {"code": process.exitcode, "said": said.decode("utf-8", "replace")}


def run_all(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Several runs at the same time, as most of one is waiting for W&B's client."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda job: run(*job.pop("words"), **job), map(dict, jobs)))


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started, such as W&B's service."""
    stats = [of_process(path.name, "stat") for path in Path("/proc").glob("[0-9]*")]
    found = [(stat.split()[0], stat.rpartition(b")")[2].split()[1]) for stat in stats if stat]
    return [int(child) for child, parent in found if int(parent) == pid]


def of_process(pid: int | str, name: str) -> bytes:
    """Return what the system reports of a process; nothing if it has just ended."""
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


def child(words: list[str], env: dict[str, str], job: dict[str, Any], out: Connection) -> None:
    """One run, with its trouble."""
    os.chdir(ROOT)
    os.setpgid(0, 0)
    os.environ.clear()
    os.environ.update(env)
    os.dup2(os.open(job["stdout"], os.O_WRONLY) if "stdout" in job else out.fileno(), 1)
    os.dup2(out.fileno(), 2)
    sys.path.insert(0, str(ROOT))
    import run_experiment
    from ampcompare.runtime.signals import exit_process

    if limit := job.get("file_limit"):
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    exit_process(run_experiment.main(words, on_step=partial(cause, job)))


def cause(job: dict[str, Any], step: int) -> None:
    """Cause the fault that the job asks for after this step."""
    if (folder := job.get("once_in")) and not Path(folder).exists():
        return  # in a process with several runs: not in the first one
    at, number = job.get("signal_at") or (job.get("kill_at"), signal.SIGKILL)
    if wait := job.pop("kill_later", None):  # from the first step on, whatever the start took
        also = " ".join(map(str, children_of(os.getpid()))) if job.get("all") else ""
        until = until_saved(Path(folder)) if (folder := job.get("once_saved")) else ""
        killing = ["sh", "-c", f"sleep {wait}; {until} kill -9 {os.getpid()} {also}"]
        subprocess.Popen(killing, start_new_session=True)
    time.sleep(job.get("pace", 0))
    while job.get("block_at") == step:  # W&B's client goes on sending, in its own threads
        time.sleep(1)
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
