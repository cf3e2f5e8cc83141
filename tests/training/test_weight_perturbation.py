"""`training.perturb_weights=one_ulp`: every trainable weight is one ulp away, and nothing else is."""

import pytest
import torch
from support.training import fit
from torch import Tensor

from ampcompare.training.weight_perturbation import move_one_ulp

PERTURBED = "training.perturb_weights=one_ulp"
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
NETWORK = """
import torch
from torch import nn

def build(num_classes):
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 8), nn.Dropout(0.5),
        nn.Linear(8, num_classes),
    )
    net[0].weight.requires_grad_(False)
    net.register_buffer("counts", torch.arange(3))
    net.register_buffer("shift", torch.ones(2))
    nn.init.zeros_(net[3].bias)
    return net
"""


def ulps(after: Tensor, before: Tensor) -> Tensor:
    """Return how many representable numbers lie between two tensors, by their bits: +0 and -0 are one."""
    integer = INTEGERS[before.element_size()]
    lowest = torch.iinfo(integer).min

    def ordered(x: Tensor) -> Tensor:
        bits = x.detach().contiguous().view(integer)
        # The bits of negative numbers grow away from zero.
        return torch.where(bits >= 0, bits, lowest - bits)

    return ordered(after) - ordered(before)


def optimized(trainer) -> list[Tensor]:
    return [p for group in trainer.optimizer.param_groups for p in group["params"]]


@pytest.fixture(scope="module")
def network(tmp_path_factory) -> str:
    file = tmp_path_factory.mktemp("network") / "net.py"
    file.write_text(NETWORK)
    return f"model.name={file}:build"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_next_number_of_each_dtype(dtype: torch.dtype):
    limits = torch.finfo(dtype)
    special = [0.0, -0.0, 1.0, -1.0, limits.tiny, limits.smallest_normal / 2, 1 - limits.eps / 2]
    weights = torch.cat([torch.tensor(special, dtype=dtype), torch.randn(1000).to(dtype)])
    moved = move_one_ulp(weights, torch.Generator().manual_seed(0))
    assert moved.dtype is dtype
    assert set(ulps(moved, weights).tolist()) == {-1, 1}
    assert 400 < int((ulps(moved, weights) > 0).sum()) < 600
    without_neighbour = torch.tensor([torch.inf, -torch.inf, torch.nan], dtype=dtype)
    stays = move_one_ulp(without_neighbour, torch.Generator())
    assert torch.equal(stays.nan_to_num(7), without_neighbour.nan_to_num(7))


@pytest.mark.parametrize("backend", ["none", "apex_o2", "fp16", "bf16_sr"])
def test_every_trainable_weight_moves_by_one_ulp_and_nothing_else(backend: str, network: str):
    """Under every backend in the dtype that the optimizer updates: fp32 masters, fp16 or bf16 weights."""
    words = [network, f"backend={backend}"]
    plain, moved = fit(*words)[0].trainer, fit(*words, PERTURBED)[0].trainer
    for before, after in zip(optimized(plain), optimized(moved), strict=True):
        expected = {-1, 1} if after.requires_grad else {0}
        assert set(ulps(after, before).flatten().tolist()) <= expected
    assert not all(p.requires_grad for p in optimized(moved))
    for name, buffer in plain.model.named_buffers():
        assert torch.equal(buffer, moved.model.get_buffer(name))
    # What the model computes with are the optimizer's weights, rounded to its dtype.
    for weight, updated in zip(moved.model.parameters(), optimized(moved), strict=True):
        assert torch.equal(weight, updated.to(weight.dtype))
    assert plain.precision.scale_factor() == moved.precision.scale_factor()


def test_dropout_and_the_order_of_the_data_stay(network: str):
    """The generators are where they were, so that the two trainings differ in the weights alone."""
    states = []
    for extra in ((), (PERTURBED,)):
        fit(network, *extra)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)
