"""Updates that rounding swallows: counted as the optimizer will really lose them, under every optimizer."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from support.properties import backends
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from ampcompare import metrics
from ampcompare.config.schema import TrainingConfig
from ampcompare.measure.updates import is_missing, look_at_updates, unless_skipped
from ampcompare.models import build_model, tiny
from ampcompare.precision import REGISTRY, build_precision
from ampcompare.train.trainer import Trainer

LOST, SIZE = metrics.LOST_UPDATES, metrics.UPDATE_SIZE
OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 5e-4}),
    "nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "fused": (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 5e-4, "fused": True}),
    "adam": (torch.optim.Adam, {"weight_decay": 1e-2, "eps": 1e-4}),
    "adamw": (torch.optim.AdamW, {"weight_decay": 1e-2, "eps": 1e-4}),
}
HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


def parameters(dtype: torch.dtype, *, size: int = 300, seed: int = 0) -> list[nn.Parameter]:
    """Two half weights with gradients whose sizes spread over some orders of magnitude."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for count in (size, 2 * size):
        p = nn.Parameter(torch.randn(count, generator=generator).to(dtype))
        spread = 10 ** (-4 * torch.rand(count, generator=generator))
        p.grad = (torch.randn(count, generator=generator) * spread).to(dtype)
        made.append(p)
    return made


