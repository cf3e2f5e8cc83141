"""docs/clusters.md: its batch scripts as they stand, on a real Slurm that takes machines away, and its
command for Ray on this machine. tests/sweeps/test_slurm.py runs its command for Slurm.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import warm_python
from support.quick import ONLINE, QUICK, ROOT
from support.slurm import Slurm
from support.wandb_server import ENTITY, Run, Server
from support.wandb_server.clients import create_sweep, environment

from ampcompare import load_runs

pytestmark = pytest.mark.slow

TEXT = (ROOT / "docs" / "clusters.md").read_text()
SCRIPTS = {
    name: script
    for script in re.findall(r"^```bash\n(#!/bin/bash\n.*?)^```", TEXT, re.M | re.S)
    for name in re.findall(r"--job-name=(\S+)", script)
}
RAY = re.search(r"^ampcompare (sweep compare_backends --cluster ray .*)$", TEXT, re.M)

HELD, STEPS = 59, 80  # the step behind the one where a run is held ends an epoch
WORDS = [
    *ONLINE,
    f"max_steps={STEPS}",
    "epochs=1000",
    "log.every=20",
    "eval.every=100",
    "checkpoint.every_epochs=1000",  # none but those that a stop makes
    "diagnostics.every=null",
]


def test_the_command_for_ray_runs_a_sweep_on_this_machine(tmp_path: Path):
    assert RAY
    small = [word for word in QUICK if not word.startswith("backend=")]
    words = [*RAY[1].split(), *small, "backend=[none]", "seed=[1]"]
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    command = [sys.executable, "-m", "ampcompare", *words]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "given to Ray" in done.stdout
    (record,) = load_runs([tmp_path / "runs" / "compare"])
    assert record.state == "finished"


def steps(run: Run) -> list[int]:
    return [row["global_step"] for row in run.history if "train/loss" in row]


def submit(slurm: Slurm, folder: Path, name: str, *words: str, env: dict[str, str], array: str = "") -> None:
    """The script in the document, as it stands there, but for the length of an array."""
    (folder / f"{name}.sh").write_text(SCRIPTS[name])
    command = ["sbatch", *([f"--array={array}"] if array else []), f"{name}.sh", *words]
    done = subprocess.run(command, cwd=folder, env=slurm.environment(**env), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def warn(slurm: Slurm, job: str) -> None:
    """Send the script the signal of its `--signal`, and wait until its job has been queued again."""
    before = int(slurm.show(job, "Restarts"))
    slurm.call("scancel", "--batch", "--signal=USR1", job)
    slurm.wait(lambda: int(slurm.show(job, "Restarts")) > before)


def read_jobs_and_output(slurm: Slurm, folder: Path) -> str:
    return f"{slurm.jobs()}\n" + "\n".join(file.read_text() for file in folder.glob("slurm-*.out"))


def test_an_array_of_agents_finishes_a_sweep_whose_machine_is_taken_away(
    slurm: Slurm, tmp_path: Path, wandb_server: Server
):
    """As the time is up or for another job: one curve."""
    env = environment(wandb_server, tmp_path, HOLD=str(tmp_path / "hold"), HELD_AT=str(HELD))
    paths = (warm_python.programs(), Path(sys.executable).parent, os.environ["PATH"])
    env["PATH"] = os.pathsep.join(map(str, paths))
    held = ["${env}", "${interpreter}", str(ROOT / "tests/support/held_run.py"), "${program}"]
    definition = {
        "program": "run_experiment.py",
        "project": "p",
        "method": "grid",
        "parameters": {"backend": {"values": ["native"]}},
        "command": [*held, "${args_no_hyphens}", *WORDS, f"output_dir={tmp_path / 'runs'}"],
    }
    sweep = create_sweep(wandb_server, definition, env, tmp_path)
    (tmp_path / "hold").touch()
    submit(slurm, tmp_path, "agents", f"{ENTITY}/p/{sweep.id}", env=env, array="1")
    slurm.wait((tmp_path / f"hold-{HELD}").exists)
    (job,) = [job.id for job in slurm.jobs() if job.state == "RUNNING"]
    warn(slurm, job)
    slurm.wait_until_ended()
    (run,) = sweep.runs
    assert (run.state, run.exit_code, len(sweep.tried)) == ("finished", 0, 1), read_jobs_and_output(
        slurm, tmp_path
    )
    assert [job.state for job in slurm.jobs()] == ["COMPLETED"]
    assert steps(run) == list(range(4, STEPS + 1, 4))  # at the end of each epoch


# A network whose steps take a while as long as there is a file `slow`.
NET = """
import os, time
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layer = nn.Linear(3 * 32 * 32, classes)
    def forward(self, x):
        if os.path.exists("slow"):
            time.sleep(0.05)
        return self.layer(x.flatten(1))
def build(num_classes=10):
    return Net(num_classes)
"""


def test_several_processes_that_lose_their_machine_go_on_as_one_run(slurm: Slurm, tmp_path: Path):
    """The log interval is longer than the run: no test waits for its end."""
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "slow").touch()
    words = [word for word in QUICK if not word.startswith(("model.", "log.every", "epochs"))]
    words += ["model.name=./net.py:build", "epochs=100", "log.every=100000", "eval.every=100"]
    words += ["diagnostics.every=null", "checkpoint.every_epochs=5", "backend=none"]
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    submit(slurm, tmp_path, "ddp", *words, env=env)
    slurm.wait(lambda: any(tmp_path.rglob("step-*.pt")))
    warn(slurm, slurm.jobs()[0].id)
    (tmp_path / "slow").unlink()
    slurm.wait_until_ended()
    text = read_jobs_and_output(slurm, tmp_path)
    (job,) = slurm.jobs()
    assert job.state == "COMPLETED", text
    (record,) = load_runs([tmp_path / "runs"])
    assert (record.id, record.state) == (f"ddp-{job.id}", "finished")
    stopped = re.findall(r"interrupted at step (\d+) \(SIGUSR1\)", text)
    assert re.findall(r"resuming run \S+ at step (\d+)", text) == stopped
    assert record.numbers("global_step").tolist()[-1] == 400
