"""A sweep with runs that this machine refuses says so in one line, before anything is written or trained."""

import json
import shlex

import pytest
from support.quick import ROOT

from ampcompare.cli import main
from ampcompare.errors import UserError
from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.journal import Journal, SweepRun
from ampcompare.sweeps.machine_check import check_machine
from ampcompare.sweeps.prepare import SweepOptions, prepare
from ampcompare.sweeps.sweep_identity import definition

TF32 = "backend='tf32': needs an NVIDIA GPU of compute capability 8.0 or higher"
GRAPH = "execution='cuda_graph'"


@pytest.fixture(autouse=True)
def without_gpu(monkeypatch):
    """On every machine, PyTorch sees no GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(ROOT)


def refusal(name: str, *words: str, **options: object) -> str:
    with pytest.raises(UserError) as refused:
        check_machine(prepare(name, words, SweepOptions(**options)))
    (line,) = refused.value.lines
    return line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sweep", "words", "reasons", "overrides"),
    [
        ("compare_gpu", (), [TF32], ["backend=none,native,native_bf16"]),
        # A baseline in strict fp32 is there already.
        (
            "compare_gpu",
            ("backend=none,tf32,native", "epochs=2"),
            [TF32],
            ["epochs=2", "backend=none,native"],
        ),
        (
            "execution",
            ("execution=eager,cuda_graph",),
            [TF32, GRAPH],
            ["backend=none,native,apex_o1", "execution=eager"],
        ),
    ],
)
def test_the_message_names_the_command_that_trains_the_others(sweep, words, reasons, overrides):
    message = refusal(sweep, *words)
    assert all(reason in message for reason in reasons)
    command = shlex.split(message.rpartition("to train the others: ")[2])
    assert command[1:] == ["sweep", sweep, *overrides]
    check_machine(prepare(sweep, overrides))  # this command is not refused


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sweep", "words"),
    [("compare_gpu", ("backend=tf32",)), ("compare_backends", ("device=cuda",))],
)
def test_if_no_run_can_be_trained_there_is_no_such_command(sweep, words):
    message = refusal(sweep, *words)
    assert "none of the runs" in message
    assert "to train the others" not in message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "parameters", "override"),
    [
        ("random", {"backend": {"values": ["native", "tf32"]}}, "backend=none,native"),
        ("grid", {"device": {"values": ["cuda", "cpu"]}}, "device=cpu"),
    ],
)
def test_values_of_any_file_are_checked(tmp_path, method, parameters, override):
    file = tmp_path / "mine.yaml"
    command = ["ampcompare", "run", "${args_no_hyphens}"]
    content = {"program": "ampcompare", "name": "mine", "method": method, "command": command}
    file.write_text(json.dumps({**content, "parameters": {**parameters, "epochs": {"values": [1, 2]}}}))
    assert refusal(str(file)).endswith(override)


@pytest.mark.parametrize(
    ("sweep", "words", "options"),
    [
        ("compare_backends", (), {}),
        ("compare_gpu", (), {"cluster": "slurm"}),  # the jobs run on other machines
        ("compare_gpu", (), {"cluster": "ray"}),
    ],
)
def test_a_sweep_that_can_be_trained_is_not_refused(sweep, words, options):
    check_machine(prepare(sweep, words, SweepOptions(**options)))


@pytest.mark.slow
@pytest.mark.parametrize("is_refused_run_left", [True, False])
def test_of_a_sweep_that_has_begun_only_the_runs_that_are_left_count(tmp_path, is_refused_run_left):
    words = [f"output_dir={tmp_path}", "seed=1"]
    prepared = prepare("compare_gpu", words)
    journal = Journal(tmp_path, prepared.sweep.name, definition(prepared.sweep, prepared.overrides))
    journal.begin_driver()
    for point in prepared.sweep.points:
        if point.parameters["backend"] == "tf32" and is_refused_run_left:
            continue
        run = journal.propose(SweepRun(point.index, parameters=point.parameters))
        journal.append("started", index=run.index, run_id=run.run_id, process={"pid": 1})
        end = {"value": 0.5, "exit_code": 0, "by_signal": False}
        journal.append("ended", index=run.index, run_id=run.run_id, state=RunState.FINISHED, **end)
    journal.close()
    if is_refused_run_left:
        assert "that are left" in refusal("compare_gpu", *words)
    else:
        check_machine(prepared)


def test_the_command_line_writes_nothing(tmp_path, capsys):
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as ended:
        main(["sweep", "compare_gpu", f"output_dir={out}"])
    assert ended.value.code == 2
    output = capsys.readouterr()
    assert len((output.out + output.err).splitlines()) == 1
    assert TF32 in output.err
    assert not out.exists()
