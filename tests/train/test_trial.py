"""A look at two samples before the first step: what it decides, and that it leaves no trace."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.refusals import line_of
from torch import Tensor, nn

from ampcompare.config.load import load_config
from ampcompare.data.dataset import Dataset
from ampcompare.data.splits import TensorSet
from ampcompare.precision import build_precision
from ampcompare.train.task import build_task
from ampcompare.train.trial import try_out


class One:
    """A loader with one batch."""

    def __init__(self, inputs: Any, targets: Any) -> None:
        self.batch = inputs, targets

    def epoch(self, epoch: int, start: int = 0) -> Any:
        return iter([self.batch])


class Frozen(nn.Module):
    """BatchNorm that learns, and one that its owner has frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.frozen, self.drop = nn.BatchNorm1d(4), nn.BatchNorm1d(4).eval(), nn.Dropout()

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.frozen(self.norm(x)))


@pytest.mark.parametrize("backend", ["none", "native", "apex_o1"])
def test_a_look_leaves_network_and_random_numbers_as_they_were(backend: str):
    model = Frozen()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes, random = [m.training for m in model.modules()], torch.get_rng_state()
    config = load_config(None, [f"backend={backend}"])
    loader = One(torch.ones(8, 4), torch.zeros(8, dtype=torch.int64))
    task = build_task(config, torch.device("cpu"))
    try_out(task, model, build_precision(backend), config, loader)  # type: ignore[arg-type]
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("inputs", "labels", "said"),
    [
        (torch.ones(9, 5), torch.zeros(9).long(), "cannot take the training data's inputs [2, 5]"),
        (torch.ones(9, 4), torch.tensor([0] * 8 + [4]), "gives 4 classes, 0 to 3, and a target is 4; give"),
        (torch.ones(9, 4), torch.tensor([0] * 8 + [-1]), "a target is -1; what is not to count is -100"),
    ],
)
def test_training_data_that_do_not_fit_are_one_line_before_the_first_step(
    inputs: Tensor, labels: Tensor, said: str
):
    config = load_config(None, ["model.name=timm:mine"])
    classes = torch.zeros(8, dtype=torch.int64)
    test = TensorSet(torch.randn(8, 4), classes)
    task, precision = build_task(config, torch.device("cpu")), build_precision("none")
    loader: Any = One(*test.sample)
    try_out(task, Frozen(), precision, config, loader, Dataset(test, test, (), "", ""))
    data = Dataset(TensorSet(inputs, labels), test, (), "", "")
    line = line_of(try_out, task, Frozen(), precision, config, loader, data)
    assert line.startswith("model.name='timm:mine': ")
    assert said in line


def test_a_layer_that_the_processor_has_not_in_a_type_is_said_with_the_way_out():
    class NoKernel(nn.Module):  # as nn.LSTM under fp16 autocast on a CPU
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("could not create a primitive descriptor for the LSTM forward primitive")

    config = load_config(None, ["backend=native"])
    task, loader = build_task(config, torch.device("cpu")), One(torch.randn(8, 4), torch.zeros(8).long())
    said = line_of(try_out, task, NoKernel(), build_precision("native"), config, loader)
    assert "(backend=native_bf16, for one), or a GPU" in said
