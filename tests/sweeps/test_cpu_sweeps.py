"""A sweep whose runs train on the CPU does not share out the GPUs, wherever its file says so."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from ampcompare.sweeps.prepare import prepare

OURS = ["${env}", "${interpreter}", "-m", "ampcompare", "run", "${args_no_hyphens}"]
SEED = {"seed": {"values": [1, 2]}}


def is_on_cpu(words: list[str], is_ours: bool, **content: Any) -> bool:
    command = {"program": "ampcompare", "command": OURS} if is_ours else {"program": "train.py"}
    file = {"method": "grid", "parameters": SEED, **command, **content}
    Path("sweep.yaml").write_text(yaml.safe_dump(file, sort_keys=False))
    return prepare("sweep.yaml", words).on_cpu


def test_the_device_is_that_of_parameters_words_command_and_config_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
):
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    Path("mine.yaml").write_text("device: cpu\n")
    for device, words, expected in [
        ({"values": ["cpu"]}, [], True),
        ({"values": ["cpu", "cuda"]}, [], False),
        ({"value": "cuda"}, ["device=cpu"], True),
        ({"value": "cpu"}, ["--device=cuda"], False),
    ]:
        for is_ours in (True, False):
            with subtests.test(device=device, words=words, is_ours=is_ours):
                assert is_on_cpu(words, is_ours, parameters=SEED | {"device": device}) is expected
    assert is_on_cpu([], True, command=[*OURS[:5], "--config", "mine.yaml", OURS[5]])
    assert is_on_cpu([], False, command=["${program}", "--device", "cpu", "${args}"])
    trainer = {"trainer": {"parameters": {"accelerator": {"values": ["cpu"]}}}}
    assert is_on_cpu([], False, parameters=trainer)
