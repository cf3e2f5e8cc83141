"""A sweep with runs that this machine refuses says so in one line, before anything is written or trained."""

import json
import shlex

import pytest
from support.quick import ROOT

from ampcompare.cli import main
from ampcompare.errors import UserError
from ampcompare.sweeps.journal import Journal
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
    ("method", "parameters", "end"),
    [
        ("random", {"backend": {"values": ["native", "tf32"]}}, "backend=none,native"),
        ("random", {"backend": {"values": ["none", "tf32"], "probabilities": [0.5, 0.5]}}, "another machine"),
        ("grid", {"device": {"values": ["cuda", "cpu"]}}, "device=cpu"),
    ],
)
def test_values_of_any_file_are_checked(tmp_path, method, parameters, end):
    file = tmp_path / "mine.yaml"
    command = ["ampcompare", "run", "${args_no_hyphens}"]
    content = {"program": "ampcompare", "name": "mine", "method": method, "command": command}
    file.write_text(json.dumps({**content, "parameters": {**parameters, "epochs": {"values": [1, 2]}}}))
    message = refusal(str(file))
    assert "some of the runs" in message
    assert message.endswith(end)


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


def test_a_sweep_that_has_begun_goes_on(tmp_path):
    """Its other runs, its report and its status stay within reach on a machine that lacks something."""
    prepared = prepare("compare_gpu", [f"output_dir={tmp_path}", "seed=1"])
    Journal(tmp_path, prepared.sweep.name, definition(prepared.sweep, prepared.overrides)).close()
    check_machine(prepared)


@pytest.mark.parametrize(
    "start",
    [
        ["ssh", "gpuhost", "ampcompare", "run"],
        ["/opt/cuda/bin/python", "-m", "ampcompare", "run"],
        ["srun", "--gpus=1", "ampcompare", "run"],
        ["docker", "run", "image", "ampcompare", "run"],
    ],
)
def test_a_command_that_may_train_elsewhere_is_not_checked(tmp_path, start):
    file = tmp_path / "mine.yaml"
    content = {"program": "ampcompare", "name": "mine", "method": "grid"}
    content["command"] = [*start, "device=cuda", "${args_no_hyphens}"]
    file.write_text(json.dumps({**content, "parameters": {"epochs": {"values": [1, 2]}}}))
    check_machine(prepare(str(file), []))


def test_the_command_line_writes_nothing(tmp_path, capsys):
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as ended:
        main(["sweep", "compare_gpu", f"output_dir={out}"])
    assert ended.value.code == 2
    output = capsys.readouterr()
    assert len((output.out + output.err).splitlines()) == 1
    assert TF32 in output.err
    assert not out.exists()
