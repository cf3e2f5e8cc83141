"""Loops of people's own, recorded by W&B's client: read back, compared, killed, in a run of theirs."""

import math
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import wandb
from support.recorded_loop import Loop

from ampcompare import Recorder, analyse_runs, load_runs, metrics
from ampcompare.errors import UserError
from ampcompare.wandb_client.client import end_service

QUIET: dict[str, Any] = {"batch_size": 8}


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
            drops[backend] = loop.skipped_steps
    runs = load_runs([tmp_path])
    assert all(run.exit_code == 0 and not run.problems for run in runs)
    analysis = analyse_runs(runs)
    assert {group.label: group.n for group in analysis.groups} == {"none": 2, "native": 2}
    for group in analysis.groups:
        assert {*group.rows["skipped_steps"]} == {drops["native"] if group.label == "native" else 0}
    assert drops["native"] > 1
    assert analysis.quantities.speed == "samples/s"


@pytest.mark.parametrize(
    ("recorded", "key", "known"),
    [
        ({"batch_size": 64}, "batch_size", ("64", None)),
        ({"batch_size": 128}, "batch_size", ("128", "128")),
        ({"config": {"optimizer": {"lr": 0.05}}}, "optimizer.lr", ("0.05", None)),
    ],
)
def test_an_option_that_a_loop_does_not_record_is_its_default_only_where_all_have_that(
    tmp_path: Path, recorded: dict[str, Any], key: str, known: tuple[str, str | None]
):
    for backend, own in (("none", recorded), ("other", {})):
        with Recorder(backend=backend, seed=1, output_dir=tmp_path, quiet=True, **own) as record:
            record.step(loss=1.0, samples=8)
            record.evaluate(accuracy=0.5)
    groups = {group.label: group for group in analyse_runs(load_runs([tmp_path])).groups}
    assert tuple(groups[backend].settings.get(key) for backend in ("none", "other")) == known


