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
from ampcompare.program.stopping import StopRequest
from ampcompare.records import RunRecord, load_runs
from ampcompare.train import evaluation
from ampcompare.train import trainer as engine

LEAVE = "import sys; from ampcompare.program.stopping import leave; leave(int(sys.argv[1]))"


def leave(code: int, **env: str) -> int:
    return subprocess.run([sys.executable, "-c", LEAVE, str(code)], env={**os.environ, **env}).returncode


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
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
    assert [leave(code, WANDB_SWEEP_ID="x") for code in (0, 1, 2)] == [0, 1, 2]
    assert [leave(code) for code in (0, 1, 2, 130, 143)] == [0, 1, 2, 130, 143]


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
