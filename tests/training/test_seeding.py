"""Equal seeds give equal networks and equal random choices under every backend, from all three generators."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from support.properties import MECHANISMS
from support.quick import QUICK
from support.training import fit

from ampcompare.system.device import seed_process
from ampcompare.why.diff import compare_step
from ampcompare.why.step import from_options

# LayerDrop by Python's generator, a mask by NumPy's as in SpecAugment, and both in the constructor.
NET = """
import random

import numpy as np
import torch
from torch import nn

DRAWS = []


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(48, 48) for _ in range(3))
        self.head = nn.Linear(48, classes)
        with torch.no_grad():
            self.head.weight.mul_(1 + random.random())
            self.head.bias.copy_(torch.from_numpy(np.random.rand(classes)).float())

    def forward(self, x):
        x = nn.functional.avg_pool2d(x, 8).flatten(1)
        if self.training:
            drawn = [random.random(), float(np.random.rand()), float(torch.rand(()))]
            DRAWS.append(drawn)
            start = np.random.randint(40)
            x = torch.cat([x[:, :start], 0 * x[:, start : start + 8], x[:, start + 8 :]], 1)
        for block in self.blocks:
            if not (self.training and random.random() < 0.4):
                x = x + block(x).relu()
        return self.head(x)


def build(num_classes=10):
    return Net(num_classes)
"""


@pytest.fixture
def words(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "net.py").write_text(NET)
    return (
        f"model.name={tmp_path}/net.py:build",
        "epochs=1",
        "diagnostics.every=null",
        "optimizer.fused=false",
    )


def draws_of(model: torch.nn.Module) -> list[list[float]]:
    import sys

    return sys.modules[type(model).__module__].DRAWS


def disturb() -> None:
    """Leave the generators in states that no training expects."""
    random.seed()
    np.random.seed()
    torch.seed()


@pytest.mark.parametrize("backend", MECHANISMS[1:])
def test_every_backend_has_the_same_weights_and_the_same_draws(words: tuple[str, ...], backend: str):
    found = []
    for name in ("none", backend):
        disturb()
        loop, _ = fit(*words, f"backend={name}")
        weights = [p.detach().clone() for p in loop.trainer.model.parameters()]
        draws = draws_of(loop.trainer.model)
        draws.clear()
        loop.run()
        found.append((weights, [*draws]))
    (expected, draws), (weights, other_draws) = found
    assert len(draws) > 3
    assert draws == other_draws
    for weight, value in zip(weights, expected, strict=True):
        assert torch.equal(weight, value.to(weight.dtype))


def test_the_weights_are_those_of_the_seed_in_plain_pytorch(words: tuple[str, ...]):
    disturb()
    found = fit(*words, "seed=7")[0].trainer.model.state_dict()
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)
    namespace: dict[str, object] = {}
    exec(NET, namespace)
    expected = namespace["build"](len(found["head.bias"]))  # type: ignore[operator]
    assert all(torch.equal(found[key], value) for key, value in expected.state_dict().items())


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_each_rank_seeds_all_three_generators(seed: int):
    def draw(rank: int) -> tuple[float, float, float]:
        disturb()
        seed_process(seed, rank)
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    by_rank = [draw(rank) for rank in range(4)]
    assert by_rank == [draw(rank) for rank in range(4)]
    assert all(len(set(values)) == 4 for values in zip(*by_rank, strict=True))


def test_why_diff_compares_the_same_layers(words: tuple[str, ...]):
    """With the same layers left out, bf16's loss is within its rounding of fp32's."""
    for seed in range(2):
        difference = compare_step(from_options([*QUICK, *words, "backend=native_bf16", f"seed={seed}"]))
        assert difference.loss == pytest.approx(difference.loss_fp32, rel=0.02)
