"""Every backend on every kind of network: each module is measured, and what cannot be is said."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.own_tasks import GPT, TEXT
from support.properties import backends
from support.quick import QUICK

from ampcompare.precision.backends import REGISTRY
from ampcompare.why.diff.command import Difference, difference

ODD = """
import torch
import torch.nn.functional as F
from torch import nn


class Pair(nn.Module):
    def forward(self, x):
        return {"left": x * 2, "rest": (x, 3, None)}


class Net(nn.Module):
    '''Numbers in, a dict out; dropout, a GRU, a tuple, in-place ReLUs, tied weights, idle parts.'''

    def __init__(self):
        super().__init__()
        self.letters, self.place = nn.Embedding(33, 16), nn.Parameter(torch.randn(24, 16) / 50)
        self.shared, self.again = nn.Linear(16, 16), None
        self.again = self.shared
        self.dropped, self.pair, self.act = nn.Dropout(0.3), Pair(), nn.ReLU(inplace=True)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.memory, self.idle = nn.GRU(16, 16, batch_first=True), nn.Linear(3, 3)
        self.norm, self.factor = nn.LayerNorm(16), torch.tensor(2.0)

    def forward(self, tokens):
        x = self.act(self.shared(self.letters(tokens) + self.place[: tokens.shape[1]]))
        x = self.pair(self.dropped(self.again(x)))["left"]
        x, _ = self.memory(self.layer(x))
        x = F.layer_norm(x.float(), (16,)).to(x.dtype) * self.factor
        return {"logits": F.linear(self.norm(x), self.letters.weight)}


def build():
    return Net()


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x, shift):
        return self.line(x) + shift


def regression():
    return Regression()


def table(train):
    x = torch.linspace(-1, 1, 64).reshape(16, 4) ** 2
    return {"x": x, "shift": x[:, :1] * 0.1}, x.sum(1)
"""
MASKED = """
import torch
from torch import nn
from ampcompare.precision.backends import Backend
from ampcompare.precision.base import Precision


class Mask(nn.Module):
    def forward(self, scores, mask):
        return scores + mask


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters, self.mask, self.head = nn.Embedding(33, 24), Mask(), nn.Linear(24, 33)

    def forward(self, tokens):
        x = self.letters(tokens)
        above = torch.full((24, 24), float("-inf"), dtype=x.dtype).triu(1)
        return self.head(torch.softmax(self.mask(x @ x.transpose(1, 2), above), -1) @ x)


def build():
    return Net()


class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x.bfloat16().float())


class Wrapping(Precision):
    declares = Backend(label="wrapping", words="a wrapper that rounds")

    def prepare(self, model, optimizer):
        model.head = Wrapped(model.head)
        return model, optimizer
"""
IMAGES = [*QUICK, "batch_size=2", "data.augment=false", "precision.init_scale=256"]
TOKENS = ["data.source=./text.py:build", "device=cpu", "batch_size=2", "precision.init_scale=256"]
ODD_WORDS = ["model.name=./odd.py:build", *TOKENS]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("odd", ODD), ("masked", MASKED), ("gpt", GPT), ("text", TEXT)):
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)


def check(found: Difference, backend: str, bound: float) -> None:
    """Every module that ran is measured, its own error within what its type rounds to."""
    assert found.sides[0].label == backend
    for line in found.lines:
        errors = line.errors[backend]
        assert errors.own.output is not None, (line.title, errors.own.why)
        assert errors.own.size <= bound, line.title
        assert errors.output is not None
        assert errors.output.is_finite
    assert found.sides[0].update is not None
    assert found.sides[0].first_output is None
    assert found.sides[0].first_gradient is None
    assert not found.sides[0].differs


BOUND = {"float32": 1e-5, "float16": 8e-3, "bfloat16": 6e-2}


@backends(REGISTRY, few=("native", "apex_o1"))
@pytest.mark.parametrize("name", ["tiny", "gpt"])
def test_every_backend_is_measured_on_images_and_on_tokens(name: str, backend: str):
    words = IMAGES if name == "tiny" else ["model.name=./gpt.py:build", *TOKENS]
    found = difference([*words, f"backend={backend}"])
    check(found, backend, BOUND[found.types[backend]])
    assert found.not_called == ([] if name == "tiny" else ["places"])


@pytest.mark.parametrize("backend", ["none", "native", "native_bf16", "apex_o1"])
def test_odd_modules_are_measured_and_idle_ones_named(backend: str):
    found = difference([*ODD_WORDS, f"backend={backend}"])
    check(found, backend, BOUND[found.types[backend]])
    lines = {line.title: line for line in found.lines}
    assert lines["shared"].calls == 2
    assert "again" not in lines
    assert set(found.not_called) == {"idle", "layer.self_attn.out_proj"}
    assert lines["shared"].errors[backend].gradient is not None  # an in-place ReLU comes after it
    assert lines["pair"].errors[backend].gradient is not None


def test_dropout_masks_are_those_of_fp64():
    """Else the error of its output were near one."""
    found = difference([*ODD_WORDS, "backend=native_bf16"])
    dropped = {line.title: line.errors["native_bf16"].output for line in found.lines}["dropped"]
    assert dropped is not None
    assert dropped.size < 0.02


@pytest.mark.parametrize("backend", ["native_bf16", "bf16"])
def test_a_mask_of_infinities_is_no_overflow(backend: str):
    found = difference(["model.name=./masked.py:build", *TOKENS, f"backend={backend}"])
    side = found.sides[0]
    assert (side.first_output, side.first_gradient) == (None, None)
    assert {line.title for line in found.lines} == {"letters", "mask", "head", "(network)"}
    assert all(line.errors[backend].own.output is not None for line in found.lines)


@pytest.mark.parametrize("backend", ["native", "apex_o2", "bf16"])
def test_a_regression_of_inputs_by_name_is_measured(backend: str):
    words = ["model.name=./odd.py:regression", "data.source=./odd.py:table", "task.loss=mse", "device=cpu"]
    found = difference([*words, f"backend={backend}", "batch_size=4", "precision.init_scale=16"])
    check(found, backend, BOUND["bfloat16"])


def test_gradients_without_a_scale_are_flushed_to_zero():
    """In fp16, of a loss that is small: what the loss scale is for."""
    (loss := Path("loss.py")).write_text(
        "def loss(outputs, targets):\n    return outputs.square().mean() * 1e-6"
    )
    words = [*IMAGES, f"task.loss=./{loss.name}:loss", "task.metrics=[]", "backend=apex_o2"]
    flushed = {}
    for scale in (1, 65536):
        found = difference([*words, f"precision.loss_scale={scale}"])
        gradient = found.lines[0].errors["apex_o2"].gradient
        assert gradient is not None
        flushed[scale] = gradient.flushed
    assert flushed[1] > 0.9
    assert flushed[65536] < 0.1


@pytest.mark.parametrize(
    "words", [["training.accumulate=2"], ["training.gradient_penalty=0.1"], ["training.clip_norm=0.01"]]
)
def test_a_step_is_that_of_the_run(words: list[str]):
    found = difference([*IMAGES, *words, "backend=none"])
    check(found, "none", BOUND["float32"])
    assert found.sides[0].update is not None
    assert found.sides[0].update.size < 1e-3
    assert found.samples == 2 * (2 if "accumulate" in words[0] else 1)


def test_nothing_of_the_process_is_changed():
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    difference([*IMAGES, "backend=native"])
    assert torch.rand(3).equal(wanted)
    assert torch.get_default_dtype() is torch.float32
    assert not torch.are_deterministic_algorithms_enabled()
