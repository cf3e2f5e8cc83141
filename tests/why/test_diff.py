"""`why diff`: a fault that a backend has planted is named where it arises, on any kind of network."""

import math
import re

import pytest
import torch
from support.properties import backends
from support.quick import QUICK
from support.why_command import Why

from ampcompare.precision.registry import REGISTRY
from ampcompare.why.diff import SAMPLES, ModuleDifference, StepDifference, compare_step
from ampcompare.why.diff_answer import summarize
from ampcompare.why.step import from_options

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
from ampcompare.precision.registry import BackendInfo
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
        metadata = BackendInfo(label="planted", description="a fault of one module", dtype=TYPES[base])

        def convert(self, model, optimizer):
            PLANTED[where](model.get_submodule(where))
            return super().convert(model, optimizer)

    return Planted


for number, name in enumerate(PLANTED):
    globals()[f"Fp32_{number}"] = backend(name, Precision)
    globals()[f"Native_{number}"] = backend(name, Native)
"""
ODD = """
import torch
import torch.nn.functional as F
from torch import nn


class Pair(nn.Module):
    def forward(self, x):
        return {"left": x * 2, "rest": (x, 3, None)}


class Mask(nn.Module):
    def forward(self, scores, mask):
        return scores + mask


class Net(nn.Module):
    '''Numbers in, a dict out; dropout, a GRU, a tuple, in-place ReLUs, tied weights, idle parts, a mask of
    infinities.'''

    def __init__(self):
        super().__init__()
        self.letters, self.place = nn.Embedding(33, 16), nn.Parameter(torch.randn(8, 16) / 50)
        self.shared, self.again = nn.Linear(16, 16), None
        self.again = self.shared
        self.dropped, self.pair, self.act = nn.Dropout(0.3), Pair(), nn.ReLU(inplace=True)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.memory, self.idle = nn.GRU(16, 16, batch_first=True), nn.Linear(3, 3)
        self.norm, self.factor, self.mask = nn.LayerNorm(16), torch.tensor(2.0), Mask()

    def forward(self, tokens):
        x = self.act(self.shared(self.letters(tokens) + self.place[: tokens.shape[1]]))
        above = torch.full((8, 8), float("-inf"), dtype=x.dtype).triu(1)
        x = torch.softmax(self.mask(x @ x.transpose(1, 2), above), -1).to(x.dtype) @ x
        x = self.pair(self.dropped(self.again(x)))["left"]
        x, _ = self.memory(self.layer(x))
        x = F.layer_norm(x.float(), (16,)).to(x.dtype) * self.factor
        return {"logits": F.linear(self.norm(x), self.letters.weight)}


def build():
    return Net()
"""
FILES = {"net.py": NET, "faults.py": FAULTS, "odd.py": ODD}
WHERE = ("second.wide", "first.norm", "second.out", "twice", "first", "second.norm", "head")
IMAGES = [*QUICK, "batch_size=2", "data.augment=false", "precision.init_scale=256"]
TOKENS = ["data.source=./net.py:data", "device=cpu", "batch_size=4"]
FAULTY = ["model.name=./net.py:build", *TOKENS]
BOUND = {"float32": 1e-5, "float16": 8e-3, "bfloat16": 6e-2}


def compare(words: list[str]) -> StepDifference:
    return compare_step(from_options(words, samples=SAMPLES))


def by_title(difference: StepDifference) -> dict[str, ModuleDifference]:
    return {line.title: line for line in difference.lines}


CASES = [*zip(range(7), WHERE, ["Fp32", "Native"] * 3 + ["Fp32"], strict=True)]


def test_rounding_alone_is_not_called_large_in_a_network_without_a_fault():
    for backend in ("native", "bf16"):
        messages = summarize(compare([*IMAGES, f"backend={backend}"]))
        assert any(line.startswith("no own error is large") for line in messages), messages


@pytest.mark.parametrize(("number", "where", "base"), CASES)
def test_a_planted_fault_has_the_largest_own_error(number: int, where: str, base: str):
    difference = compare([*FAULTY, f"backend=./faults.py:{base}_{number}", "precision.init_scale=256"])
    worst, second = difference.by_worst()[:2]
    assert worst.title == where
    assert worst.size > 1e-3
    assert second.size < worst.size / 2  # of the modules behind it, the outputs alone are wrong
    unit = torch.finfo(getattr(torch, difference.dtype)).eps / 2
    large = [line for line in summarize(difference) if line.startswith("large own errors, above ")]
    assert [line.endswith(f": {where}") for line in large] == [True] * (math.inf > worst.size > 20 * unit)
    assert f" {where}" in summarize(difference)[0]
    if where == "twice":
        assert (worst.calls, worst.call) == (2, 1)
        assert "twice (call 2 of 2)" in summarize(difference)[0]


def test_the_first_gradient_that_is_not_finite_is_named():
    """Here the gradient of the logits still fits into fp16, and those of the head's weights do not."""
    difference = compare([*FAULTY, "backend=native", "precision.init_scale=1048576"])
    assert (difference.first_gradient, difference.skipped) == ("head", True)
    assert difference.by_worst()[0].title == "head"