def test_a_loop_that_resumes_from_its_checkpoint_keeps_its_earlier_record(
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
    expected = {metrics.LOSS: [10, 30, 40, 50], metrics.EVAL_ACCURACY: [20, 50]}
    expected[metrics.ZEROS] = [10, 30, 40, 50]
    for key, steps in expected.items():
        assert run.history[run.history[key].notna()][metrics.STEP].tolist() == steps


def test_the_first_anomaly_of_an_earlier_part_stays_the_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The part that resumes has no state of the earlier one. The search for the first scale is no anomaly."""
    monkeypatch.setenv("WANDB_RUN_ID", "again")
    for start, drops in ((0, {2, 21}), (30, {1, 27})):
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        overflow = lambda step, drops=drops: math.inf if step in drops else 1.0  # noqa: E731
        how = {"scaler": scaler, "every": 10, "start_step": start, "output_dir": tmp_path, **QUIET}
        with Recorder(backend="native", seed=1, **how) as record:
            Loop(scaler, factor=overflow)(record)
    (run,) = load_runs([tmp_path])
    assert run.summary[metrics.FIRST_ANOMALY] == 21


@pytest.mark.parametrize("sweep", ["of-w-and-b", "local"])
def test_each_fold_of_a_program_has_a_record_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sweep: str
):
    """The first has the id that a sweep reads, and a later part continues the fold before it."""
    monkeypatch.setenv("WANDB_RUN_ID", f"first-{sweep}")
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep")
    if sweep == "local":
        monkeypatch.setenv("AMPCOMPARE_LOCAL_SWEEP", "sweep")
        monkeypatch.delenv("WANDB_RUN_GROUP", raising=False)
    for fold, parts in enumerate(((0,), (0, 3), (0,))):
        for start in parts:
            with Recorder(backend="none", start_step=start, every=1, output_dir=tmp_path, **QUIET) as record:
                for _ in range(3):
                    record.step(loss=float(fold), samples=8)
                record.evaluate(accuracy=fold / 10 + start / 100)
    runs = load_runs([tmp_path])
    assert sorted(run.values(metrics.EVAL_ACCURACY).tolist() for run in runs) == [[0.0], [0.1, 0.13], [0.2]]
    (named,) = [run for run in runs if run.id == f"first-{sweep}"]
    assert named.values(metrics.EVAL_ACCURACY).tolist() == [0.0]
    assert not any(run.problems for run in runs)
    assert {run.group for run in runs} == {"sweep"}


@pytest.mark.parametrize(("first", "stride"), [(0, 1), (1, 3), (0, 100)])
def test_an_open_run_keeps_its_own_rows_and_the_recorders(tmp_path: Path, first: int, stride: int):
    """Which it logs with a `step=` of the training, at each, some, or one, before and behind ours."""
    settings = wandb.Settings(console="off", quiet=True)
    with wandb.init(dir=tmp_path, config={"lr": 0.5, "backend": "none"}, settings=settings) as run:
        loop = Loop(steps=1)
        how = {"optimizer": loop.optimizer, "diagnostics": 3, "every": 5, "warmup_steps": 0}
        with Recorder(backend="none", seed=4, run=run, **how, **QUIET) as record:
            for step in range(first, 60 + first):
                if step % stride == 0:
                    run.log({"mine/a": step}, step=step)
                loop(record)
                if record.steps % 10 == 0:
                    record.evaluate(accuracy=step / 100)
                if step % stride == 0:
                    run.log({"mine/b": step}, step=step)
            assert run.step > 20  # ours are committed though the owner logs nothing
    end_service()
    (found,) = load_runs([tmp_path])
    assert (found.exit_code, found.config["lr"], found.config["seed"]) == (0, 0.5, 4)
    steps = [step for step in range(first, 60 + first) if step % stride == 0]
    assert [*found.values("mine/a")] == [*found.values("mine/b")] == steps
    for key, every in ((metrics.LOSS, 5), (metrics.ZEROS, 3), (metrics.EVAL_ACCURACY, 10)):
        rows = found.history[found.history[key].notna()]
        assert rows[metrics.STEP].tolist() == [*range(every, 61, every)]


def test_an_open_run_with_another_backend_or_that_was_not_given_is_refused(tmp_path: Path):
    settings = wandb.Settings(console="off", quiet=True)
    with wandb.init(dir=tmp_path, config={"backend": "none"}, settings=settings) as run:
        with pytest.raises(UserError, match="backend='mine': the config of the open W&B run has 'none'"):
            Recorder(backend="mine", run=run, **QUIET).__enter__()
        with pytest.raises(UserError, match="a W&B run is open; give it as run"):
            Recorder(backend="none", **QUIET).__enter__()
    with pytest.raises(UserError, match="run=int: expected a W&B run"):
        Recorder(backend="none", run=3, **QUIET).__enter__()


ENDS = """
import atexit, os, signal, sys, time
import torch
from ampcompare import Recorder, load_runs
from ampcompare.errors import UserError

how, name = sys.argv[1:]
run = None
if how == "lent":
    import wandb
    run = wandb.init(settings=wandb.Settings(console="off", quiet=True))
atexit.register(print, "the program's own end", flush=True)
record = Recorder(backend="none", seed=1, batch_size=8, every=1, run=run)

def is_on_disk():
    try:
        return len(load_runs(["runs"])[0].history) >= 3
    except UserError:
        return False

def end():
    os.kill(os.getpid(), getattr(signal, name))

def train():
    for step in range(5):
        record.step(loss=torch.tensor(1.0), samples=8)
        if step == 2:
            while name == "SIGKILL" and not is_on_disk():  # W&B's client writes each second
                time.sleep(0.2)
            end()

if how == "callback":  # a trainer's, which is not told of the end
    record.begin()
    train()
with record:
    if how == "early":  # while it loads its data
        end()
    train()
"""
TERM = signal.SIGTERM


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "name", "code", "recorded"),
    [
        ("own", "SIGKILL", -signal.SIGKILL, None),
        ("own", "SIGTERM", 128 + TERM, 255),
        ("lent", "SIGTERM", 128 + TERM, 128 + TERM),  # an open run is ended by its owner, the program's end
        ("sweep", "SIGTERM", -TERM, 255),  # to W&B's agent an exit code is a failure, of which it bears three
        ("early", "SIGUSR1", 128 + signal.SIGUSR1, 255),
        ("callback", "SIGUSR1", 128 + signal.SIGUSR1, 255),
    ],
)
def test_a_program_that_ends_in_the_middle_leaves_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, name: str, code: int, recorded: int | None
):
    if how == "sweep":
        monkeypatch.setenv("WANDB_SWEEP_ID", "abc123")
    words = [sys.executable, "-c", ENDS, how, name]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert ("the program's own end" in done.stdout) is (name != "SIGKILL")
    assert "Traceback" not in done.stderr
    (run,) = load_runs([tmp_path])
    assert run.exit_code == recorded
    assert run.config["backend"] == "none"
    steps = run.history[metrics.STEP].dropna().tolist() if metrics.STEP in run.history else []
    assert steps == ([] if how == "early" else [1, 2, 3])
