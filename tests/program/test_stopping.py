"""A run that is asked to stop: what a signal does, and how the process ends."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from ampcompare.config.load import load_config
from ampcompare.experiment import run
from ampcompare.program.stopping import StopRequest, is_preemption, watching
from ampcompare.records import RunRecord, load_runs
from ampcompare.train import evaluation
from ampcompare.train import trainer as engine

LEAVE = "import sys; from ampcompare.program.stopping import leave; leave(int(sys.argv[1]))"


def leave(code: int, **env: str) -> int:
    return subprocess.run([sys.executable, "-c", LEAVE, str(code)], env={**os.environ, **env}).returncode


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        (signal.SIGTERM, 143),
        (signal.SIGHUP, 129),
        (signal.SIGUSR1, 138),
        (signal.SIGUSR2, 140),
    ],
)
def test_a_signal_is_a_request_while_entered_and_what_it_was_afterwards(number: int, code: int):
    before = signal.signal(number, signal.default_int_handler)  # the tests may run under nohup
    try:
        with StopRequest() as stop:
            assert not stop.is_made()
            os.kill(os.getpid(), number)
            assert stop.is_made()
            assert stop.exit_code == code
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)


def test_a_second_ctrl_c_interrupts_and_a_second_sigterm_does_not():
    with StopRequest() as stop:
        for number in (signal.SIGTERM, signal.SIGTERM):
            os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert stop.exit_code == 143  # the first reason stays


def test_under_nohup_the_end_of_the_terminal_is_none_of_its_business():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.is_made()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_under_an_agent_a_stopped_run_dies_by_its_signal():
    assert leave(143, WANDB_SWEEP_ID="x") == -signal.SIGTERM
    assert leave(130, WANDB_SWEEP_ID="x") == -signal.SIGINT
    assert leave(138, WANDB_SWEEP_ID="x") == -signal.SIGUSR1
    assert [leave(code, WANDB_SWEEP_ID="x") for code in (0, 1, 2)] == [0, 1, 2]
    assert [leave(code) for code in (0, 1, 2, 130, 138, 140, 143)] == [0, 1, 2, 130, 138, 140, 143]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_batch_systems_signals_are_preemptions_and_other_ends_are_none(number: int, monkeypatch):
    monkeypatch.delenv("WANDB_SWEEP_ID", raising=False)
    assert is_preemption(128 + number)
    assert not any(is_preemption(code) for code in (0, 1, 2, 129, 130))


def test_sigterm_from_the_runner_of_a_local_sweep_is_no_preemption():
    assert not is_preemption(143, is_local=True)
    assert is_preemption(138, is_local=True)


def test_what_w_and_b_asked_for_is_no_preemption_whichever_came_first():
    for first in (True, False):
        with StopRequest() as stop:
            if first:
                stop.from_wandb()
            os.kill(os.getpid(), signal.SIGUSR1)
            stop.from_wandb()
            assert not stop.is_preemption()


# What the real agent is to its run: a parent of that name, which dies of SIGTERM or hands it on.
AGENT = """
import os, signal, subprocess, sys
if "--forward-signals" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: None)
run = [sys.executable, "-c", "from ampcompare.program.agent import is_of_agent; print(is_of_agent())"]
child = subprocess.Popen(run, start_new_session=True)
if "dies" in sys.argv:
    os.kill(os.getpid(), signal.SIGTERM)
child.wait()
"""


@pytest.mark.parametrize(
    ("name", "words", "expected"),
    [
        ("wandb", ["agent", "e/p/s"], True),  # alive, so it got none: W&B told it to stop the run
        ("wandb", ["agent", "e/p/s", "dies"], False),
        ("wandb", ["agent", "--forward-signals", "e/p/s"], False),
        ("train", ["agent", "e/p/s"], False),
    ],
    ids=["alone", "with the agent", "handed on", "no agent"],
)
def test_sigterm_is_of_the_agents_making_if_the_agent_lives(
    tmp_path: Path, name: str, words: list[str], expected: bool
):
    (tmp_path / name).write_text(AGENT)
    done = subprocess.run([sys.executable, tmp_path / name, *words], stdout=subprocess.PIPE, text=True)
    assert done.stdout.strip() == str(expected)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_before_there_is_a_run_ends_the_program_with_its_number(number: int, tmp_path: Path):
    code = (
        "import os, sys; import ampcompare.entrypoint as e; from ampcompare.program.stopping import leave; "
    )
    code += f"e.parse = lambda *a, **k: os.kill(os.getpid(), {int(number)}); leave(e.main([]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (128 + number, "")
    assert "before the first step: nothing is lost" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_signal_behind_the_end_of_the_record_changes_nothing():
    with watching():
        with StopRequest():
            pass
        os.kill(os.getpid(), signal.SIGUSR1)
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def stop_at(call: int, owner: object, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send SIGTERM to this process within the given call of a function."""
    calls = iter(range(1, 1000))
    original = getattr(owner, name)

    def stopped(*args, **kwargs):
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, stopped)


def stopped_run(folder: Path, words: tuple[str, ...]) -> tuple[RunRecord, str]:
    text = io.StringIO()
    result = run(load_config(None, [*words, f"output_dir={folder}"]), Console(file=text, width=200))
    assert result.exit_code == 143
    (record,) = load_runs([folder])
    assert (record.state, record.exit_code) == ("failed", 255)
    assert record.problems == []
    return record, text.getvalue()


def test_a_run_stopped_in_a_step_has_the_row_of_that_step(tmp_path: Path, quick_overrides, monkeypatch):
    stop_at(3, engine.Trainer, "step", monkeypatch)
    record, said = stopped_run(tmp_path, (*quick_overrides, "log.every=100", "diagnostics.every=null"))
    assert record.numbers("global_step").tolist() == [3]
    assert record.values("train/loss").size == 1
    assert record.summary["global_step"] == 3
    assert "throughput/images_per_second_median" in record.summary
    assert "eval/accuracy" not in record.history
    assert "interrupted at step 3 (SIGTERM): the record so far is kept" in said


def test_a_run_stopped_in_an_evaluation_does_not_finish_it_and_has_the_steps_before(
    tmp_path: Path, quick_overrides, monkeypatch
):
    stop_at(1, evaluation.Evaluation, "run", monkeypatch)
    record, _ = stopped_run(tmp_path, (*quick_overrides, "log.every=3", "diagnostics.every=null"))
    assert record.numbers("global_step").tolist() == [3, 4]
    assert record.values("train/loss").size == 2
    assert "eval/accuracy" not in record.history
