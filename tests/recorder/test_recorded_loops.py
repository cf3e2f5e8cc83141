"""Loops of people's own, recorded by W&B's client: read back, compared, killed, in a run of theirs."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import wandb
from support.a_loop import Loop

from ampcompare import Recorder, metrics
from ampcompare.errors import UserError
from ampcompare.records import load_runs
from ampcompare.report.analysis.analysis import analyse_runs
from ampcompare.wandb_client.client import end_service

QUIET: dict[str, Any] = {"batch_size": 8, "quiet": True}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")


def test_runs_of_a_loop_are_pooled_by_seed_and_compared_by_backend(tmp_path: Path):
    drops = {}
    for seed in (1, 2):
        for backend in ("none", "native"):
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0**124) if backend == "native" else None
            loop = Loop(scaler, steps=40, factor=lambda step: 1e3)
            how = {"scaler": scaler, "optimizer": loop.optimizer, "every": 10, "output_dir": tmp_path}
            with Recorder(backend=backend, seed=seed, config={"lr": 1e-3}, **how, **QUIET) as record:
                loop(record)
                record.evaluate(accuracy=0.5 + seed / 10)
            drops[backend] = loop.drops
    runs = load_runs([tmp_path])
    assert all(run.exit_code == 0 and not run.problems for run in runs)
    analysis = analyse_runs(runs)
    assert {group.label: group.n for group in analysis.groups} == {"none": 2, "native": 2}
    for group in analysis.groups:
        assert set(group.rows["skipped_steps"]) == {drops["native"] if group.label == "native" else 0}
        assert group.rows["images_per_second"].notna().all()
        assert set(group.rows["device_type"]) == {"cpu"}
    assert drops["native"] > 1
    assert analysis.quantities.speed == "samples/s"


def test_a_loop_that_goes_on_from_its_checkpoint_keeps_its_earlier_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WANDB_RUN_ID", "again")
    loop = Loop(steps=30)
    how = {"optimizer": loop.optimizer, "diagnostics": 10, "every": 10, "output_dir": tmp_path, **QUIET}
    for start in (0, 20):  # the first part ended at 30, its checkpoint is of 20
        with Recorder(backend="none", seed=1, start_step=start, **how) as record:
            if start:
                record.evaluate(accuracy=0.25)  # at the checkpoint, before any step
            loop(record)
            record.evaluate(accuracy=start / 100 + 0.5)
    (run,) = load_runs([tmp_path])
    rows = run.history[run.history[metrics.LOSS].notna()]
    assert rows[metrics.STEP].tolist() == [10, 30, 40, 50]
    assert run.history[run.history[metrics.EVAL_ACCURACY].notna()][metrics.STEP].tolist() == [20, 50]
    looks = run.history[run.history[metrics.ZEROS].notna()]
    assert looks[metrics.STEP].tolist() == [10, 30, 40, 50]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("stride", [1, 3])
def test_an_open_run_loses_none_of_its_own_rows_nor_of_ours(tmp_path: Path, first: int, stride: int):
    """Which it logs with a `step=` of the training, at each or at some, before and behind ours."""
    settings = wandb.Settings(console="off", quiet=True)
    with wandb.init(dir=tmp_path, config={"lr": 0.5, "backend": "none"}, settings=settings) as run:
        loop = Loop(steps=1)
        how = {"optimizer": loop.optimizer, "diagnostics": 3, "every": 5, "warmup_steps": 0}
        with Recorder(backend="none", seed=4, run=run, **how, **QUIET) as record:
            for step in range(first, 60 + first):
                if step % stride == 0:
                    run.log({"mine/a": step}, step=step)
                loop(record)
                if step % 10 == 9:
                    record.evaluate(accuracy=step / 100)
                if step % stride == 0:
                    run.log({"mine/b": step}, step=step)
    end_service()
    (found,) = load_runs([tmp_path])
    assert (found.exit_code, found.config["lr"], found.config["seed"]) == (0, 0.5, 4)
    assert found.summary[metrics.ENVIRONMENT]["device_type"] == "cpu"
    steps = [step for step in range(first, 60 + first) if step % stride == 0]
    assert list(found.values("mine/a")) == list(found.values("mine/b")) == steps
    rows = found.history
    assert rows[rows[metrics.LOSS].notna()][metrics.STEP].tolist() == [*range(5, 61, 5)]
    assert rows[rows[metrics.ZEROS].notna()][metrics.STEP].tolist() == [*range(3, 61, 3)]
    ended = [step + 1 - first for step in range(first, 60 + first) if step % 10 == 9]
    assert rows[rows[metrics.EVAL_ACCURACY].notna()][metrics.STEP].tolist() == ended


def test_an_open_run_that_says_another_backend_or_was_not_given_is_refused(tmp_path: Path):
    settings = wandb.Settings(console="off", quiet=True)
    with wandb.init(dir=tmp_path, config={"backend": "none"}, settings=settings) as run:
        with pytest.raises(UserError, match="backend='mine': the open run's config says 'none'"):
            Recorder(backend="mine", run=run, **QUIET).__enter__()
        with pytest.raises(UserError, match="a W&B run is open; give it as run"):
            Recorder(backend="none", **QUIET).__enter__()
    with pytest.raises(UserError, match="run=int: expected a W&B run"):
        Recorder(backend="none", run=3, **QUIET).__enter__()


ENDS = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from support.a_loop import Loop
from ampcompare import Recorder
loop = Loop(steps=20)
with Recorder(backend="none", seed=1, batch_size=8, every=5, output_dir={folder!r}, quiet=True) as record:
    loop(record)
    print("trained", flush=True)
    {end}
    loop(record)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("sys.stdin.read()", None),  # and is killed
        ("raise ValueError('mine')", 1),
        ("os.kill(os.getpid(), signal.SIGTERM)", 255),
        ("os.kill(os.getpid(), signal.SIGINT)", 255),
    ],
)
def test_a_program_that_ends_in_the_middle_leaves_its_rows(tmp_path: Path, end: str, code: int | None):
    tests = str(Path(__file__).resolve().parents[1])
    program = ENDS.format(tests=tests, folder=str(tmp_path), end=end)
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "trained\n"
        if code is None:
            while not rows_in(tmp_path):  # the client writes each second
                time.sleep(0.2)
            process.kill()
    (run,) = load_runs([tmp_path])
    assert run.exit_code == code
    assert run.numbers(metrics.STEP)[:4].tolist() == [5, 10, 15, 20]
    assert run.config["backend"] == "none"


def rows_in(folder: Path) -> bool:
    """Whether all rows have reached the disk."""
    try:
        (run,) = load_runs([folder])
    except UserError:
        return False
    return len(run.history) >= 4


TOLD = """
import atexit, os, signal, sys
import torch
from ampcompare import Recorder

