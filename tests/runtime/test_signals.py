"""A run that is asked to stop: what a signal does, and how the process ends."""

import itertools
import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
import wandb
from support.hooks import before_forward
from support.outside import Outside
from support.quick import QUICK
from support.training import play

from ampcompare import load_runs
from ampcompare.runs import RunRecord
from ampcompare.runtime.signals import StopRequest, is_preemption
from ampcompare.training.checkpoint.store import CheckpointStore

LEAVE = "import sys; from ampcompare.runtime.signals import exit_process; exit_process(int(sys.argv[1]))"
CODES = {
    signal.SIGINT: 130,
    signal.SIGTERM: 143,
    signal.SIGHUP: 129,
    signal.SIGUSR1: 138,
    signal.SIGUSR2: 140,
}
ABORTS = """
import atexit, os, sys

class Thread:  # of a library, that needs the interpreter while it ends
    def __del__(self, abort=os.abort):
        abort()

held = Thread()
atexit.register(print, "at exit")
"""


CTRL_C = """
import atexit, signal

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it
atexit.register(signal.raise_signal, signal.SIGINT)
"""


def leave(code: int, begin: str = "", **env: str) -> tuple[int, str]:
    command = [sys.executable, "-c", begin + LEAVE, str(code)]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(("size", "code"), [("2", 0), ("2", 1), ("1", -signal.SIGABRT)])
def test_one_of_several_processes_skips_pythons_shutdown(size: str, code: int):
    assert leave(max(0, code), ABORTS, WORLD_SIZE=size) == (code, "at exit\n")


def test_ctrl_c_within_pythons_own_end_ends_it_without_a_traceback():
    assert leave(0, CTRL_C) == (-signal.SIGINT, "")


def test_a_stopped_run_runs_no_exit_hooks_which_may_wait_for_a_server():
    hook = "import atexit; atexit.register(print, 'at exit'); "
    assert leave(0, hook) == (0, "at exit\n")
    assert leave(143, hook) == (143, "")


def test_what_a_stopped_run_has_printed_is_written_before_it_ends():
    assert leave(143, "print('printed before'); ", PYTHONUNBUFFERED="") == (143, "printed before\n")


# The thread ends the wait, as torchrun does once the first process has printed and ended.
BAD_INPUT = """
import os, signal, threading
from ampcompare.entrypoint import main

def end():
    while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        pass
    print("waited", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=end, daemon=True).start()
main(["batch_size=0"])
"""


def test_of_several_processes_with_one_error_the_first_shows_it_and_the_others_wait_for_it():
    ends = {}
    for rank in "01":
        env = os.environ | {"WORLD_SIZE": "2", "LOCAL_RANK": rank}
        done = subprocess.run([sys.executable, "-c", BAD_INPUT], env=env, capture_output=True, text=True)
        ends[rank] = done.returncode, done.stdout, done.stderr.partition(":")[0]
    assert ends == {"0": (2, "", "error"), "1": (2, "waited\n", "")}


def test_a_stopped_run_ends_by_its_signal_under_an_agent_and_else_by_exit_code():
    ends = {143: -signal.SIGTERM, 140: -signal.SIGUSR2, 1: 1}
    assert {code: leave(code, WANDB_SWEEP_ID="x")[0] for code in ends} == ends
    assert {code: leave(code)[0] for code in ends} == {code: code for code in ends}


@pytest.mark.parametrize(("number", "code"), CODES.items())
def test_signals_are_requests_while_entered_and_handled_as_before_afterwards(number: int, code: int):
    before = signal.signal(number, signal.default_int_handler)  # the tests may run under nohup
    try:
        with StopRequest() as stop:
            assert not stop.is_made()
            os.kill(os.getpid(), number)
            assert stop.is_interruption()
            assert stop.exit_code == code
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
    assert is_preemption(code) == (number in (signal.SIGUSR1, signal.SIGUSR2))


def test_between_two_sessions_a_request_handles_what_it_listens_to():
    """Several runs of one process: a batch system may warn while the next one is built."""
    missed: list[int] = []

    def miss(number: int, frame: object) -> None:
        missed.append(number)

    before = signal.signal(signal.SIGUSR1, miss)
    stop = StopRequest()
    try:
        stop.listen([signal.SIGUSR1])
        for _ in range(2):
            with stop:
                assert signal.getsignal(signal.SIGUSR1) is not miss
        os.kill(os.getpid(), signal.SIGUSR1)
        assert not missed
        assert (stop.reason, stop.exit_code) == ("SIGUSR1", 138)
        stop.close()
        assert signal.getsignal(signal.SIGUSR1) is miss
    finally:
        stop.close()
        signal.signal(signal.SIGUSR1, before)


def test_only_a_second_ctrl_c_interrupts():
    with StopRequest() as stop:
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM):
            os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert stop.exit_code == 138  # the first reason stays


def test_all_processes_take_one_code_and_the_own_ctrl_c_is_still_the_first():
    with StopRequest() as stop:
        stop.agree_on(130)
        assert (stop.reason, stop.exit_code) == ("Ctrl-C", 130)
        os.kill(os.getpid(), signal.SIGINT)  # the same one: a terminal's goes to all
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        stop.agree_on(138)
        assert (stop.reason, stop.exit_code) == ("SIGUSR1", 138)
        stop.agree_on(1)  # the record of process 0 takes no more rows
        assert (stop.is_made(), stop.is_interruption()) == (True, False)


