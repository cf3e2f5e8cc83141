"""A machine that cannot train some runs of a sweep says so before it trains, and ends the sweep."""

import json

import pytest
from support.quick import QUICK, ROOT
from support.refusals import line_of
from support.scripted_executor import ScriptedExecutor, drive
from support.sweep_project import SweepProject

from ampcompare.cli import main
from ampcompare.config.run_series import NEEDS_VARIABLE
from ampcompare.errors import EXIT_UNSUITABLE
from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.journal import read_journal
from ampcompare.sweeps.prepare import prepare
from ampcompare.sweeps.run_end import DRIVER, RunEnd
from ampcompare.sweeps.sweep_file import read_sweep
from ampcompare.sweeps.training_options import machine_needs
from ampcompare.training.machine_support import check_machine_for_sweep

TF32 = "backend='tf32': needs an NVIDIA GPU of compute capability 8.0 or higher"


@pytest.fixture(autouse=True)
def without_gpu(monkeypatch):
    """On every machine, PyTorch sees no GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize(
    ("needs", "parts"),
    [
        (
            [("auto", "tf32", "eager"), ("auto", "none", "eager")],
            ("some of the runs", TF32, "leave out backend=tf32,"),
        ),
        (
            [(d, b, e) for d in ("auto",) for b in ("none", "tf32") for e in ("eager", "cuda_graph")],
            (TF32, "execution='cuda_graph'", "leave out backend=tf32 and execution=cuda_graph,"),
        ),
        ([("auto", "tf32", "eager")], ("none of the runs", "another machine")),
    ],
)
def test_the_message_names_the_values_to_leave_out(monkeypatch, needs, parts):
    monkeypatch.setenv(NEEDS_VARIABLE, json.dumps(needs))
    line = line_of(check_machine_for_sweep)
    assert [part for part in parts if part not in line] == []


def test_a_machine_that_lacks_nothing_is_not_refused(monkeypatch):
    check_machine_for_sweep()  # this process is not one of a sweep
    needs = [("cpu", "none", "compile"), ("auto", "native", "eager"), ("auto", "./mine.py:Plugin", "eager")]
    monkeypatch.setenv(NEEDS_VARIABLE, json.dumps(needs))
    check_machine_for_sweep()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            {"method": "grid", "parameters": {"backend": ["none", "tf32"]}},
            [("auto", "none"), ("auto", "tf32")],
        ),
        (
            {"method": "random", "parameters": {"device": ["cpu", "cuda"]}},
            [("cpu", "none"), ("cuda", "none")],
        ),
        (  # the cap leaves one point: the others are no need
            {"method": "grid", "parameters": {"device": ["cpu"], "backend": ["none", "tf32"]}, "run_cap": 1},
            [("cpu", "none")],
        ),
    ],
)
def test_the_needs_of_a_sweep_are_those_of_its_runs(tmp_path, content, expected):
    parameters = {key: {"values": values} for key, values in content["parameters"].items()}
    command = ["ampcompare", "run", "execution=compile", "${args_no_hyphens}"]
    file = {**content, "name": "needs", "program": "ampcompare", "command": command, "parameters": parameters}
    (tmp_path / "s.yaml").write_text(json.dumps(file))
    prepared = prepare(str(tmp_path / "s.yaml"), [])
    found = machine_needs(prepared.sweep, prepared.config)
    assert sorted(found) == [(*pair, "compile") for pair in expected]


def test_the_first_refused_run_ends_the_sweep(tmp_path):
    executor = ScriptedExecutor(lambda run: RunEnd(EXIT_UNSUITABLE))
    runs = drive(tmp_path / "out", read_sweep("compare_gpu"), executor)
    assert [(run.state, run.refusals) for run in runs] == [(RunState.PREEMPTED, 1)]


def test_a_run_that_had_trained_goes_on_after_a_refusal(tmp_path):
    """Its machine had lost its GPU for one start; the run is neither failed nor begun anew."""
    ends = iter([RunEnd(-15, 1.0, DRIVER), RunEnd(EXIT_UNSUITABLE)])
    sweep = read_sweep("compare_gpu")
    executor = ScriptedExecutor(lambda run: next(ends, RunEnd(0)))
    (first,) = drive(tmp_path / "out", sweep, executor)
    assert (first.state, first.starts, first.refusals) == (RunState.PREEMPTED, 2, 1)
    assert not read_journal(tmp_path / "out").has_only_failed
    again = ScriptedExecutor()
    runs = drive(tmp_path / "out", sweep, again)
    assert {run.state for run in runs} == {RunState.FINISHED}
    assert again.submitted[0].run_id == first.run_id


@pytest.mark.slow
def test_the_command_line_trains_nothing_until_the_values_are_left_out(project: SweepProject, capsys):
    words = [*QUICK, f"output_dir={project.out}", "seed=1,2,3,4"]
    with pytest.raises(SystemExit) as ended:
        main(["sweep", "compare_gpu", *words])
    assert ended.value.code == 2
    assert "error: compare_gpu: this machine cannot train some of the runs" in capsys.readouterr().err
    state = read_journal(project.out)
    assert [(run.state, run.refusals) for run in state.runs.values()] == [(RunState.PREEMPTED, 1)]
    assert not [*(project.out / "wandb").glob("*run-*")]
