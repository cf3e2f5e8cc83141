"""Weights that were used together are cast together, and nobody can tell but by the number of launches."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ampcompare.precision.apex import cache
from ampcompare.precision.apex.casts import casts
from ampcompare.precision.apex.state import STATE


@pytest.fixture(autouse=True)
def forgotten():
    """No memory of other tests' weights."""
    STATE.cache.__init__()
    yield
    STATE.cache.__init__()


class Casts(TorchDispatchMode):
    """Counts the ops that change fp32 to fp16 or back, those on many tensors once."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.many = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.one += func.overloadpacket.__name__ == "_to_copy" and (kwargs or {}).get("dtype") is not None
        self.many += func.overloadpacket.__name__ == "_foreach_copy_"
        return func(*args, **(kwargs or {}))


def layers(count: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(count)))


def train(model: nn.Module, x: Tensor) -> Casts:
    with Casts() as counted:
        with casts(device_type="cpu"):
            loss = model(x).float().square().sum()
        loss.backward()
    return counted


def gradients(model: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def test_from_the_second_forward_on_sixteen_weights_are_a_launch_and_so_are_their_gradients():
    model, x = layers(40), torch.randn(3, 4)
    first, second = train(model, x), train(model, x)
    assert first.many == 0
    assert second.many == 2 * 3  # 16, 16 and 8: forward and backward
    assert first.one - second.one == 2 * 40


def test_values_and_gradients_are_those_of_one_by_one(monkeypatch: pytest.MonkeyPatch):
    x = torch.randn(3, 4)
    found = []
    for together in (1, 16):
        monkeypatch.setattr(cache, "TOGETHER", together)
        model = layers(20)
        for _ in range(3):
            train(model, x)
        found.append(gradients(model))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_weight_that_is_left_out_this_time_gets_no_gradient():
    model, x = layers(4), torch.randn(3, 4)
    train(model, x)
    model.zero_grad()
    train(model[:2], x)
    assert [g is None for g in gradients(model)] == [False, False, True, True]


def test_a_hook_on_a_weight_is_called_once_with_its_gradient_or_not_at_all():
    model, x = layers(4), torch.randn(3, 4)
    train(model, x)
    seen: list[int] = []
    for number in (1, 3):
        model[number].weight.register_hook(
            lambda g, number=number: seen.append(number) if g is not None else 1 / 0
        )
    train(model[:3], x)
    assert seen == [1]


def test_frozen_weights_stay_out_of_the_graph():
    model, x = layers(4), torch.randn(3, 4, requires_grad=True)
    model[1].weight.requires_grad_(False)
    train(model, x)
    model.zero_grad()
    train(model, x)
    assert [g is None for g in gradients(model)] == [False, True, False, False]


@pytest.mark.parametrize("edit", ["in place", "data"])
def test_a_weight_edited_between_two_forwards_is_cast_anew(edit: str):
    model, x = layers(3), torch.ones(1, 4)
    train(model, x)
    for layer in model:
        with torch.no_grad():
            layer.weight.fill_(0.5) if edit == "in place" else layer.weight.data.fill_(0.5)
    with casts(device_type="cpu"):
        assert torch.equal(model(x), torch.full((1, 4), 8.0, dtype=torch.float16))


def test_a_weight_edited_after_it_was_cast_ahead_is_cast_anew():
    model, x = layers(2), torch.ones(1, 4)
    train(model, x)
    with casts(device_type="cpu"):
        between = model[0](x)
        with torch.no_grad():
            model[1].weight.fill_(0.0)
        assert torch.equal(model[1](between), torch.zeros(1, 4, dtype=torch.float16))


def test_a_forward_without_gradients_first_does_not_cut_the_weights_off():
    model, x = layers(3), torch.randn(2, 4)
    train(model, x)
    model.zero_grad()
    with casts(device_type="cpu"):
        with torch.no_grad():
            model[:1](x)  # casts the others ahead, without a graph
        model(x).float().sum().backward()
    assert all(g is not None for g in gradients(model))


def test_gradients_of_gradients_and_batches_of_gradients_are_those_of_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
):
    x = torch.randn(3, 4)
    found = []
    for together in (1, 16):
        monkeypatch.setattr(cache, "TOGETHER", together)
        model = layers(3)
        train(model, x)
        model.zero_grad()
        with casts(device_type="cpu"):
            loss = model(x).float().square().sum()
        first = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        sum(g.square().sum() for g in first).backward()
        with casts(device_type="cpu"):
            out = model(x).float().sum(0)
        rows = torch.autograd.grad(out, list(model.parameters()), torch.eye(4), is_grads_batched=True)
        found.append([*gradients(model), *rows])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_functional_transforms_and_forward_derivatives_work_as_before():
    model, x = layers(2), torch.randn(3, 4)
    train(model, x)

    def run(x: Tensor) -> Tensor:
        with casts(device_type="cpu"):
            return model(x).float().square().sum()

    assert torch.func.grad(run)(x).shape == x.shape
    assert torch.func.vmap(run)(x[:, None]).shape == (3,)
    with torch.autograd.forward_ad.dual_level():
        found = run(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))
        assert torch.autograd.forward_ad.unpack_dual(found).tangent is not None


def test_no_model_is_kept_alive():
    model, x = layers(3), torch.randn(3, 4)
    train(model, x)
    train(model, x)
    gone = weakref.ref(model[0].weight)
    del model
    gc.collect()
    assert gone() is None


def test_a_graph_can_be_used_twice():
    model, x = layers(3), torch.randn(3, 4)
    train(model, x)
    model.zero_grad()
    with casts(device_type="cpu"):
        loss = model(x).float().square().sum()
    loss.backward(retain_graph=True)
    once = gradients(model)
    loss.backward()
    assert all(torch.equal(2 * a, b) for a, b in zip(once, gradients(model), strict=True))
