"""Single runs against the stand-in server: stopped from W&B's page, preempted, uploaded later, left alone by
a dying server.
"""

import signal
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from support import warm_python
from support.quick import ONLINE
from support.wandb_server import TROUBLES, Server
from support.wandb_server.clients import asking, environment, start, wait_until, wandb

from ampcompare import load_runs
from ampcompare.runs import RunRecord

pytestmark = pytest.mark.slow


def train(server: Server, folder: Path, *words: str, **env: str) -> subprocess.Popen[bytes]:
    """A run of the training; with $HOLD it waits as `held_run.py` says."""
    program = ["tests/support/held_run.py", "run_experiment.py", *ONLINE, "wandb.project=p"]
    command = [warm_python.python(), *program, f"output_dir={folder}", *words]
    return start(command, environment(server, folder, **env), folder / "log")


def read_back(server: Server, folder: Path) -> RunRecord:
    with asking(server, folder):
        (run,) = load_runs(["wandb:tester/p"])
    return run


def assert_same(before: RunRecord, after: RunRecord) -> None:
    pd.testing.assert_frame_equal(before.history.sort_index(axis=1), after.history)
    for key in before.logged:
        assert before.nonfinite(key).tolist() == after.nonfinite(key).tolist()
    assert before.config == after.config
    assert before.summary == after.summary | {"_runtime": before.summary.get("_runtime")}
    for name in ("id", "name", "group", "state", "job_type", "project", "tags"):
        assert getattr(before, name) == getattr(after, name), name


def test_a_run_stopped_on_wandbs_page_ends_with_its_record(wandb_server: Server, tmp_path: Path):
    words = ("epochs=100000", "log.every=50", "eval.every=1000", "diagnostics.every=null")
    process = train(wandb_server, tmp_path, *words)
    wait_until(lambda: any(run.history for run in wandb_server.runs.values()))
    (run,) = wandb_server.runs.values()
    wandb_server.stop_run(run.id)
    assert process.wait() == 143
    said = (tmp_path / "log").read_text()
    assert f"interrupted at step {run.summary['global_step']} (requested by W&B)" in said
    assert run.history[-1]["global_step"] == run.summary["global_step"]
    assert run.exit_code == 255


LOOP = """
import os, signal
import torch
from ampcompare import Recorder

with Recorder(project="p", backend="none", seed=1, every=1) as record:
    for step in range(1, 6):
        record.step(loss=torch.tensor(1.0), samples=8)
        if step == 3:
            os.kill(os.getpid(), signal.SIGUSR1)
"""


def test_somebodys_loop_whose_machine_is_taken_away_is_preempted_there(wandb_server: Server, tmp_path: Path):
    process = start([warm_python.python(), "-c", LOOP], environment(wandb_server, tmp_path), tmp_path / "log")
    assert process.wait() == 128 + signal.SIGUSR1
    (run,) = wandb_server.runs.values()
    assert (run.state, run.preempting, run.exit_code) == ("preempted", True, 255)


@pytest.mark.parametrize("trouble", TROUBLES[:2])
def test_a_server_that_goes_away_in_mid_run_costs_no_rows(wandb_server: Server, tmp_path: Path, trouble: str):
    """It dies or hangs once it has rows; `wandb sync` completes the run when it is back."""
    hold = tmp_path / "hold"
    hold.touch()
    words = ("epochs=40", "log.every=1")
    process = train(wandb_server, tmp_path, *words, WANDB_FINISH_TIMEOUT="3", HOLD=str(hold))
    wait_until(lambda: any(run.history for run in wandb_server.runs.values()))
    getattr(wandb_server, trouble)()
    hold.unlink()
    (run,) = wandb_server.runs.values()
    sent = len(run.history)
    code, said = process.wait(), (tmp_path / "log").read_text()
    assert code == 0, said
    (before,) = load_runs([tmp_path])
    assert (before.state, before.problems) == ("finished", [])
    assert before.history["global_step"].max() == 160
    assert sent < len(before.history)

    wandb_server.come_back()
    sync = f"wandb sync --include-online {before.paths[0].parent.resolve()}"
    assert sync in said
    done = wandb(*sync.split()[1:], env=environment(wandb_server, tmp_path))
    assert done.returncode == 0, done.stderr
    assert_same(before, read_back(wandb_server, tmp_path))
