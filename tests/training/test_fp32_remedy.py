"""The line for a step that a backend cannot compute has a remedy, and with it the run trains."""

from pathlib import Path

import pytest
from support.refusals import line_of
from support.training import play

NETS = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, *middle):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(8, 8), nn.Sequential(*middle), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.middle(torch.relu(self.first(x))))


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(8) + 0.1 * torch.ones(8, 8))

    def forward(self, x):
        return x @ torch.linalg.lu_factor(self.weight)[0]


class OnlyInTraining(Factors):
    def forward(self, x):
        return super().forward(x) if self.training else x


class Sums(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        index = torch.arange(len(x))
        return torch.zeros(len(x), 8).index_add(0, index, self.linear(x))


class Frequencies(nn.Module):
    def forward(self, x):
        return torch.fft.fft(x).real


class Product(torch.autograd.Function):
    @staticmethod
    def forward(context, x, weight):
        context.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(context, gradient):
        x, weight = context.saved_tensors
        return gradient @ weight.t(), x.t() @ gradient


class Products(Factors):
    def forward(self, x):
        return Product.apply(x, self.weight)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.factors, self.linear = Factors(), nn.Linear(8, 8)

    def forward(self, x):
        return x + self.linear(self.factors(x))


class Wrong(nn.Module):
    def forward(self, x):
        return x @ torch.ones(7, 8)


class Own(Net):
    def forward(self, x):
        values = super().forward(x)
        return torch.zeros(len(x), 3).index_add(0, torch.arange(len(x)), values)


class Mended(Net):
    def forward(self, x):
        values = super().forward(x)
        with torch.autocast("cpu", enabled=False):
            return torch.zeros(len(x), 3).index_add(0, torch.arange(len(x)), values.float())


def factors(): return Net(Factors())
def only_in_training(): return Net(OnlyInTraining())
def sums(): return Net(Sums())
def frequencies(): return Net(Frequencies())
def products(): return Net(Products())
def residuals(): return Net(Residual(), Residual())
def wrong(): return Net(Wrong())
def plain(): return Net()
def own(): return Own()
def mended(): return Mended()
def own_factors(): return Own(Factors())
def mended_factors(): return Mended(Factors())
"""
DATA = """
import torch


def build(train):
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(int(train)))
    return x, (x[:, 0] > 0).long()
"""
LOSSES = """
import torch
import torch.nn.functional as F


def volume(outputs, targets):
    return F.cross_entropy(outputs, targets) + torch.linalg.det(outputs.t() @ outputs) * 0


def volume_mended(outputs, targets):
    return F.cross_entropy(outputs, targets) + torch.linalg.det((outputs.t() @ outputs).float()) * 0


def probability(outputs, targets):
    wanted = F.one_hot(targets, 3).float()
    return F.binary_cross_entropy(torch.sigmoid(outputs), wanted)


def probability_mended(outputs, targets):
    wanted = F.one_hot(targets, 3).float()
    with torch.autocast("cpu", enabled=False):
        return F.binary_cross_entropy(torch.sigmoid(outputs).float(), wanted)
"""
KEEP = "fp32 can: use precision.keep_fp32="
FLOAT = "fp32 can: call .float() on the inputs of the operation"
OWN_FORWARD = "an operation in the network's own forward (Own), "
AUTOCAST = ' and run it inside torch.autocast("cpu", enabled=False)'
MOVE = ", or move it into a module of its own and name that in precision.keep_fp32"
# Backend, network and loss, the end of the line, and what replaces network or loss, or is added.
REMEDIES = [
    ("bf16", "factors", f"module middle.0 (Factors), {KEEP}middle.0", ""),
    ("apex_o2", "only_in_training", f"module middle.0 (OnlyInTraining), {KEEP}middle.0", ""),
    ("apex_o1", "sums", f"module middle.0 (Sums), {KEEP}middle.0", ""),
    ("native", "sums", f"module middle.0 (Sums), {KEEP}middle.0", ""),
    ("apex_o1", "frequencies", f"module middle.0 (Frequencies), {KEEP}middle.0", ""),
    ("native_bf16", "products", f"module middle.0 (Products), {KEEP}middle.0", ""),
    ("fp16", "residuals", f"middle.1.factors (Factors), {KEEP}middle.0.factors,middle.1.factors", ""),
    ("bf16", "sums precision.keep_fp32=last", f"{KEEP}last,middle.0", ""),
    ("native", "own", f"{OWN_FORWARD}{FLOAT}{AUTOCAST}{MOVE}", "mended"),
    ("apex_o1", "own", f"{OWN_FORWARD}{FLOAT}{MOVE}", "mended"),
    (
        "bf16",
        "own_factors",
        f"{OWN_FORWARD}{KEEP}middle.0, and {FLOAT.removeprefix('fp32 can: ')}{MOVE}",
        "mended_factors precision.keep_fp32=middle.0",
    ),
    ("native_bf16", "plain volume", f"the loss, {FLOAT}{AUTOCAST}", "plain volume_mended"),
    ("apex_o1", "plain probability", f"an operation in the loss, {FLOAT}", "plain probability_mended"),
    ("native", "plain probability", f"the loss, {FLOAT}{AUTOCAST}", "plain probability_mended"),
]
NONE = [
    ("native", "wrong"),  # fails in fp32, too
    ("none", "wrong"),
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, content in {"nets.py": NETS, "data.py": DATA, "losses.py": LOSSES}.items():
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)


def options(backend: str, text: str) -> list[str]:
    """Return the overrides of a run: text has the network, and then a loss or options."""
    net, *others = text.split()
    words = [f"backend={backend}", f"model.name=./nets.py:{net}", "data.source=./data.py:build"]
    words += ["data.train_limit=null", "data.test_limit=null", "output_dir=runs", "optimizer.eps=1e-4"]
    words += [word if "=" in word else f"task.loss=./losses.py:{word}" for word in others]
    return words + ["task.metric=loss"] * any("=" not in word for word in others)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("backend", "failing", "told", "mended"), REMEDIES)
def test_what_only_fp32_can_compute_has_a_remedy_with_which_the_run_trains(
    backend: str, failing: str, told: str, mended: str
):
    line = line_of(play, *options(backend, failing))
    assert f"; backend={backend} cannot compute " in line
    assert line.endswith(told)
    words = options(backend, mended or failing)
    if not mended:
        words = [word for word in words if "keep_fp32" not in word] + [line.rpartition(" ")[2]]
    play(*words)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("backend", "failing"), NONE)
def test_what_fails_in_fp32_as_well_has_no_remedy(backend: str, failing: str):
    line = line_of(play, *options(backend, failing))
    assert line.endswith("cannot be multiplied (2x8 and 7x8))")
