"""O2: an fp16 model with fp32 BatchNorm and fp32 master weights, as a backend and as a level of `amp`."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ampcompare.precision import build_precision
from ampcompare.precision.apex import amp

HALF, FLOAT = torch.float16, torch.float32
INF = float("inf")


@pytest.fixture(autouse=True)
def _reset():
    yield
    amp.reset()


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 2)
    )


def line(weight: float = 1.0) -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(weight)
    return model


def backend(model: nn.Module, kind=torch.optim.SGD, *, lr: float = 0.125, loss_scale=1024.0, **settings_):
    precision = build_precision("apex_o2", loss_scale=loss_scale, init_scale=1024.0)
    return precision, *precision.prepare(model, kind(model.parameters(), lr=lr, **settings_))


def started(model: nn.Module, kind=torch.optim.SGD, *, lr: float = 0.125, **options):
    options.setdefault("max_loss_scale", 1024.0)
    return amp.initialize(model, kind(model.parameters(), lr=lr), opt_level="O2", verbosity=0, **options)


def backward(model: nn.Module, optimizer, factor: float = 1.0, **options) -> None:
    with amp.scale_loss(model(torch.ones(1, 1)).sum() * factor, optimizer, **options) as scaled:
        scaled.backward()


def master(optimizer) -> torch.Tensor:
    (found,) = amp.master_params(optimizer)
    return found


def test_updates_too_small_for_fp16_add_up_in_the_master() -> None:
    model, optimizer = started(line(), lr=2.0**-12)
    for _ in range(4):
        backward(model, optimizer)
        optimizer.step()
        optimizer.zero_grad()
    assert master(optimizer).item() == 1 - 2.0**-10
    assert model.weight.item() == 1 - 2.0**-10


def test_sum_of_micro_batches_beyond_fp16_is_no_overflow() -> None:
    model, optimizer = started(line(), loss_scale=2.0)
    for _ in range(3):
        backward(model, optimizer, 30000.0)
    assert master(optimizer).grad.item() == 90000


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_state_dict_is_fp32_for_the_model_and_its_parts_and_loads_into_a_plain_one(level) -> None:
    model = net()
    amp.initialize(model, opt_level=level)
    model(torch.randn(4, 3))
    state = model.state_dict()
    assert {t.dtype for t in state.values()} == {FLOAT, torch.int64}
    assert model[0].state_dict()["weight"].dtype is FLOAT
    assert model[0].weight.dtype is model[3].running_mean.dtype is HALF
    plain = net()
    plain.load_state_dict(state)
    assert torch.equal(plain[0].weight, model[0].weight.float())


def test_checkpoint_loaded_after_initialize_is_what_is_trained() -> None:
    state = line(3.0).state_dict()
    model, optimizer = started(line())
    model.load_state_dict(state)
    assert master(optimizer).item() == 3
    backward(model, optimizer)
    optimizer.step()
    assert model.weight.item() == 3 - 0.125


def test_weights_swapped_out_and_in_again_keep_their_finer_masters() -> None:
    model, optimizer = started(line(), lr=2.0**-14)
    backward(model, optimizer)
    optimizer.step()
    finer = master(optimizer).item()
    assert finer != model.weight.item()
    with torch.no_grad():
        own = model.weight.clone()
        model.weight.fill_(2)
        model.weight.copy_(own)
    assert master(optimizer).item() == finer


def test_reset_leaves_the_trained_masters_in_a_plain_fp32_model() -> None:
    model = line()
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-12, momentum=0.5)
    weight = model.weight
    amp.initialize(model, optimizer, opt_level="O2", max_loss_scale=1024.0)
    backward(model, optimizer)
    optimizer.step()
    amp.reset()
    assert model.weight is weight
    assert optimizer.param_groups[0]["params"] == [weight]
    assert (weight.dtype, weight.item()) == (FLOAT, 1 - 2.0**-12)
    assert set(optimizer.state) == {weight}
    assert optimizer.state[weight]["momentum_buffer"].item() == 1
    assert weight.grad is None


def test_backend_s_state_holds_masters_and_schedule() -> None:
    def step(precision, model, optimizer) -> None:
        precision.backward(model(torch.ones(1, 1)).sum())
        precision.step(optimizer)
        optimizer.zero_grad()

    first = backend(line(), lr=2.0**-13, loss_scale="dynamic")
    step(*first)
    first[0].backward(first[1](torch.ones(1, 1)).sum() * INF)
    first[0].step(first[2])
    first[2].zero_grad()
    state = copy.deepcopy((first[1].state_dict(), first[0].state_dict()))
    second = backend(line(5.0), lr=2.0**-13, loss_scale="dynamic")
    second[1].load_state_dict(state[0])
    second[0].load_state_dict(state[1])
    assert second[0].scale_factor().item() == 512
    assert second[0].skipped_steps().item() == 1
    for both in (first, second):
        step(*both)
    masters = [optimizer.param_groups[0]["params"][0].item() for _, _, optimizer in (first, second)]
    assert masters[0] == masters[1] == 1 - 2 * 2.0**-13
