"""The commands of the stand-in, as programs on PATH: `client.py PORT NAME WORDS...`. srun works by itself.

Runs without the tests' packages: it is started with -I, in whatever folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from support.slurm.options import BadOption, file_name, parse

HANDED_ON = (signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def ask(port: int, name: str, words: list[str]) -> Any:
    """What the controller answers."""
    message = {"name": name, "words": words, "cwd": os.getcwd(), "env": dict(os.environ)}
    with socket.create_connection(("127.0.0.1", port)) as line, line.makefile("rw") as file:
        file.write(json.dumps(message) + "\n")
        file.flush()
        answer = file.readline()
    if not answer:
        sys.exit(f"{name}: error: Unable to contact slurm controller")
    return json.loads(answer)


def srun(port: int, words: list[str]) -> int:
    """A step: its tasks side by side, each with its number. The worst of their exit codes."""
    options, command = parse(words)
    given = os.environ.get
    if not given("SLURM_JOB_ID"):
        print("srun: error: this stand-in starts steps of jobs only", file=sys.stderr)
        return 1
    nodes = int(options.get("nodes") or given("SLURM_JOB_NUM_NODES", "1"))
    each = options.get("ntasks-per-node") or given("SLURM_NTASKS_PER_NODE")
    tasks = int(options.get("ntasks") or (int(each) * nodes if each else given("SLURM_NTASKS") or nodes))
    step = ask(port, "step", [])["step"]
    per_node = -(-tasks // nodes)
    children: list[subprocess.Popen[bytes]] = []

    def hand_on(number: int, frame: object) -> None:
        for child in children:
            if child.poll() is None:
                child.send_signal(number)

    for number in HANDED_ON:
        signal.signal(number, hand_on)
    names = {"j": given("SLURM_JOB_ID"), "A": given("SLURM_ARRAY_JOB_ID"), "a": given("SLURM_ARRAY_TASK_ID")}
    names |= {"x": given("SLURM_JOB_NAME"), "s": step, "N": "localhost"}
    with contextlib.ExitStack() as files:
        for task in range(tasks):
            own: dict[str, object] = {**names, "t": task, "n": task // per_node}
            opened: dict[str, Any] = {
                stream: files.enter_context(open(file_name(options[name], own), "ab"))
                for stream, name in (("stdout", "output"), ("stderr", "error"))
                if name in options
            }
            if "output" in options and "error" not in options:
                opened["stderr"] = opened["stdout"]
            env = os.environ | {
                "SLURM_STEP_ID": str(step),
                "SLURM_STEPID": str(step),
                "SLURM_PROCID": str(task),
                "SLURM_LOCALID": str(task % per_node),
                "SLURM_NODEID": str(task // per_node),
                "SLURM_NTASKS": str(tasks),
                "SLURM_STEP_NUM_TASKS": str(tasks),
            }
            children.append(subprocess.Popen(command, env=env, start_new_session=True, **opened))
        codes = [child.wait() for child in children]
    return max(128 - code if code < 0 else code for code in codes)


def main() -> int:
    port, name, *words = sys.argv[1:]
    try:
        if name == "srun":
            return srun(int(port), words)
    except BadOption as problem:
        print(f"{name}: {problem}", file=sys.stderr)
        return 1
    answer = ask(int(port), name, words)
    sys.stdout.write(answer["out"])
    sys.stderr.write(answer["err"])
    return int(answer["code"])


if __name__ == "__main__":
    sys.exit(main())
