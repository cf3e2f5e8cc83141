"""Updates that rounding swallows: of the weights with a gradient those that a step leaves as they were."""

import pytest
import torch
from support.properties import backends
from support.training import batch, trainer
from torch import nn

from ampcompare import metrics
from ampcompare.config.schema import TrainingConfig
from ampcompare.models import tiny
from ampcompare.precision import REGISTRY
from ampcompare.training.update_probe import lost_updates, sample_weights

LOST = metrics.LOST_UPDATES
NO, YES = torch.tensor(False), torch.tensor(True)
HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


def parameters(dtype: torch.dtype, *, size: int = 300) -> list[nn.Parameter]:
    """Two weights with gradients whose sizes spread over some orders of magnitude."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for count in (size, 2 * size):
        p = nn.Parameter(torch.randn(count, generator=generator).to(dtype))
        spread = 10 ** (-4 * torch.rand(count, generator=generator))
        p.grad = (torch.randn(count, generator=generator) * spread).to(dtype)
        made.append(p)
    return made


def share_lost(p: nn.Parameter, rate: float) -> float:
    """By float64: w - rate * g rounds to w."""
    exact = p.detach().double() - rate * p.grad.double()
    has = p.grad != 0
    return ((exact.to(p.dtype) == p) & has).sum().item() / has.sum().item()


@HALVES
def test_figures_are_those_of_the_step_in_float64(dtype: torch.dtype):
    first, second = made = parameters(dtype)
    wide = nn.Parameter(torch.ones(1000))
    wide.grad = torch.full_like(wide, 1e-9)  # an fp32 weight does not count
    expected = {"/a": share_lost(first, 0.01), "/b": share_lost(second, 0.01)}
    optimizer = torch.optim.SGD([wide, *made], lr=0.01)
    before = {"a": sample_weights([wide, first]), "b": sample_weights([second]), "c": sample_weights([wide])}
    optimizer.step()
    found = {key: value.item() for key, value in lost_updates(before, NO).items()}
    expected[""] = (expected["/a"] + 2 * expected["/b"]) / 3  # one has twice as many
    assert found == {f"{LOST}{key}": pytest.approx(share, abs=3e-3) for key, share in expected.items()}
    assert 0.01 < found[LOST] < 0.99


def test_steps_skipped_or_without_16_bit_weights_have_no_lost_updates():
    assert lost_updates({"a": sample_weights(parameters(torch.bfloat16))}, YES)[LOST].isnan()
    assert lost_updates({"a": sample_weights(parameters(torch.float32))}, NO) == {}


@backends(REGISTRY)
def test_backends_whose_optimizer_updates_16_bit_weights_log_lost_updates(backend: str):
    torch.manual_seed(0)
    made = trainer(backend, tiny(4), TrainingConfig(clip_norm=1.0), lr=0.01, init_scale=256.0)
    expected = backend in ("fp16", "bf16", "bf16_sr")
    assert not any(key.startswith("update/") for key in made.step([batch(16)]).diagnostics)
    found = made.step([batch(16)], diagnose=True).diagnostics
    assert (LOST in found, f"{LOST}/8" in found) == (expected, expected)
    if expected:
        assert 0 < found[LOST].item() < 1
