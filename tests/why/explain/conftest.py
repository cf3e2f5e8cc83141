"""Settings for the tests of `why explain`: small, or without data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ampcompare.why.explain.setting import built, settled, shapes_of
from ampcompare.why.explain.trace import Trace, trace_step
from ampcompare.why.ready import configured

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)

NET = '''
import torch
from torch import nn

class Net(nn.Module):
    """A module called twice, a tied weight, whole numbers as inputs, torch's softmax, a module unused."""
    def __init__(self, classes):
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.twice = nn.Linear(32, 32)
        self.unused = nn.Linear(8, 8)
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.embed.weight
        self.out = nn.Linear(50, classes)
    def forward(self, x):
        h = self.twice(torch.relu(self.twice(self.embed(x))))
        weights = torch.softmax(self.head(h), dim=-1)
        return {"logits": self.out(weights.mean(1)), "weights": weights}

def build(num_classes):
    return Net(num_classes)
'''
DATA = """
import torch
def build(train):
    return torch.arange(40 * 12).view(40, 12) % 50, torch.arange(40) % 10
"""


@pytest.fixture
def own_words(tmp_path: Path) -> list[str]:
    """The words of a network and data of a user's own, in files."""
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "data.py").write_text(DATA)
    where = [f"model.name={tmp_path}/net.py:build", f"data.source={tmp_path}/data.py:build"]
    return [*where, "batch_size=8", "device=cpu"]


@pytest.fixture
def trace_of() -> Callable[..., Trace]:
    """A step of a setting, traced: `trace_of(words, backend, device)`."""

    def trace(words: list[str], backend: str, device: torch.device = CPU) -> Trace:
        config = settled(configured(words, backend=backend))
        with built(config, shapes_of(config), device) as (trainer, batches):
            return trace_step(trainer, batches, device)

    return trace
