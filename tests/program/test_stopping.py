"""A run that is asked to stop: what a signal does, and how the process ends."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rich.console import Console

from ampcompare import experiment
from ampcompare.checkpoint.store import Store
from ampcompare.config.load import load_config
from ampcompare.experiment import run
from ampcompare.program.stopping import StopRequest, is_preemption
from ampcompare.records import RunRecord, load_runs
from ampcompare.tracking import taken, wandb_run
from ampcompare.tracking.wandb_run import WandbRun
from ampcompare.train import evaluation
from ampcompare.train.step import Trainer

LEAVE = "import sys; from ampcompare.program.stopping import leave; leave(int(sys.argv[1]))"


def leave(code: int, **env: str) -> int:
    return subprocess.run([sys.executable, "-c", LEAVE, str(code)], env={**os.environ, **env}).returncode


ABORTS = """
import atexit, os, sys

class Thread:  # of a library, that needs the interpreter while it ends
    def __del__(self, abort=os.abort):
        abort()

held = Thread()
atexit.register(print, "at exit")
"""


@pytest.mark.parametrize(("size", "code"), [("2", 0), ("2", 1), ("1", -signal.SIGABRT)])
def test_one_of_several_processes_does_without_pythons_own_end(size: str, code: int):
    command = [sys.executable, "-c", ABORTS + LEAVE, str(max(0, code))]
    env = {**os.environ, "WORLD_SIZE": size}
    ended = subprocess.run(command, env=env, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (code, "at exit\n")


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


def test_what_another_process_heard_is_taken_over_and_the_own_ctrl_c_is_still_the_first():
    with StopRequest() as stop:
        stop.adopt(130)
        assert (stop.reason, stop.exit_code) == ("Ctrl-C", 130)
        os.kill(os.getpid(), signal.SIGINT)  # the same one: a terminal's goes to all
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_all_processes_take_one_code_whatever_each_has_heard():
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        stop.adopt(143)
        assert stop.reason == "SIGTERM"
        stop.adopt(138)
        assert (stop.reason, stop.exit_code) == ("SIGUSR1", 138)
        assert stop.is_preemption()
        stop.adopt(1)  # the record of process 0 takes no more rows
        assert (stop.is_made(), stop.exit_code) == (True, 1)


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_before_there_is_a_run_ends_the_program_with_its_number(number: int, tmp_path: Path):
    code = "import os, sys; import ampcompare.entrypoint as e; import ampcompare.config.arguments as c; "
    code += f"c.parse = lambda *a, **k: os.kill(os.getpid(), {int(number)}); "
    code += "from ampcompare.program.stopping import leave; leave(e.main([]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (128 + number, "")
    assert "before the first step: nothing is lost" in done.stdout
    assert list(tmp_path.iterdir()) == []


SWALLOWING = """
import os, signal

def build(train):
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        sum(range(10**6))
    except BaseException:
        pass
    raise ValueError("no signal was heard")
"""


@pytest.mark.slow
def test_nothing_that_is_under_way_keeps_the_signal_to_itself(tmp_path: Path):
    """Somebody's code, or what takes exceptions for refusals: an exception would be lost in both."""
    (tmp_path / "data.py").write_text(SWALLOWING)
    words = [sys.executable, "-m", "ampcompare", "run", "data.source=./data.py:build", "model.name=tiny"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 138, done.stderr
    assert "SIGUSR1 before the first step: nothing is lost" in done.stdout
    assert done.stderr == ""


# Each word is a moment: when the program's name is all that there is, and when its command line is there.
@pytest.mark.parametrize("module", ["typer", "omegaconf"])
def test_it_hears_from_its_first_import_on(module: str, tmp_path: Path):
    (tmp_path / f"{module}.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGUSR2)")
    words = [sys.executable, "-m", "ampcompare", "run"]
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(tmp_path)}
    )
    assert (done.returncode, done.stderr) == (140, "")


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
    stop_at(3, Trainer, "step", monkeypatch)
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


@pytest.mark.parametrize("step", [1, 6])
def test_a_step_that_fails_for_the_same_signal_is_no_failure_of_the_run(
    tmp_path: Path, quick_overrides, monkeypatch, step: int
):
    """A compiler, say, that the signal has ended as well: the job is queued again, and goes on."""
    real, calls = Trainer.step, iter(range(1, 1000))

    def fails(*args, **kwargs):
        if next(calls) == step:
            os.kill(os.getpid(), signal.SIGTERM)
            raise ValueError("C++ compile error\nmore")
        return real(*args, **kwargs)

    words = (*quick_overrides, "checkpoint.every_epochs=1")
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", fails)
        _, said = stopped_run(tmp_path, words)
    why = "what was under way could not be finished (C++ compile error)"
    hint = "; go on from the checkpoint at step 4 with resume=auto" if step == 6 else ""
    assert f"interrupted at step {step} (SIGTERM): {why}{hint}\n" in said
    again = run(
        load_config(None, [*words, "resume=auto", f"output_dir={tmp_path}"]), Console(file=io.StringIO())
    )
    assert again.exit_code == 0
    whole = [r for r in load_runs([tmp_path]) if r.state == "finished"]
    assert len(whole) == 1