lent = sys.argv[1] == "lent"
run = None
if lent:
    import wandb
    run = wandb.init(settings=wandb.Settings(console="off", quiet=True))
atexit.register(print, "the program's own end", flush=True)
with Recorder(backend="none", seed=1, batch_size=8, every=1, run=run, quiet=True) as record:
    for step in range(5):
        record.step(loss=torch.tensor(1.0), samples=8)
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.slow
@pytest.mark.parametrize("lent", ["own", "lent"])
@pytest.mark.parametrize("sweep", [None, "abc123"])
def test_under_w_and_b_s_agent_a_loop_that_is_told_to_end_dies_by_the_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lent: str, sweep: str | None
):
    """To the agent an exit code above 0 is a failure, of which it bears three."""
    if sweep:
        monkeypatch.setenv("WANDB_SWEEP_ID", sweep)
    words = [sys.executable, "-c", TOLD, lent]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == (-signal.SIGTERM if sweep else 128 + signal.SIGTERM), done.stderr
    assert "the program's own end" in done.stdout
    assert "Traceback" not in done.stderr
    (run,) = load_runs([tmp_path])
    assert run.history[metrics.STEP].dropna().tolist() == [1, 2, 3]
    # An open run is ended by its owner, here by the end of the program.
    assert run.exit_code == (128 + signal.SIGTERM if lent == "lent" else 255)


EARLY = """
import os, signal, sys
import torch
from ampcompare import Recorder

record = Recorder(backend="none", seed=1, every=1, quiet=True)
if sys.argv[1] == "loop":
    with record:
        os.kill(os.getpid(), signal.SIGUSR1)  # while it loads its data
else:  # a trainer's callback, which nobody tells of the end
    record.begin()
    record.step(loss=torch.tensor(1.0), samples=8)
    os.kill(os.getpid(), signal.SIGUSR1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["loop", "callback"])
def test_a_warning_ends_the_record_before_the_first_step_and_without_a_with(tmp_path: Path, kind: str):
    words = [sys.executable, "-c", EARLY, kind]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 128 + signal.SIGUSR1, done.stderr
    assert "Traceback" not in done.stderr
    (run,) = load_runs([tmp_path])
    assert run.exit_code == 255
