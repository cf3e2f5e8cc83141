"""A look at two samples before the first step: what does not go together is a line; it leaves no trace."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.refusals import line_of
from support.training import play, task_of
from torch import Tensor, nn

from ampcompare import load_runs, metrics
from ampcompare.config.load import load_config
from ampcompare.data.dataset import TensorSplit
from ampcompare.data.device_loaders import TensorLoader
from ampcompare.data.factory import Dataset
from ampcompare.precision import build_precision
from ampcompare.training.preflight import run_preflight


def loader(inputs: Tensor, targets: Tensor) -> TensorLoader:
    return TensorLoader(TensorSplit(inputs, targets), batch_size=8, device="cpu")


class Frozen(nn.Module):
    """BatchNorm that learns, and one that its owner has frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.frozen, self.drop = nn.BatchNorm1d(4), nn.BatchNorm1d(4).eval(), nn.Dropout()

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.frozen(self.norm(x)))


@pytest.mark.parametrize("backend", ["none", "native", "apex_o1"])
def test_the_preflight_changes_neither_network_nor_random_numbers(backend: str):
    model = Frozen()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes, random = [m.training for m in model.modules()], torch.get_rng_state()
    config = load_config(None, [f"backend={backend}"])
    batches = loader(torch.ones(8, 4), torch.zeros(8, dtype=torch.int64))
    task = task_of()
    run_preflight(task, model, build_precision(backend), config, batches)
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("inputs", "labels", "said"),
    [
        (torch.ones(9, 5), torch.zeros(9).long(), "cannot take the training data's inputs float32 [2, 5]"),
        (torch.ones(9, 4), torch.tensor([0] * 8 + [4]), "for classes 0 to 3, but a target is 4; give"),
    ],
)
def test_training_data_that_do_not_fit_are_one_line_before_the_first_step(
    inputs: Tensor, labels: Tensor, said: str
):
    test = TensorSplit(torch.randn(8, 4), torch.zeros(8, dtype=torch.int64))
    data = Dataset(TensorSplit(inputs, labels), test, ())
    config = load_config(None, ["model.name=timm:mine"])
    precision, batches = build_precision("none"), loader(*test.sample)
    line = line_of(run_preflight, task_of(), Frozen(), precision, config, batches, data)
    assert line.startswith("model.name='timm:mine': ")
    assert said in line


# The same of other people's network, data, loss and metrics, at the door of a run.

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
    "task.loss=./scores.py:spread": "task.loss='./scores.py:spread': returned a tensor [2]; "
    "expected the mean of the batch: a 0-d tensor with a gradient",
    "task.loss=./scores.py:leaves": "task.loss='./scores.py:leaves': cannot take outputs [2, 1] and targets "
    "[2] (line 11: SystemExit: 0)",
    "task.loss=./scores.py:none": "task.loss='./scores.py:none': ./scores.py has no none",
    "task.loss=mse task.metrics=[./scores.py:third_error]": "task.metrics='./scores.py:third_error': cannot "
    "take outputs [2, 1] and targets [2] (line 7: IndexError: ",
    "task.loss=mse task.metrics=[accuracy]": "task.metrics='accuracy': the targets are torch.float32; ",
    "epochs=1": "task.loss='cross_entropy': the targets are torch.float32; expected classes as whole "
    "numbers, such as int64; for a regression use task.loss=mse or task.loss=mae",
    "task.loss=mse model.name=./net.py:other": "model.name='./net.py:other': cannot take inputs x float32 "
    "[2, 4], shift float32 [2, 1] (line 11: RuntimeError: ",
}


@pytest.mark.parametrize("words", REFUSALS)
def test_mismatched_parts_are_one_line_before_the_record_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
):
    for name, content in {"net.py": NET, "data.py": TABLE, "scores.py": SCORES}.items():
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    said = line_of(play, *OWN, *words.split())
    assert said.startswith(REFUSALS[words]), said
    assert not list(Path().glob("runs/wandb/*run-*"))


FIXED_NET = """
import torch


def build():
    net = torch.nn.Linear(4, 3)
    with torch.no_grad():
        net.weight.copy_(torch.linspace(-1, 1, 12).reshape(3, 4))
        net.bias.zero_()
    return net
"""
MIXED_DATA = """
import torch

CLASSES, SAMPLES = 3, 12


def table(train):
    draw = torch.Generator().manual_seed(int(train))
    x = torch.randn(SAMPLES, 4, generator=draw)
    first, second = torch.randint(0, CLASSES, (2, SAMPLES), generator=draw)
    share = torch.rand(SAMPLES, 1, generator=draw)
    return x, first, second, share


def named(train):
    x, first, second, share = table(train)
    eye = torch.eye(CLASSES)
    return x, {"labels": share * eye[first] + (1 - share) * eye[second] if train else first}
"""


def test_training_targets_that_mix_classes_go_with_test_targets_that_are_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As mixup makes them. The first loss is that of the fixed weights over all samples, in fp64."""
    for name, content in {"net.py": FIXED_NET, "data.py": MIXED_DATA}.items():
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    words = ("model.name=./net.py:build", "data.source=./data.py:named", "task.metrics=[accuracy]")
    words += ("batch_size=6", "training.accumulate=2", "log.every=1", "epochs=1", "output_dir=runs")
    play(*words, "data.train_limit=null", "data.test_limit=null")
    (run,) = load_runs(["runs"])

    data: dict[str, Any] = {}
    exec(MIXED_DATA, data)
    x, targets = data["named"](True)
    logits = x.double() @ torch.linspace(-1, 1, 12).reshape(3, 4).double().T
    expected = float(-(targets["labels"] * torch.log_softmax(logits, 1)).sum(1).mean())
    assert run.values(metrics.LOSS).tolist() == pytest.approx([expected], rel=1e-5)
    assert metrics.ACCURACY not in run.history  # a mixed sample has no right class
    (accuracy,) = run.values(metrics.EVAL_ACCURACY)
    assert round(accuracy * 12) == pytest.approx(accuracy * 12)