def test_a_signal_while_w_and_b_starts_ends_a_record_that_is_whole(
    tmp_path: Path, quick_overrides, monkeypatch
):
    stop_at(1, experiment, "start_tracker", monkeypatch)
    record, said = stopped_run(tmp_path, quick_overrides)
    assert "interrupted before step 1 (SIGTERM): nothing is lost" in said
    assert "global_step" not in record.history


def test_a_signal_that_ends_w_and_b_s_service_as_it_starts_is_no_failure(
    tmp_path: Path, quick_overrides, monkeypatch
):
    told: list[bool] = []

    def fails(*given, **named):
        os.kill(os.getpid(), signal.SIGUSR1)
        raise RuntimeError("wandb-core exited with code 128")

    monkeypatch.setattr(experiment, "start_tracker", fails)
    monkeypatch.setattr(taken, "tell_beside", lambda: told.append(True))
    text = io.StringIO()
    words = [*quick_overrides, "checkpoint.every_epochs=1", f"output_dir={tmp_path}"]
    assert run(load_config(None, words), Console(file=text, width=200)).exit_code == 138
    assert "interrupted before step 1 (SIGUSR1): nothing is lost" in text.getvalue()
    assert told == [True]
    assert not list(tmp_path.rglob("*.pt"))


HANGING = """
import os, signal, sys, threading
from ampcompare import entrypoint, experiment
from ampcompare.program.stopping import leave

def hang(*given, **named):
    os.kill(os.getpid(), signal.SIGUSR1)
    threading.Event().wait()

experiment.start_tracker, experiment.START_SECONDS = hang, 0.2
leave(entrypoint.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_start_of_w_and_b_that_hangs_is_left_when_the_machine_is_taken_away(
    tmp_path: Path, quick_overrides
):
    words = [sys.executable, "-c", HANGING, *quick_overrides, f"output_dir={tmp_path}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 138, done.stderr
    assert "interrupted before its first step (SIGUSR1): W&B has not answered; nothing is lost" in done.stdout


@pytest.mark.parametrize("lack", ["the service has gone", None])
def test_a_signal_behind_the_last_step_is_a_failure_only_if_the_record_is_whole(
    tmp_path: Path, quick_overrides, monkeypatch, lack: str | None
):
    """A job that is queued again completes what it lacks."""
    finish = WandbRun.finish

    def finished(self, summary, exit_code):
        os.kill(os.getpid(), signal.SIGTERM)
        found = finish(self, summary, exit_code)
        assert found is None
        return lack

    words = [*quick_overrides, "checkpoint.every_epochs=1", f"output_dir={tmp_path}"]
    with monkeypatch.context() as patch:
        patch.setattr(WandbRun, "finish", finished)
        text = io.StringIO()
        result = run(load_config(None, words), Console(file=text, width=200))
    assert result.exit_code == (143 if lack else 0)
    (folder,) = (tmp_path / "checkpoints").iterdir()
    assert bool(Store(folder).about()["ended"]) == (lack is None)
    if lack:
        assert f"interrupted (SIGTERM): {lack}; complete it with resume=auto" in text.getvalue()


def test_an_end_that_hangs_is_left_when_the_machine_is_taken_away(
    tmp_path: Path, quick_overrides, monkeypatch
):
    monkeypatch.setattr(wandb_run, "STOPPED_SECONDS", 0.2)
    hung, real = threading.Event(), WandbRun._finish

    def hang(self, *given):
        os.kill(os.getpid(), signal.SIGTERM)
        hung.wait()
        real(self, *given)

    monkeypatch.setattr(WandbRun, "_finish", hang)
    text = io.StringIO()
    try:
        words = [*quick_overrides, f"output_dir={tmp_path}"]
        result = run(load_config(None, words), Console(file=text, width=300))
    finally:
        ending = [thread for thread in threading.enumerate() if thread.name == "finish"]
        hung.set()
        for thread in ending:
            thread.join()
    assert result.exit_code == 143
    assert "could not be sent whole in time" in text.getvalue()
