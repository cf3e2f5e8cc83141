"""Other people's network, data, loss and metrics that do not go together: a line before the record."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.refusals import line_of
from support.training import play

NET = """
from torch import nn


class Named(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x, shift):
        return self.layers(x) + shift


def build():
    return Named(4)


def other():
    return Named(5)
"""
TABLE = """
import torch


def build(train):
    draw = torch.Generator().manual_seed(int(train))
    x = torch.randn(150 if train else 60, 4, generator=draw)
    return {"x": x, "shift": torch.ones(len(x), 1)}, x.sum(1)
"""
SCORES = """
def spread(outputs, targets):
    return (outputs.flatten() - targets).abs()


def third_error(outputs, targets):
    return outputs[:, 2] - targets


def leaves(outputs, targets):
    raise SystemExit(0)
"""
OWN = ("model.name=./net.py:build", "data.source=./data.py:build", "output_dir=runs")
OWN += ("data.train_limit=null", "data.test_limit=null")
REFUSALS = {
    "task.loss=nothing": "task.loss='nothing': expected one of cross_entropy, mse, mae, pkg.mod:Name",
    "task.loss=mse task.metric=acc": "task.metric='acc': expected one of mse, mae, loss, or null",
    "task.loss=mse training.label_smoothing=0.1": "training.label_smoothing=0.1: only task.loss=cross",
    "task.loss=./scores.py:spread": "task.loss='./scores.py:spread': gave a tensor [2]; expected the batch's "
    "mean, a 0-d tensor with a gradient",
    "task.loss=./scores.py:leaves": "task.loss='./scores.py:leaves': cannot take outputs [2, 1] and targets "
    "[2] (line 11: SystemExit: 0)",
    "task.loss=./scores.py:none": "task.loss='./scores.py:none': no none in ./scores.py",
    "task.loss=mse task.metrics=[./scores.py:third_error]": "task.metrics='./scores.py:third_error': cannot "
    "take outputs [2, 1] and targets [2] (line 7: IndexError: ",
    "task.loss=mse task.metrics=[accuracy]": "task.metrics='accuracy': the targets are torch.float32; ",
    "epochs=1": "task.loss='cross_entropy': the targets are torch.float32; expected classes, as whole "
    "numbers (of a regression task.loss=mse, or mae)",
    "task.loss=mse model.name=./net.py:other": "model.name='./net.py:other': cannot take inputs x [2, 4], "
    "shift [2, 1] (line 11: RuntimeError: ",
}


@pytest.mark.parametrize("words", REFUSALS)
def test_what_does_not_go_together_is_one_line_before_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
):
    for name, content in {"net.py": NET, "data.py": TABLE, "scores.py": SCORES}.items():
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    said = line_of(play, *OWN, *words.split())
    assert said.startswith(REFUSALS[words]), said
    assert not list(Path().glob("runs/wandb/*run-*"))
