"""Half weights: types of the parts of a network, what they cost, and stochastic rounding of the update."""

import copy
import math

import pytest
import torch
from torch import nn

from ampcompare.precision import build_precision

HALF, BF16, FLOAT = torch.float16, torch.bfloat16, torch.float32


def make_net() -> nn.Module:
    """Return a small network."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def prepare(backend: str, **options):
    """Return a backend, model and optimizer."""
    precision = build_precision(backend, **options)
    model = make_net()
    kind = torch.optim.AdamW(model.parameters(), lr=0.01)
    return precision, *precision.prepare(model, kind)


def train(precision, model, optimizer, steps: range) -> list[torch.Tensor]:
    """Train the steps and return the weights."""
    for number in steps:
        generator = torch.Generator().manual_seed(number)
        with precision.forward_context():
            loss = model(torch.randn(8, 4, generator=generator)).square().mean()
        precision.backward(loss)
        precision.step(optimizer)
        optimizer.zero_grad()
    return [p.detach().clone() for p in optimizer.param_groups[0]["params"]]  # under O2 fp32 masters


@pytest.mark.parametrize(
    ("backend", "keep", "half", "norms"),
    [
        ("fp16", None, HALF, HALF),
        ("fp16", True, HALF, FLOAT),
        ("apex_o2", None, HALF, FLOAT),
        ("apex_o2", False, HALF, HALF),
        ("bf16_sr", None, BF16, BF16),
        ("bf16_sr", True, BF16, FLOAT),
    ],
)
def test_batchnorm_stays_in_fp32_by_option_or_by_the_backends_default(backend, keep, half, norms):
    precision, model, optimizer = prepare(backend, keep_batchnorm_fp32=keep, loss_scale=1024.0)
    assert {model[0].weight.dtype, model[3].bias.dtype} == {half}
    assert model(torch.randn(8, 4)).dtype is FLOAT
    before = model[1].weight.detach().clone()
    train(precision, model, optimizer, range(2))
    assert {t.dtype for t in (*model[1].parameters(), model[1].running_mean, model[1].running_var)} == {norms}
    assert not torch.equal(model[1].weight, before)


def drift(backend: str, value: float, steps: int) -> float:
    """How far weights of a value come in so many steps of 2**-12 of it, an eighth of what bf16 can show."""
    weight = nn.Parameter(torch.full((1000,), value))
    precision = build_precision(backend, seed=3)
    holder = nn.ParameterList([weight])
    _, optimizer = precision.prepare(holder, torch.optim.SGD([weight], lr=2.0**-12))
    for _ in range(steps):
        weight.grad = torch.full_like(weight, value)
        precision.step(optimizer)
    return 1 - (weight.double() / value).mean().item()


@pytest.mark.parametrize("value", [1.0, -(2.0**-120), 2.0**127])
def test_updates_too_small_for_bf16_are_lost_and_add_up_with_stochastic_rounding(value: float) -> None:
    assert drift("bf16", value, 256) == 0.0
    # each step: 1/16 of a unit of 2**-8; after all, sd below a unit a step over 1000 weights
    spread = 2.0**-8 * math.sqrt(256 / 16) / math.sqrt(1000)
    assert drift("bf16_sr", value, 256) == pytest.approx(256 * 2.0**-12, abs=5 * spread)


def test_rounding_depends_on_the_seed_only() -> None:
    first, again, other = (train(*prepare("bf16_sr", seed=seed), range(3)) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("backend", ["bf16_sr", "apex_o2"])
def test_a_resumed_training_is_bit_identical(backend: str) -> None:
    """Half weights, masters, the schedule of the scale, whose first steps are skipped, and rounding."""

    def begun():
        return prepare(backend, seed=5, init_scale=2.0**20, growth_interval=2)

    whole = begun()
    expected = train(*whole, range(8))
    precision, model, optimizer = begun()
    train(precision, model, optimizer, range(4))
    kept = copy.deepcopy((precision.state_dict(), model.state_dict(), optimizer.state_dict()))
    precision, model, optimizer = begun()
    for part, state in zip((model, optimizer, precision), (*kept[1:], kept[0]), strict=True):
        part.load_state_dict(state)
    resumed = train(precision, model, optimizer, range(4, 8))
    assert all(torch.equal(a, b) for a, b in zip(expected, resumed, strict=True))
    assert precision.scale_factor() == whole[0].scale_factor()
    assert (precision.skipped_steps().item() > 0) is (backend == "apex_o2")


KINDS = {
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_rounded_step_is_a_bf16_neighbour_of_the_fp32_step_and_states_keep_their_memory(kind) -> None:
    torch.manual_seed(0)
    weights = [torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last), torch.randn(5), torch.randn(())]
    ours = [nn.Parameter(x.to(BF16)) for x in weights]
    precision, optimizer = build_precision("bf16_sr"), KINDS[kind](ours)
    heard: list[int] = []  # as DDP, which reduces gradients in such a hook, hears of each
    node = ours[0].expand_as(ours[0]).grad_fn.next_functions[0][0]
    node.register_hook(lambda *_: heard.append(1))
    places: list[list[int]] = []
    for number in range(4):
        wide = [nn.Parameter(p.detach().float()) for p in ours]
        reference = KINDS[kind](wide)
        reference.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        optimizer.zero_grad()
        sum((p * (number + 1)).sum() for p in ours).backward()
        for p, other in zip(ours, wide, strict=True):
            other.grad = p.grad.float()
        precision.step(optimizer)
        reference.step()
        for p, expected in zip(ours, wide, strict=True):
            torch.testing.assert_close(p.float(), expected, rtol=2.0**-7, atol=0)
            for key, value in reference.state[expected].items():
                assert torch.equal(optimizer.state[p][key], value.to(optimizer.state[p][key].dtype)), key
        states = [v for p in ours for k, v in optimizer.state[p].items() if k != "step"]
        assert {v.dtype for v in states} == {BF16}
        places.append([v.data_ptr() for v in states])
    assert places == places[:1] * 4
    assert len(heard) == 4
