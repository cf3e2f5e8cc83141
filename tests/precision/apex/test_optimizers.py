"""An optimizer's step and zero_grad under `amp.initialize`: skips, schedulers, closures, state, and the
undoing.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR

from ampcompare.precision.apex import amp
from ampcompare.precision.o1.weights import STATE

INF = float("inf")


@pytest.fixture(autouse=True)
def _reset():
    yield
    amp.reset()


def line(weight: float = 1.0) -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(weight)
    return model


def backward(model: nn.Module, optimizers, factor: float = 1.0, **options) -> None:
    with amp.scale_loss(model(torch.ones(1, 1)).sum() * factor, optimizers, **options) as scaled:
        scaled.backward()


def started(level: str = "O1", kind=torch.optim.SGD, model: nn.Module | None = None, **options):
    model = line() if model is None else model
    settings = {"lr": 0.125, **options.pop("settings", {})}
    options.setdefault("max_loss_scale", 1024.0)  # at 2**16 a gradient of 1 is beyond fp16 already
    return amp.initialize(
        model, kind(model.parameters(), **settings), opt_level=level, verbosity=0, **options
    )


def test_overflow_skips_one_step_only() -> None:
    model, optimizer = started()
    backward(model, optimizer, INF)
    optimizer.step()
    assert model.weight.item() == 1
    optimizer.zero_grad()
    backward(model, optimizer)
    optimizer.step()
    assert model.weight.item() == 1 - 0.125


def test_two_overflows_before_a_step_halve_twice_and_skip_once() -> None:
    model, optimizer = started()
    for _ in range(2):
        backward(model, optimizer, INF)
    assert amp.state_dict()["loss_scaler0"]["loss_scale"] == 256
    optimizer.step()
    optimizer.zero_grad()
    backward(model, optimizer)
    optimizer.step()
    assert model.weight.item() == 1 - 0.125


def test_overflow_of_any_micro_batch_skips_the_step() -> None:
    model, optimizer = started()
    backward(model, optimizer, INF)
    backward(model, optimizer)
    optimizer.step()
    assert model.weight.item() == 1


def test_skip_stays_for_the_next_step_when_gradients_are_dropped() -> None:
    model, optimizer = started()
    backward(model, optimizer, INF)
    optimizer.zero_grad()
    backward(model, optimizer)
    optimizer.step()
    assert model.weight.item() == 1


def test_overflow_skips_the_optimizers_of_its_call_and_no_others() -> None:
    models = [line() for _ in range(3)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.125) for m in models]
    models, optimizers = amp.initialize(models, optimizers, num_losses=2, max_loss_scale=1024.0)
    backward(nn.Sequential(*models[:2]), optimizers[:2], INF, loss_id=0)
    backward(models[2], optimizers[2], loss_id=1)
    for optimizer in optimizers:
        optimizer.step()
    assert [m.weight.item() for m in models] == [1, 1, 0.875]


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("loss_scale", [64.0, "64.0", 1.0])
def test_static_scale_never_skips(level, loss_scale) -> None:
    model, optimizer = started(level, loss_scale=loss_scale)
    backward(model, optimizer, INF)
    optimizer.step()
    assert model.weight.item() == -INF
    assert amp.state_dict()["loss_scaler0"]["loss_scale"] == float(loss_scale)


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
@pytest.mark.parametrize("made", ["before", "after"])
def test_scheduler_made_before_or_after_works_without_a_warning(level, made) -> None:
    model = line()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, 1, gamma=0.5) if made == "before" else None
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, loss_scale="dynamic", verbosity=0)
    scheduler = scheduler or StepLR(optimizer, 1, gamma=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for factor in (INF, 1.0, 1.0):  # the first step is skipped
            backward(model, optimizer, factor)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    assert model.weight.item() == 1 - 0.5 - 0.25
    assert scheduler.get_last_lr() == [0.125]


def test_scheduler_that_really_comes_first_is_still_warned_about() -> None:
    _, optimizer = started()
    scheduler = CosineAnnealingLR(optimizer, 4)
    with pytest.warns(UserWarning, match="before `optimizer.step"):
        scheduler.step()


def test_optimizer_s_arithmetic_is_not_cast() -> None:
    seen = []

    class Squares(torch.optim.SGD):
        def step(self, closure=None):
            seen.append(torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype)
            return super().step(closure)

    model, optimizer = started(kind=Squares)
    backward(model, optimizer)
    optimizer.step()
    assert seen == [torch.float32]
    assert torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype is torch.float16


def test_step_forgets_cached_weight_copies() -> None:
    model, optimizer = started()
    model(torch.ones(1, 1))
    nn.functional.linear(
        torch.ones(1, 1), model.weight
    )  # outside a forward, where only a step or a backward clears
    assert len(STATE.copies) == 1
    optimizer.step()
    assert len(STATE.copies) == 0


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_closure_is_refused(level) -> None:
    _, optimizer = started(level)
    with pytest.raises(RuntimeError, match="does not support closure use"):
        optimizer.step(lambda: None)


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("to_none", [True, False])
def test_zero_grad_leaves_nothing_to_add_to(level, to_none) -> None:
    model, optimizer = started(level)
    for delay in (False, True):
        backward(model, optimizer, 3.0, delay_unscale=delay)
        optimizer.zero_grad(set_to_none=to_none)
        gradients = [p.grad for p in (*amp.master_params(optimizer), *model.parameters())]
        assert all(g is None if to_none else g is None or g.item() == 0 for g in gradients)
    backward(model, optimizer)
    assert next(amp.master_params(optimizer)).grad.item() == 1


def test_fused_optimizer_skips_and_steps() -> None:
    model, optimizer = started(settings={"fused": True, "momentum": 0.5})
    backward(model, optimizer, INF)
    optimizer.step()
    assert model.weight.item() == 1
    optimizer.zero_grad()
    backward(model, optimizer)
    optimizer.step()
    assert model.weight.item() == 0.875


def test_momentum_from_before_o3_is_cast_with_the_parameters_and_back() -> None:
    model = line()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.5)
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    amp.initialize(model, optimizer, opt_level="O3")
    assert optimizer.state[model.weight]["momentum_buffer"].dtype is torch.float16
    amp.reset()
    assert optimizer.state[model.weight]["momentum_buffer"].dtype is torch.float32
    assert optimizer.state[model.weight]["momentum_buffer"].item() == 1


def test_param_groups_are_the_same_objects_under_o1() -> None:
    model = line()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    group = optimizer.param_groups[0]
    amp.initialize(model, optimizer)
    assert optimizer.param_groups[0] is group


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_reset_gives_step_and_zero_grad_back(level) -> None:
    model = line()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    before = set(vars(optimizer))
    amp.initialize(model, optimizer, opt_level=level, loss_scale=4.0)
    amp.reset()
    assert set(vars(optimizer)) == before
    optimizer.zero_grad()
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    assert model.weight.item() == 0.5


@pytest.mark.parametrize("made", ["before", "between"])
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_scheduler_works_on_after_reset(made, level) -> None:
    model = line()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, 1, gamma=0.5) if made == "before" else None
    amp.initialize(model, optimizer, opt_level=level)
    scheduler = scheduler or StepLR(optimizer, 1, gamma=0.5)
    backward(model, optimizer, INF)
    amp.reset()  # and with it the skip that was due
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
            scheduler.step()
    assert model.weight.item() == 1 - 1 - 0.5
    assert scheduler.get_last_lr() == [0.25]


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_group_added_after_initialize_is_trained(level) -> None:
    first, second = line(), line()
    optimizer = torch.optim.SGD(first.parameters(), lr=0.125)
    models, optimizer = amp.initialize([first, second], optimizer, opt_level=level, max_loss_scale=1024.0)
    optimizer.add_param_group({"params": list(second.parameters()), "lr": 0.25})
    backward(nn.Sequential(*models), optimizer)
    assert [p.grad.item() for p in amp.master_params(optimizer)] == [1, 1]
    optimizer.step()
    assert [m.weight.item() for m in models] == [0.875, 0.75]
    assert [p.item() for p in amp.master_params(optimizer)] == [0.875, 0.75]
