"""A sweep whose runs train on the CPU does not share out the GPUs, wherever its file says so."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from ampcompare.sweeps.prepare import prepare

OURS = ["${env}", "${interpreter}", "-m", "ampcompare", "run", "${args_no_hyphens}"]
SEED = {"seed": {"values": [1, 2]}}


def is_on_cpu(folder: Path, words: list[str], **content: Any) -> bool:
    (folder / "train.py").write_text("")
    file = {"method": "grid", "program": str(folder / "train.py"), **content}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(file, sort_keys=False))
    return prepare(str(folder / "sweep.yaml"), words).on_cpu


@pytest.mark.parametrize(
    ("device", "words", "expected"),
    [
        (None, [], False),
        ({"value": "cpu"}, [], True),
        ({"values": ["cpu"]}, [], True),
        ({"values": ["cpu", "cuda"]}, [], False),
        ({"value": "cuda"}, [], False),
        ({"value": "auto"}, [], False),
        (None, ["device=cpu"], True),
        (None, ["--device=cpu"], True),
        (None, ["device=cuda:1"], False),
        ({"value": "cuda"}, ["device=cpu"], True),
        ({"values": ["cuda", "cpu"]}, ["device=cpu"], True),
        ({"value": "cpu"}, ["device=cuda"], False),
    ],
)
@pytest.mark.parametrize("is_ours", [True, False])
def test_the_device_of_a_parameter_and_of_an_override(
    tmp_path: Path, device: dict[str, Any] | None, words: list[str], expected: bool, is_ours: bool
):
    parameters = SEED if device is None else SEED | {"device": device}
    command = {"program": "ampcompare", "command": OURS} if is_ours else {}
    assert is_on_cpu(tmp_path, words, parameters=parameters, **command) is expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ([*OURS[:5], "device=cpu", OURS[5]], True),
        ([*OURS[:5], "--device=cpu", OURS[5]], True),
        ([*OURS[:5], "device=cuda", OURS[5]], False),
        ([*OURS[:5], "--config", "mine.yaml", OURS[5]], True),
    ],
)
def test_the_device_in_the_command_and_in_a_config_file_of_our_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], expected: bool
):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("device: cpu\n")
    assert is_on_cpu(tmp_path, [], program="ampcompare", command=command, parameters=SEED) is expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"parameters": {"trainer": {"parameters": {"device": {"value": "cpu"}}}}}, True),
        ({"parameters": {"trainer": {"parameters": {"accelerator": {"values": ["cpu"]}}}}}, True),
        ({"parameters": {"trainer.device": {"value": "cpu:0"}}}, True),
        (
            {"parameters": {"a": {"parameters": {"device": {"value": "cuda"}}}, "device": {"value": "cpu"}}},
            False,
        ),
        ({"parameters": SEED, "command": ["${program}", "--device", "cpu", "${args}"]}, True),
        ({"parameters": SEED, "command": ["${program}", "--device", "cuda", "${args}"]}, False),
        ({"parameters": SEED, "command": ["${program}", "--devices=cpu", "${args}"]}, False),
        ({"method": "random", "run_cap": 2, "parameters": {"device": {"values": ["cpu", "cpu"]}}}, True),
    ],
)
def test_the_device_of_another_program(tmp_path: Path, content: dict[str, Any], expected: bool):
    assert is_on_cpu(tmp_path, [], **content) is expected
