"""Runs of the training that meet a fault: killed, stopped, without memory, on a full disk."""

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from support import warm_python

AT_ONCE = 4
PROGRAM = Path(__file__).with_name("faulty_run.py")
# What the tests set of W&B's variables for every run.
KEPT = ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_X_SAVE_REQUIREMENTS")


def run(
    *words: str, env: dict[str, str] | None = None, begun: Callable[[int], None] | None = None, **job: Any
) -> dict[str, Any]:
    """One run, to its end: its exit code or -signal, what it said.

    Args:
        *words: Its options.
        env: Variables, in addition to those of the tests.
        begun: Gets the process of the run.
        **job: What is to happen to it, as `faulty_run.py` says.
    """
    variables = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    variables |= {name: os.environ[name] for name in KEPT if name in os.environ}
    variables |= {"OMP_NUM_THREADS": "1"} | (env or {})
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as files:
        pid_file = Path(folder, "pid")
        arguments = [str(pid_file), json.dumps(job), *words]
        start, end = os.pipe()
        files.callback(os.close, start)
        process = subprocess.Popen(
            [warm_python.python(), str(PROGRAM), *arguments],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=files.enter_context(open(job["stdout"], "w")) if "stdout" in job else end,
            stderr=end,
            process_group=0,
        )
        os.close(end)
        if begun:
            while process.poll() is None and not pid_file.exists():
                time.sleep(0.01)
            begun(int(pid_file.read_text()))
        # Through a pipe: a limit to the size of files must not fall on it. Its end does not come before that
        # of W&B's client.
        os.set_blocking(start, False)
        said = b""
        is_over = False
        while not is_over:
            is_over = process.poll() is not None
            with contextlib.suppress(BlockingIOError):
                while part := os.read(start, 65_536):
                    said += part
            time.sleep(0 if is_over else 0.02)
    return {"code": process.returncode, "said": said.decode("utf-8", "replace")}


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
