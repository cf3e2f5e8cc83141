"""AMPCOMPARE_RESUME: how a sweep tells a run of any program that it is tried again."""

import contextlib
import shutil
import signal
from pathlib import Path

import pytest
from support.quick import QUICK

from ampcompare import entrypoint
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.process_guard import ProcessGuard
from ampcompare.sweeps.run_launcher import RunLauncher
from ampcompare.sweeps.sweep_file import Sweep

AGENT = {"WANDB_SWEEP_ID": "s", "WANDB_RUN_ID": "r"}
RUN = [*QUICK, "max_steps=2", "data.test_limit=8", "checkpoint.every_epochs=1"]


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the output folder of a run with the id r that was stopped after its first step."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_RUN_ID", "r")
        words = [*RUN, f"output_dir={folder}"]
        assert entrypoint.main(words, on_step=lambda step: signal.raise_signal(signal.SIGTERM)) == 143
    return folder


@pytest.mark.parametrize(
    ("given", "words", "expected"),
    [
        ({}, [], "never"),
        ({"AMPCOMPARE_RESUME": "auto"}, [], "auto"),
        ({"AMPCOMPARE_RESUME": "auto"}, ["resume=never"], "never"),
        (AGENT, [], "auto"),
        (AGENT | {"AMPCOMPARE_RESUME": "never"}, [], "never"),
    ],
)
def test_training_resumes_as_environment_and_agent_say_unless_told(
    stopped_run: Path, tmp_path: Path, monkeypatch, capsys, given, words, expected
):
    shutil.copytree(stopped_run, tmp_path / "runs")
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert entrypoint.main([*RUN, f"output_dir={tmp_path / 'runs'}", *words]) == 0
    assert ("resuming run r at step" in capsys.readouterr().out) == (expected == "auto")


def test_first_try_of_a_sweeps_run_does_not_hear_of_the_sweeps_own(monkeypatch, tmp_path):
    monkeypatch.setenv("AMPCOMPARE_RESUME", "auto")
    (tmp_path / "logs").mkdir()
    tells = ["sh", "-c", 'echo "heard ${AMPCOMPARE_RESUME-nothing}"']
    launcher = RunLauncher(Sweep(tmp_path, "s", "grid", (), command=tells), tmp_path, (), {}, False)
    with contextlib.closing(ProcessGuard()) as guard:
        for starts in (0, 1):
            process = launcher.start([SweepRun(0, "r1", starts=starts)], guard)
            while process.poll() is None:
                pass
    assert launcher.log_file("r1").read_text() == "heard nothing\nheard auto\n"