def check_errors(difference: StepDifference, bound: float, random: tuple[str, ...] = ()) -> None:
    """Check that every module that ran is measured, and that its own error is within its dtype's rounding."""
    for line in difference.lines:
        assert line.title in random or 0 <= line.size <= bound, line
        assert line.output.size < math.inf
        assert line.gradient is None or line.gradient.size < 1
    assert (difference.first_output, difference.first_gradient, difference.skipped) == (None, None, False)


@backends([name for name in REGISTRY if name != "none"], few=("native", "apex_o1"))
def test_every_backend_is_measured(backend: str):
    difference = compare([*IMAGES, f"backend={backend}"])
    check_errors(difference, BOUND[REGISTRY[backend].dtype])
    assert difference.not_called == []


@pytest.mark.parametrize("backend", ["native_bf16", "apex_o1"])
def test_odd_modules_are_measured_random_ones_are_not_and_idle_ones_are_named(backend: str):
    difference = compare(
        ["model.name=./odd.py:build", *TOKENS, "precision.init_scale=256", f"backend={backend}"]
    )
    lines = by_title(difference)
    random = tuple(title for title in lines if title.startswith(("dropped", "layer", "(network)")))
    check_errors(difference, BOUND[REGISTRY[backend].dtype], random)
    assert lines["dropped"].size == -1
    assert lines["dropped"].output.size < 0.02  # its mask is that of fp32
    assert lines["shared"].calls == 2
    assert "again" not in lines
    assert {*difference.not_called} == {"idle", "layer.self_attn.out_proj"}
    assert lines["shared"].gradient is not None  # an in-place ReLU comes after it


@pytest.mark.parametrize("word", ["training.accumulate=2", "training.gradient_penalty=0.1"])
def test_a_step_is_that_of_the_run(word: str):
    difference = compare([*IMAGES, word, "backend=native_bf16"])
    assert difference.samples == (4 if "accumulate" in word else 2)
    assert 0 < difference.update.size < 0.5


def test_the_same_question_has_the_same_answer_in_eighty_columns(why: Why, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    words = (*QUICK, "backend=apex_o2", "precision.init_scale=1e7")
    answer, output = why.json("diff", *words)
    assert why.json("diff", *words) == (answer, output)
    assert (answer["samples"], answer["skipped"], answer["update"]["flushed"]) == (8, True, 1)
    rows = [line for line in output.splitlines() if re.match(r" \S+ +(fp16|fp32) ", line)]
    assert len(rows) >= 10
    assert max(map(len, rows)) <= 80
    assert "the optimizer step was skipped" in output


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["backend=O1"], "backend='O1': expected one of none, tf32, native"),
        (["backend=none"], "backend=none computes in fp32, so there is nothing to compare"),
        (["backend=native", "--nonsense"], "--nonsense"),
        (["backend=native", "--json", "net.py/x.json"], "cannot be written"),
    ],
)
def test_wrong_use_is_one_line(words: list[str], expected: str, why: Why):
    assert expected in why("diff", *QUICK, *words, code=2)
