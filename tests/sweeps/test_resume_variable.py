"""AMPCOMPARE_RESUME: how a sweep tells a run of any program that it is tried again."""

import contextlib
from types import SimpleNamespace

import pytest

from ampcompare import entrypoint, experiment
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.process_guard import ProcessGuard
from ampcompare.sweeps.run_process import RunLauncher
from ampcompare.sweeps.sweep_file import Sweep

AGENT = {"WANDB_SWEEP_ID": "s", "WANDB_RUN_ID": "r"}


@pytest.mark.parametrize(
    ("given", "words", "expected"),
    [
        ({}, [], "never"),
        ({"AMPCOMPARE_RESUME": ""}, [], "never"),
        ({"AMPCOMPARE_RESUME": "auto"}, [], "auto"),
        ({"AMPCOMPARE_RESUME": "auto"}, ["resume=never"], "never"),
        ({"AMPCOMPARE_RESUME": "never"}, ["--resume=auto"], "auto"),
        ({"AMPCOMPARE_RESUME": "auto"}, ['{"resume": "never"}'], "never"),
        (AGENT, [], "auto"),
        (AGENT, ["resume=never"], "never"),
        (AGENT | {"AMPCOMPARE_RESUME": "never"}, [], "never"),
        ({"WANDB_RUN_ID": "r"}, [], "never"),
    ],
)
def test_training_resumes_as_environment_and_agent_say_unless_told(monkeypatch, given, words, expected):
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    seen = []

    def note(config, console, **how):
        seen.append(config)
        return SimpleNamespace(exit_code=0)

    monkeypatch.setattr(experiment, "run", note)
    assert entrypoint.main(["--config", "demo", *words]) == 0
    assert seen[0].resume == expected


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