def taken(optimizer: torch.optim.Optimizer, groups: dict[str, list[Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Each weight in float64 with its update, by a copy of all in float64: a second way to the figures."""
    widened: dict[int, Tensor] = {}
    states: Any = {}
    for p in (p for ps in groups.values() for p in ps):
        twin = widened[id(p)] = nn.Parameter(p.detach().double())
        twin.grad = None if p.grad is None else p.grad.double()
        states[twin] = {
            k: x.double() if torch.is_tensor(x) and x.shape == p.shape else copy.deepcopy(x)
            for k, x in optimizer.state.get(p, {}).items()
        }
    left_out = ("params", "fused", "decoupled_weight_decay")
    options = {k: v for k, v in optimizer.param_groups[0].items() if k not in left_out}
    again = type(optimizer)(list(widened.values()), **options)
    again.state.update({p: s for p, s in states.items() if s})
    before = {key: p.detach().clone() for key, p in widened.items()}
    again.step()
    return [(before[key], p.detach() - before[key]) for key, p in widened.items()]


def share_lost(pairs: list[tuple[Tensor, Tensor]], dtype: torch.dtype) -> float:
    lost = sum(int(((u != 0) & ((w + u).to(dtype) == w.to(dtype))).sum()) for w, u in pairs)
    return lost / sum(int((u != 0).sum()) for _, u in pairs)


@HALVES
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_figures_are_those_of_the_step_taken_in_float64(name: str, dtype: torch.dtype):
    made = parameters(dtype)
    kind, options = OPTIMIZERS[name]
    optimizer = kind(made, lr=3e-4 if "adam" in name else 0.01, **options)
    for seed in range(3):  # with the states of the steps before
        for p, fresh in zip(made, parameters(dtype, seed=seed), strict=True):
            p.grad = fresh.grad
        groups = {"a": made[:1], "b": made[1:]}
        found = look_at_updates(optimizer, groups)
        pairs = taken(optimizer, groups)
        for part, label in ((pairs, ""), (pairs[:1], "/a"), (pairs[1:], "/b")):
            assert found[LOST + label].item() == pytest.approx(share_lost(part, dtype), abs=2e-3)
            size = sum(u.abs().sum() for _, u in part) / sum(w.abs().sum() for w, _ in part)
            assert found[SIZE + label].item() == pytest.approx(size.item(), rel=1e-6)
        assert 0.01 < found[LOST].item() < 0.99
        optimizer.step()


@HALVES
@pytest.mark.parametrize("name", ["sgd", "fused"])
def test_the_weights_that_count_as_lost_are_those_that_the_step_leaves(name: str, dtype: torch.dtype):
    made = parameters(dtype)
    optimizer = OPTIMIZERS[name][0](made, lr=0.01, **(OPTIMIZERS[name][1] | {"weight_decay": 0.0}))
    before = [p.detach().clone() for p in made]
    found = look_at_updates(optimizer, {"all": made})
    optimizer.step()
    has_gradient = torch.cat([p.grad != 0 for p in made])
    stayed = torch.cat([p.detach() == w for p, w in zip(made, before, strict=True)])
    share = (stayed & has_gradient).sum().item() / has_gradient.sum().item()
    assert found[LOST].item() == pytest.approx(share, abs=2e-3)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_look_changes_nothing(name: str):
    def train(*, looks: bool) -> tuple[list[Tensor], dict[str, Any]]:
        made = parameters(torch.bfloat16)
        kind, options = OPTIMIZERS[name]
        optimizer = kind(made, lr=0.01, **options)
        for _ in range(3):
            if looks:
                look_at_updates(optimizer, {"all": made})
            optimizer.step()
        return made, optimizer.state_dict()

    (plain, its_state), (looked, state) = train(looks=False), train(looks=True)
    assert all(torch.equal(a, b) for a, b in zip(plain, looked, strict=True))
    assert torch.equal(plain[0].grad, looked[0].grad)
    torch.testing.assert_close(its_state, state, rtol=0, atol=0)


def test_a_weight_without_an_update_does_not_count():
    p = nn.Parameter(torch.ones(100, dtype=torch.bfloat16))
    p.grad = torch.zeros_like(p)
    p.grad[:10] = 1e-4  # lost
    p.grad[10:20] = 1.0  # not
    found = look_at_updates(torch.optim.SGD([p], lr=0.1), {"all": [p]})
    assert found[LOST].item() == 0.5
    assert found[SIZE].item() == pytest.approx((10 * 1e-5 + 10 * 0.1) / 100, rel=1e-2)


def test_fp32_weights_have_no_figures_and_do_not_weigh_on_half_ones():
    wide = nn.Parameter(torch.ones(1000))
    wide.grad = torch.full_like(wide, 1e-6)
    half = parameters(torch.bfloat16)
    alone = look_at_updates(torch.optim.SGD(half, lr=0.1), {"a": half})
    both = look_at_updates(torch.optim.SGD([wide, *half], lr=0.1), {"a": [wide, *half]})
    assert both == alone
    assert look_at_updates(torch.optim.SGD([wide], lr=0.1), {"a": [wide]}) == {}


def test_a_skipped_step_has_no_figures():
    found = {LOST: torch.tensor(0.25), f"{SIZE}/fc": torch.tensor(0.5)}
    assert unless_skipped(found, torch.tensor(False)) == found
    skipped = unless_skipped(found, torch.tensor(True))
    assert skipped.keys() == found.keys()
    assert all(is_missing(key, value.item()) for key, value in skipped.items())
    assert unless_skipped({}, torch.tensor(True)) == {}
    assert not is_missing("grad/norm", math.nan)  # a norm that is not finite is said


def made_trainer(backend: str, **options: Any) -> Trainer:
    torch.manual_seed(0)
    model = tiny(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    precision = build_precision(backend, "cpu", **options)
    model, optimizer = precision.prepare(model, optimizer)
    schedule = LambdaLR(optimizer, lambda _: 1.0)
    return Trainer(model, optimizer, schedule, precision, TrainingConfig(clip_norm=1.0))


def a_batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(16, 3, 8, 8, generator=generator), torch.arange(16) % 4


@backends(REGISTRY)
def test_a_backend_has_them_where_the_optimizer_updates_half_weights(backend: str):
    made = made_trainer(backend, init_scale=256.0)
    expected = backend in ("fp16", "bf16", "bf16_sr")
    assert not any(key.startswith("update/") for key in made.step([a_batch()]).gradients)
    found = made.step([a_batch()], diagnose=True).gradients
    assert (LOST in found, f"{SIZE}/8" in found) == (expected, expected)
    if expected:
        assert 0 < found[LOST].item() < 1
        assert 0 < found[SIZE].item() < 0.1  # of the true gradients, not those times the loss scale


# By hand, from fp32 gradients: issue 15, with seed 0, the CIFAR stem and 16 normal images.
EXPECTED = {
    torch.bfloat16: {0.1: 0.31, 0.01: 0.86, 0.001: 0.985},
    torch.float16: {0.1: 0.045, 0.01: 0.37, 0.001: 0.89},
}


@HALVES
def test_the_first_step_of_a_resnet18_loses_what_was_found_by_hand(dtype: torch.dtype):
    torch.manual_seed(0)
    model = build_model("resnet18", "cifar", 10)
    images, labels = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))
    nn.functional.cross_entropy(model(images), labels).backward()
    groups: dict[str, list[Tensor]] = {}
    for name, p in model.named_parameters():
        half = nn.Parameter(p.detach().to(dtype))
        half.grad = p.grad.to(dtype)
        groups.setdefault(name.partition(".")[0], []).append(half)
    weights = [p for ps in groups.values() for p in ps]
    for rate, share in EXPECTED[dtype].items():
        found = look_at_updates(torch.optim.SGD(weights, lr=rate), groups)
        assert found[LOST].item() == pytest.approx(share, abs=0.02)
        exact = [(p.detach().double(), -rate * p.grad.double()) for p in weights]
        assert found[LOST].item() == pytest.approx(share_lost(exact, dtype), abs=0.003)
