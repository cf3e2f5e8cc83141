"""A fault that a backend has planted is named: the module in which it arises, not those where it arrives."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampcompare.why.diff.answer import own_size
from ampcompare.why.diff.command import difference
from ampcompare.why.diff.words import sentences

NET = """
import torch
from torch import nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.act = nn.LayerNorm(width), nn.ReLU(inplace=True)
        self.wide, self.out = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def scaled(self, x):
        return x

    def forward(self, x):
        return {"x": self.scaled(x) + self.out(self.act(self.wide(self.norm(x))))}


class Net(nn.Module):
    def __init__(self, width=16, letters=33):
        super().__init__()
        self.letters = nn.Embedding(letters, width)
        self.first, self.second = Block(width), Block(width)
        self.twice = nn.Linear(width, width)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters)

    def forward(self, tokens):
        x = self.letters(tokens)
        x = self.second(**self.first(x))["x"]
        return {"logits": self.head(self.norm(self.twice(torch.tanh(self.twice(x)))))}


def build():
    return Net()


def data(train):
    numbers = torch.arange(16 * 9).reshape(16, 9) * 7 % 33
    return numbers[:, :8].clone(), numbers[:, 1:].clone()
"""

FAULTS = """
import torch
from ampcompare.precision.backends import Backend
from ampcompare.precision.base import Precision
from ampcompare.precision.native import Native


class Backwards(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * 1.02


def in_bf16(module):
    module.forward = lambda x: torch.nn.functional.linear(
        x.bfloat16(), module.weight.bfloat16(), module.bias.bfloat16()
    ).float()


def off_by_a_scale(module):
    module.register_forward_hook(lambda m, given, output: output * 1.02)


def off_in_the_gradient(module):
    module.register_forward_hook(lambda m, given, output: Backwards.apply(output))


def second_call_off(module):
    calls = []

    def hook(m, given, output):
        calls.append(1)
        return output * 1.02 if len(calls) % 2 == 0 else output

    module.register_forward_hook(hook)


def own_code_off(module):
    module.scaled = lambda x: x * 1.02


def overflows(module):
    module.register_forward_hook(lambda m, given, output: output * 1e30 * 1e30)


def wrong_weights(module):
    module.weight.register_hook(lambda gradient: gradient * 1.02)


PLANTED = {
    "second.wide": in_bf16,
    "first.norm": off_by_a_scale,
    "second.out": off_in_the_gradient,
    "twice": second_call_off,
    "first": own_code_off,
    "second.norm": overflows,
    "head": wrong_weights,
}


TYPES = {Precision: "float32", Native: "float16"}


def backend(where, base):
    class Planted(base):
        declares = Backend(label="planted", words="a fault of one module", dtype=TYPES[base])

        def prepare(self, model, optimizer):
            PLANTED[where](model.get_submodule(where))
            return super().prepare(model, optimizer)

    return Planted


for number, name in enumerate(PLANTED):
    globals()[f"Fp32_{number}"] = backend(name, Precision)
    globals()[f"Native_{number}"] = backend(name, Native)
"""
WHERE = ("second.wide", "first.norm", "second.out", "twice", "first", "second.norm", "head")


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "faults.py").write_text(FAULTS)
    monkeypatch.chdir(tmp_path)
    return ["model.name=./net.py:build", "data.source=./net.py:data", "device=cpu", "batch_size=4"]


@pytest.mark.parametrize("base", ["Fp32", "Native"])
@pytest.mark.parametrize(("number", "where"), [*enumerate(WHERE)])
def test_a_planted_fault_is_the_worst_line(words: list[str], number: int, where: str, base: str):
    found = difference([*words, f"backend=./faults.py:{base}_{number}", "precision.init_scale=256"])
    worst, second = found.by_worst()[:2]
    assert worst.title == where
    size = own_size(worst, "planted")
    assert size > 1e-3
    assert own_size(second, "planted") < size / 2
    assert own_size(worst, "none") < 1e-6
    assert f" {where}" in sentences(found)[0]


def test_the_call_that_is_off_is_said(words: list[str]):
    found = difference([*words, "backend=./faults.py:Fp32_3"])
    worst = found.by_worst()[0]
    assert (worst.title, worst.calls, worst.errors["planted"].call) == ("twice", 2, 1)
    assert "twice (call 2 of 2)" in sentences(found)[0]


def test_errors_travel_in_the_step_and_not_in_the_own_error(words: list[str]):
    found = difference([*words, "backend=./faults.py:Fp32_1"])
    after = {line.title: line.errors["planted"] for line in found.lines}["second.out"]
    assert after.output is not None
    assert after.output.size > 1e-3
    assert after.own.size < 1e-6


def test_the_first_gradient_that_is_not_finite_is_named(words: list[str]):
    """Here the gradient of the logits still fits into fp16, and those of the head's weights do not."""
    found = difference([*words, "backend=native", "precision.init_scale=1048576"])
    side, other = found.sides
    assert (side.first_gradient, side.skipped) == ("head", True)
    assert (other.first_gradient, other.skipped) == (None, False)
    assert found.by_worst()[0].title == "head"


OWN_TYPE = """
import torch
from torch import nn


class Coarse(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8).bfloat16()

    def forward(self, x):
        return self.inner(x.bfloat16()).float()


class Touchy(nn.Linear):
    def forward(self, x):
        return super().forward(x) * (1 if x.dtype is torch.float64 else 1.05)


def coarse():
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), Coarse(), nn.Linear(8, 1))


def touchy():
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), Touchy(8, 8), nn.Linear(8, 1))


def data(train):
    x = torch.linspace(-1, 1, 64).reshape(16, 4) ** 2
    return x, x.sum(1, keepdim=True)
"""


@pytest.mark.parametrize(("name", "where"), [("coarse", "2.inner"), ("touchy", "2")])
def test_a_network_that_rounds_by_itself_is_no_truth(name: str, where: str, tmp_path: Path, monkeypatch):
    """Its casts are left out in fp64, so that what they cost is seen under fp32, too."""
    (tmp_path / "own.py").write_text(OWN_TYPE)
    monkeypatch.chdir(tmp_path)
    words = [f"model.name=./own.py:{name}", "data.source=./own.py:data", "task.loss=mse", "device=cpu"]
    found = difference([*words, "backend=none"])
    worst = found.by_worst()[0]
    assert worst.title == where
    assert own_size(worst, "none") > 1e-3
    # The cast before it is that of the module around it.
    assert all(own_size(line, "none") < 1e-6 for line in found.lines if not line.title.startswith("2"))
