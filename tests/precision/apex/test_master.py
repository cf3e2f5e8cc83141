"""O2: an fp16 model with fp32 BatchNorm and fp32 master weights, as a backend and as a level of `amp`."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ampcompare.precision import build_precision
from ampcompare.precision.apex import amp
from ampcompare.precision.casting import convert_network

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


def backward_that_fails(loss, optimizer) -> None:
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()
        raise RuntimeError("after the gradient")


def master(optimizer) -> torch.Tensor:
    (found,) = amp.master_params(optimizer)
    return found


# the model


def test_everything_but_affine_batchnorm_is_half() -> None:
    model = net()
    convert_network(model, HALF, keep_batchnorm_fp32=True)
    assert {model[0].weight.dtype, model[0].bias.dtype, model[3].running_mean.dtype} == {HALF}
    assert {model[1].weight.dtype, model[1].bias.dtype, model[1].running_mean.dtype} == {FLOAT}
    assert model[1].num_batches_tracked.dtype is torch.int64


def test_parameters_stay_the_same_objects_and_gradients_follow() -> None:
    model = line()
    weight = model.weight
    model(torch.ones(1, 1)).sum().backward()
    convert_network(model, HALF, keep_batchnorm_fp32=True)
    assert model.weight is weight
    assert weight.grad.dtype is HALF
    assert weight.grad.item() == 1


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_network_trains(kind) -> None:
    model = kind(2, 3)
    model, optimizer = started(model)
    before = [p.clone() for p in amp.master_params(optimizer)]
    out, state = model(torch.ones(4, 1, 2))
    assert {t.dtype for t in (out, *state)} == {FLOAT}
    with amp.scale_loss(out.sum(), optimizer) as scaled:
        scaled.backward()
    optimizer.step()
    assert not any(torch.equal(p, q) for p, q in zip(amp.master_params(optimizer), before, strict=True))


def test_inputs_are_half_inside_and_outputs_fp32() -> None:
    model, _ = started(net())
    seen = []
    model[0].register_forward_pre_hook(lambda _, args: seen.append(args[0].dtype))
    assert model(torch.randn(2, 3)).dtype is FLOAT
    assert seen == [HALF]


# masters


def test_master_is_fp32_and_the_optimizer_s_only_parameter() -> None:
    model, optimizer = started(line(0.1))
    assert master(optimizer).dtype is FLOAT
    assert master(optimizer) is optimizer.param_groups[0]["params"][0]
    assert master(optimizer).item() == model.weight.item() == torch.tensor(0.1, dtype=HALF).item()


def test_updates_too_small_for_fp16_add_up_in_the_master() -> None:
    model, optimizer = started(line(), lr=2.0**-12)
    for _ in range(4):
        backward(model, optimizer)
        optimizer.step()
        optimizer.zero_grad()
    assert master(optimizer).item() == 1 - 2.0**-10
    assert model.weight.item() == 1 - 2.0**-10


def test_state_from_before_moves_to_the_masters() -> None:
    model = line()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    moment = optimizer.state[model.weight]["exp_avg"]
    amp.initialize(model, optimizer, opt_level="O2")
    assert set(optimizer.state) == {master(optimizer)}
    assert optimizer.state[master(optimizer)]["exp_avg"] is moment


def test_frozen_parameter_stays_as_it_is_until_it_is_unfrozen() -> None:
    model = line()
    model.weight.requires_grad_(False)
    model, optimizer = started(model)
    assert not master(optimizer).requires_grad
    model.weight.requires_grad_(True)
    backward(model, optimizer)
    optimizer.step()
    assert model.weight.item() == 0.875


def test_gradients_end_up_true_in_the_masters_and_leave_the_model() -> None:
    model, optimizer = started(line())
    backward(model, optimizer, 3.0)
    assert master(optimizer).grad.item() == 3
    assert master(optimizer).grad.dtype is FLOAT
    assert model.weight.grad is None


def test_sum_of_micro_batches_beyond_fp16_is_no_overflow() -> None:
    model, optimizer = started(line(), loss_scale=2.0)
    for _ in range(3):
        backward(model, optimizer, 30000.0)
    assert master(optimizer).grad.item() == 90000


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(-8, 8), st.booleans()), min_size=1, max_size=6), st.integers(0, 10))
def test_micro_batches_add_up_whichever_of_them_are_delayed(batches, exponent) -> None:
    model, optimizer = started(line(), loss_scale=2.0**exponent)
    try:
        for factor, delay in [*batches, (1, False)]:
            backward(model, optimizer, factor, delay_unscale=delay)
        assert master(optimizer).grad.item() == sum(factor for factor, _ in batches) + 1
    finally:
        amp.reset()


def test_gradients_of_a_plain_backward_are_true_ones() -> None:
    model, optimizer = started(line())
    model(torch.ones(1, 1)).sum().backward()
    backward(model, optimizer, 2.0)
    assert master(optimizer).grad.item() == 3
    optimizer.zero_grad()
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    assert model.weight.item() == 0.875


def test_gradients_from_a_plain_backward_after_a_scaled_one_are_added() -> None:
    model, optimizer = started(line())
    backward(model, optimizer, 2.0)
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    assert model.weight.item() == 1 - 0.125 * 3


def test_error_in_the_backward_leaves_the_gradients_from_before() -> None:
    model, optimizer = started(line())
    backward(model, optimizer, 2.0)
    loss = model(torch.ones(1, 1)).sum()
    with pytest.raises(RuntimeError, match="after the gradient"):
        backward_that_fails(loss, optimizer)
    assert master(optimizer).grad.item() == 2
    assert model.weight.grad is None


def test_model_zero_grad_is_enough() -> None:
    model, optimizer = started(line())
    for _ in range(2):
        model.zero_grad()
        backward(model, optimizer)
        optimizer.step()
    assert model.weight.item() == 1 - 2 * 0.125


def test_clipping_the_masters_clips_the_update() -> None:
    model, optimizer = started(line())
    backward(model, optimizer, 32.0)
    assert torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0).item() == 32
    optimizer.step()
    assert model.weight.item() == pytest.approx(0.875, abs=1e-3)


def test_no_masters_on_request() -> None:
    model, optimizer = started(line(), master_weights=False)
    assert master(optimizer) is model.weight
    backward(model, optimizer)
    assert model.weight.grad.dtype is HALF
    optimizer.step()
    assert model.weight.item() == 0.875


def test_bfloat16_has_masters_too() -> None:
    model, optimizer = started(line(), lr=2.0**-12, cast_model_type=torch.bfloat16)
    backward(model, optimizer)
    optimizer.step()
    assert model.weight.dtype is torch.bfloat16
    assert master(optimizer).item() == 1 - 2.0**-12
    assert model.state_dict()["weight"].dtype is FLOAT


# state dicts


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_state_dict_is_fp32_for_the_model_and_its_parts_and_loads_into_a_plain_one(level) -> None:
    model = net()
    amp.initialize(model, opt_level=level)
    model(torch.randn(4, 3))
    state = model.state_dict()
    assert {t.dtype for t in state.values()} == {FLOAT, torch.int64}
    assert model[0].state_dict()["weight"].dtype is FLOAT
    assert model[0].weight.dtype is HALF
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


def test_master_edited_after_a_checkpoint_was_loaded_keeps_the_edit() -> None:
    model, optimizer = started(line())
    model.load_state_dict(line(3.0).state_dict())
    with torch.no_grad():
        master(optimizer).fill_(5)
    backward(model, optimizer)
    assert master(optimizer).item() == 5


def test_checkpoint_loaded_between_backward_and_step_is_what_is_updated() -> None:
    model, optimizer = started(line())
    backward(model, optimizer)
    model.load_state_dict(line(3.0).state_dict())
    optimizer.step()
    assert model.weight.item() == 3 - 0.125


def test_checkpoint_loaded_in_the_middle_of_training_takes_effect() -> None:
    model, optimizer = started(line())
    state = copy.deepcopy(model.state_dict())
    for _ in range(3):
        backward(model, optimizer)
        optimizer.step()
    model.load_state_dict(state)
    backward(model, optimizer)
    optimizer.step()
    assert master(optimizer).item() == model.weight.item() == 1 - 0.125


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


def test_apex_s_own_recipe_for_a_restart_goes_on_where_it_stopped() -> None:
    def step(model, optimizer) -> None:
        optimizer.zero_grad()
        backward(model, optimizer, 1.5)
        optimizer.step()

    model, optimizer = started(line(), kind=torch.optim.Adam)
    step(model, optimizer)
    checkpoint = copy.deepcopy((model.state_dict(), optimizer.state_dict(), amp.state_dict()))
    step(model, optimizer)
    expected = model.weight.item()
    amp.reset()
    model, optimizer = started(line(7.0), kind=torch.optim.Adam)
    for thing, state in zip((model, optimizer, amp), checkpoint, strict=True):
        thing.load_state_dict(state)
    step(model, optimizer)
    assert model.weight.item() == pytest.approx(expected, abs=1e-3)


# reset


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


# the backend


def test_backend_trains_in_fp32_masters() -> None:
    precision, model, optimizer = backend(line(), lr=2.0**-12)
    for _ in range(4):
        precision.backward(model(torch.ones(1, 1)).sum())
        precision.step(optimizer)
        optimizer.zero_grad()
    assert model.weight.dtype is HALF
    assert model.weight.item() == 1 - 2.0**-10


@pytest.mark.parametrize("loss_scale", ["dynamic", 64.0, 1.0])
def test_backend_accumulates_like_one_large_batch(loss_scale) -> None:
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(2)
    model = nn.Linear(3, 1)
    gradients = []
    for parts in (1, 3):
        precision, ours, optimizer = backend(copy.deepcopy(model), loss_scale=loss_scale)
        for number in range(parts):
            precision.backward(ours(x[number::parts]).sum() / 6, sync=number == parts - 1)
        gradients.append([p.grad for group in optimizer.param_groups for p in group["params"]])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-3, atol=1e-4)


def test_backend_s_fused_optimizer_agrees_with_the_plain_one() -> None:
    found = []
    for fused in (False, True):
        precision, model, optimizer = backend(line(), momentum=0.5, fused=fused, loss_scale="dynamic")
        for _ in range(3):
            precision.backward(model(torch.ones(1, 1)).sum())
            precision.step(optimizer)
            optimizer.zero_grad()
        found.append(model.weight.item())
    assert found[0] == found[1] < 1


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


def test_backend_s_saved_state_does_not_move_with_training() -> None:
    precision, model, optimizer = backend(line())
    state = precision.state_dict()
    precision.backward(model(torch.ones(1, 1)).sum())
    precision.step(optimizer)
    assert state["masters"][0].item() == 1


def test_backend_with_static_scale_one_still_moves_gradients_to_the_masters() -> None:
    precision, model, optimizer = backend(line(), loss_scale=1.0)
    precision.backward(model(torch.ones(1, 1)).sum())
    assert optimizer.param_groups[0]["params"][0].grad.item() == 1
    precision.step(optimizer)
    assert model.weight.item() == 0.875


def test_rank_0_s_weights_reach_the_masters() -> None:
    precision, model, optimizer = backend(line())
    with torch.no_grad():
        model.weight.detach().copy_(torch.full((1, 1), 2.0))  # what DDP does when it wraps a model
    precision.backward(model(torch.ones(1, 1)).sum())
    precision.step(optimizer)
    assert model.weight.item() == 2 - 0.125
