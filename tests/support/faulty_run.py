"""run_experiment.py, with a fault that `faults.run` asks for.

Arguments: the file that gets the process id, the job as JSON, and the options of the run. The job says by
name what is to happen: "kill_at": step, "kill_later": seconds from its first step ("all": true: W&B's
service, too; "once_saved": folder: and when this part of the run has rows and a checkpoint there), "pace":
seconds a step takes at least, "end_service_at": step, "block_at": step after which the training waits without
end, "signal_at": [step, number] ("all", too), "once_in": folder (nothing happens before it exists), "twice":
true, "file_limit": bytes, "stdout": path.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import run_experiment
from ampcompare.runtime.signals import exit_process
from support.faults import children_of


def until_saved(folder: Path) -> str:
    """Shell's words that wait for a checkpoint from now on, and for a record of several rows."""
    mark = folder / "mark"
    mark.touch()
    wanted = ("step-*.pt", "run-*.wandb -size +16k")
    waits = (
        f"until find {folder} -newer {mark} -name {name} | grep -q .; do sleep 0.1; done;" for name in wanted
    )
    return " ".join(waits)


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


def main(pid_file: str, text: str, *words: str) -> None:
    """Train one run, with its trouble."""
    job = json.loads(text)
    written = Path(f"{pid_file}.tmp")
    written.write_text(str(os.getpid()))
    written.rename(pid_file)
    if limit := job.get("file_limit"):
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    exit_process(run_experiment.main([*words], on_step=partial(cause, job)))


main(*sys.argv[1:])