def test_under_an_agent_a_run_dies_by_a_signal_that_its_shell_has_it_ignore():
    ignore = f"import signal; signal.signal({int(signal.SIGINT)}, signal.SIG_IGN); "
    assert leave(130, ignore, WANDB_SWEEP_ID="x")[0] == -signal.SIGINT


def test_under_nohup_the_end_of_the_terminal_is_none_of_its_business():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.is_made()
    finally:
        signal.signal(signal.SIGHUP, before)


EARLY = """
import os, sys
from ampcompare import entrypoint
from ampcompare.runtime.signals import exit_process

class Warning:  # asked for each module that is not loaded yet
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            os.kill(os.getpid(), int(sys.argv[1]))

sys.meta_path.insert(0, Warning())
exit_process(entrypoint.main(sys.argv[2:]))
"""


@pytest.mark.slow
def test_a_warning_while_libraries_load_is_heard_by_the_run_that_begins(tmp_path: Path):
    words = [EARLY, str(int(signal.SIGUSR2)), *QUICK, f"output_dir={tmp_path}"]
    done = subprocess.run([sys.executable, "-c", *words], capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (140, False), done.stderr
    assert "interrupted before step 1 (SIGUSR2); no work is lost" in done.stdout
    (record,) = load_runs([tmp_path])
    assert record.exit_code == 255


def terminated_at(
    call: int, *, training: bool, error: Exception | None = None
) -> AbstractContextManager[None]:
    """Return a context that sends SIGTERM to this process in a forward pass of the training or evaluation.

    Args:
        call: The number of the forward pass.
        training: Whether forward passes of the training are counted, or those of evaluations.
        error: Raised after the signal; None: nothing.
    """
    calls = itertools.count(1)

    def act(network: torch.nn.Module, images: torch.Tensor) -> None:
        if network.training == training and next(calls) == call:
            os.kill(os.getpid(), signal.SIGTERM)
            if error is not None:
                raise error

    return before_forward(act)


def stopped_run(folder: Path, *words: str) -> tuple[RunRecord, str]:
    said = play(f"output_dir={folder}", *words, code=143)
    (record,) = load_runs([folder])
    assert (record.state, record.exit_code, record.problems) == ("failed", 255, [])
    return record, said


def test_a_stopped_run_has_the_row_of_its_last_step_and_no_partial_evaluation(tmp_path: Path):
    steps = [3, 4]
    with terminated_at(1, training=False):
        record, said = stopped_run(tmp_path, "log.every=3", "eval.batch_size=8", "diagnostics.every=null")
    assert record.numbers("global_step").tolist() == steps
    assert record.values("train/loss").size == len(steps)
    assert record.summary["global_step"] == steps[-1]
    assert "throughput/images_per_second_median" in record.summary
    assert "eval/accuracy" not in record.history
    assert f"interrupted at step {steps[-1]} (SIGTERM)" in said


def test_a_step_that_fails_for_the_same_signal_is_no_failure_of_the_run(tmp_path: Path):
    """A compiler, say, that the signal has ended as well: the job is queued again, and goes on."""
    with terminated_at(6, training=True, error=ValueError("C++ compile error\nmore")):
        _, said = stopped_run(tmp_path, "checkpoint.every_epochs=1")
    why = "the step could not be finished (C++ compile error)"
    hint = "; continue from the checkpoint at step 4 with resume=auto"
    assert f"interrupted at step 6 (SIGTERM): {why}{hint}\n" in said
    play(f"output_dir={tmp_path}", "resume=auto")


@pytest.mark.parametrize("dies", [False, True], ids=["", "with W&B's service"])
def test_a_signal_while_w_and_b_starts_is_no_failure(tmp_path: Path, outside: Outside, dies: bool):
    def warn(**_: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        if dies:
            raise RuntimeError("wandb-core exited with code 128")

    outside.call_before(wandb, "init", warn)
    if dies:
        said = play(f"output_dir={tmp_path}", code=143)
    else:
        record, said = stopped_run(tmp_path)
        assert "global_step" not in record.history
    assert "interrupted before step 1 (SIGTERM); no work is lost" in said
    assert not list(tmp_path.rglob("*.pt"))


@pytest.mark.parametrize("dies", [True, False], ids=["the service has gone", ""])
def test_a_signal_after_the_last_step_interrupts_only_an_incomplete_record(
    tmp_path: Path, outside: Outside, dies: bool
):
    """A job that is queued again completes what it lacks."""

    def warn(run: wandb.Run, exit_code: int | None = None) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        if dies:
            raise ConnectionError

    outside.call_before(wandb.Run, "finish", warn)
    said = play(f"output_dir={tmp_path}", code=143 if dies else 0)
    (folder,) = (tmp_path / "checkpoints").iterdir()
    assert bool(CheckpointStore(folder).read_description()["ended"]) == (not dies)
    if dies:
        (line,) = [line for line in said.splitlines() if line.startswith("interrupted (SIGTERM): ")]
        assert "is incomplete: W&B's service process ended early" in line
        assert line.endswith("; complete the run with resume=auto")
