"""AMPCOMPARE_RESUME: how a sweep tells a run of any program that it is tried again."""

import contextlib
from types import SimpleNamespace

import pytest

from ampcompare import entrypoint, experiment
from ampcompare.sweeps.process import Guard, Launch
from ampcompare.sweeps.sweep_file import Sweep
from ampcompare.sweeps.table import Row

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
    monkeypatch.setattr(experiment, "run", lambda c, **how: seen.append(c) or SimpleNamespace(exit_code=0))
    assert entrypoint.main(["--config", "demo", *words]) == 0
    assert seen[0].resume == expected


def test_first_try_of_a_sweeps_run_does_not_hear_of_the_sweeps_own(monkeypatch, tmp_path):
    monkeypatch.setenv("AMPCOMPARE_RESUME", "auto")
    (tmp_path / "logs").mkdir()
    tells = ["sh", "-c", 'echo "heard ${AMPCOMPARE_RESUME-nothing}"']
    launch = Launch(Sweep(tmp_path, "s", "grid", (), command=tells), tmp_path, (), {}, here=False)
    with contextlib.closing(Guard()) as guard:
        for starts in (1, 2):
            assert launch.start(Row(0, "r1", starts=starts), guard).wait(600) == 0
    assert launch.log("r1").read_text() == "heard nothing\nheard auto\n"
