"""The command: its table, its file, its page, and one line for what is wrong."""

from __future__ import annotations

import json

import pytest

from ampcompare.cli import main

TINY = ["model.name=tiny", "data.source=synthetic", "batch_size=8", "device=cpu"]


def run(*words):
    with pytest.raises(SystemExit) as ended:
        main(["why", "explain", *words])
    return ended.value.code or 0


@pytest.fixture
def file(tmp_path):
    """What the command writes of a tiny network on a device that is not there."""
    path = tmp_path / "new" / "explained.json"
    assert run(*TINY, "backend=apex_o1", "--on", "H100", "--json", str(path)) == 0
    return path


def test_the_file_holds_both_backends_and_their_differences(file, capsys):
    content = json.loads(file.read_text())
    assert [side["backend"] for side in content["backends"]] == ["none", "apex_o1"]
    assert content["backends"][1]["time"]["seconds"] < content["backends"][0]["time"]["seconds"]
    assert {"conv2d", "batch_norm"} <= {difference["function"] for difference in content["differences"]}
    assert "NVIDIA H100 SXM" in content["device"]


def test_native_is_explained_where_no_backend_is_named(capsys):
    assert run(*TINY, "--seconds", "0.2") == 0
    said = capsys.readouterr().out
    assert "native (torch.amp, float16) against none" in said
    assert "Memory, MiB" in said
    assert "Time of a step, ms" in said


def test_options_of_a_run_and_of_the_command_mix(capsys):
    words = ["--config", "demo", "--on", "v100", "model.name=tiny", "--against", "native", "backend=fp16"]
    assert run(*words) == 0
    assert "fp16 (pure fp16, float16) against native" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--on", "H1000"], "--on 'H1000'"),
        (["--on", "NVIDIA"], "several of that name"),
        (["backend=native", "--against", "native"], "--against native: the same backend"),
        (["--on", "T4", "--measure", "2"], "--measure 2"),
        (["--against", "nativ"], "nativ"),
        (["model.nam=x"], "model.nam"),
    ],
)
def test_what_is_wrong_is_one_line_and_code_two(capsys, words, said):
    assert run(*TINY, *words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_network_that_looks_at_values_is_refused_in_one_line(tmp_path, capsys):
    lines = "import torch\nfrom torch import nn\nclass N(nn.Module):\n  def __init__(s):\n"
    lines += "    super().__init__()\n    s.l = nn.Linear(3 * 32 * 32, 10)\n  def forward(s, x):\n"
    lines += "    return s.l(x.flatten(1) * (2 if x.sum().item() > 0 else 1))\n"
    (tmp_path / "looks.py").write_text(f"{lines}def build(num_classes):\n    return N()\n")
    assert run(f"model.name={tmp_path}/looks.py:build", *TINY[1:], "--on", "T4") == 2
    assert "without data" in capsys.readouterr().err
