"""Gradients around a scaled backward: set aside, unscaled on their own, added up, marked, restored."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ampcompare.precision.apex.scaler import LossScaler
from ampcompare.precision.apex.scaling import ScaledGradients, finish_backward, scaled_backward


class _Case:
    """One weight whose gradient is what the test says, under one scaler."""

    def __init__(self, **options: object) -> None:
        self.weight = nn.Parameter(torch.zeros(2))
        self.optimizer = torch.optim.SGD([self.weight], lr=1.0)
        self.gradients = ScaledGradients(self.optimizer, "cpu")
        self.scaler = LossScaler(**{"init_scale": 8.0, **options})

    def backward(self, slope: float, *, delay: bool = False) -> None:
        loss = (self.weight * slope).sum() * self.scaler.scale.clone()
        scaled_backward(self.scaler, [self.gradients], loss.backward, delay=delay)

    @property
    def gradient(self) -> list[float]:
        return self.weight.grad.tolist()


def test_gradients_are_true_after_a_backward():
    case = _Case()
    case.backward(3.0)
    assert case.gradient == [3.0, 3.0]


def test_gradients_of_two_backwards_add_up_though_the_scale_moved_in_between():
    case = _Case(growth_interval=1)
    for slope in (3.0, 5.0, 7.0):
        case.backward(slope)
    assert case.scaler.scale.item() == 64.0
    assert case.gradient == [15.0, 15.0]


@settings(max_examples=60)
@given(steps=st.lists(st.tuples(st.integers(-8, 8), st.booleans()), min_size=1, max_size=8))
def test_any_order_of_delayed_and_plain_backwards_gives_the_sum(steps):
    case = _Case(growth_interval=2)
    for slope, delay in steps:
        case.backward(slope, delay=delay)
    case.backward(1.0)
    assert case.gradient == [sum(slope for slope, _ in steps) + 1.0] * 2


def test_delayed_gradients_stay_scaled_until_a_plain_backward():
    case = _Case()
    case.backward(3.0, delay=True)
    assert case.gradient == [24.0, 24.0]
    case.backward(5.0, delay=True)
    assert case.gradient == [64.0, 64.0]
    case.backward(1.0)
    assert case.gradient == [9.0, 9.0]


def test_delayed_backward_moves_no_schedule():
    case = _Case()
    case.backward(3.0, delay=True)
    assert case.scaler.state_dict()["unskipped"] == 0
    case.backward(3.0)
    assert case.scaler.state_dict()["unskipped"] == 1


def test_true_gradients_before_a_delayed_backward_are_kept_out_of_the_scaling():
    case = _Case(growth_interval=1)
    case.backward(2.0)
    case.backward(3.0, delay=True)
    case.backward(5.0)
    assert case.gradient == [10.0, 10.0]


def test_delayed_backward_without_gradients_gives_the_true_ones_back():
    case, elsewhere = _Case(), nn.Parameter(torch.ones(()))
    case.backward(2.0)
    scaled_backward(case.scaler, [case.gradients], (elsewhere * 3.0).backward, delay=True)
    assert case.gradient == [2.0, 2.0]
    case.backward(5.0)
    assert case.gradient == [7.0, 7.0]


def test_gradients_dropped_after_a_delayed_backward_do_not_come_back():
    case = _Case()
    case.backward(2.0)
    case.backward(3.0, delay=True)
    case.optimizer.zero_grad()
    case.backward(5.0)
    assert case.gradient == [5.0, 5.0]


@pytest.mark.parametrize("delays", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_overflow_in_any_backward_is_not_lost(bad, delays):
    case = _Case()
    for number, delay in enumerate((*delays, False)):
        case.backward(math.inf if number == bad else 1.0, delay=delay)
    assert case.gradients.skip.item() == 1.0


def test_good_backward_after_an_overflow_still_skips():
    case = _Case()
    case.backward(math.nan)
    case.backward(1.0)
    case.backward(1.0)
    assert case.gradients.skip.item() == 1.0
    assert case.scaler.state_dict() == {"loss_scale": 4.0, "unskipped": 2}


def test_two_overflows_halve_twice():
    case = _Case()
    case.backward(math.inf)
    case.backward(math.inf)
    assert case.scaler.scale.item() == 2.0


def test_true_gradients_survive_in_their_own_memory():
    """Somebody may hold a gradient, or have laid them out in one buffer."""
    case = _Case()
    case.backward(1.0)
    held = case.weight.grad
    case.backward(2.0)
    assert case.weight.grad is held
    assert held.tolist() == [3.0, 3.0]


def test_gradient_that_a_backward_does_not_touch_stays():
    case = _Case()
    other = nn.Parameter(torch.ones(2))
    other.grad = torch.full((2,), 5.0)
    held = other.grad
    case.optimizer.add_param_group({"params": [other]})
    case.backward(1.0)
    assert other.grad is held
    assert held.tolist() == [5.0, 5.0]


def test_static_one_leaves_everything_alone():
    case = _Case(loss_scale=1.0)
    case.weight.grad = held = torch.ones(2)
    case.backward(math.inf)
    assert case.weight.grad is held
    assert not case.gradients.skip.item()
    assert case.scaler.state_dict() == {"loss_scale": 1.0, "unskipped": 0}


def test_static_scale_never_skips():
    case = _Case(loss_scale=8.0)
    case.backward(math.inf)
    case.backward(2.0)
    assert not case.gradients.skip.item()
    assert case.scaler.state_dict() == {"loss_scale": 8.0, "unskipped": 2}


class _Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        raise RuntimeError("broken backward")


def _fail_half_way(first: Tensor, second: Tensor) -> Callable[[], None]:
    """A backward that has given `first` a gradient when it fails on `second`."""

    def backward() -> None:
        first.sum().backward()
        _Fails.apply(second).sum().backward()

    return backward


def test_exception_in_the_backward_restores_the_gradients():
    case = _Case()
    case.backward(3.0)
    held, state = case.weight.grad, case.scaler.state_dict()
    untouched = nn.Parameter(torch.ones(1))
    case.optimizer.add_param_group({"params": [untouched]})
    with pytest.raises(RuntimeError, match="broken backward"):
        scaled_backward(case.scaler, [case.gradients], _fail_half_way(case.weight, untouched))
    assert case.weight.grad is held
    assert held.tolist() == [3.0, 3.0]
    assert untouched.grad is None
    assert case.scaler.state_dict() == state
    case.backward(1.0)
    assert case.gradient == [4.0, 4.0]


def test_sparse_gradients_add_up():
    embedding = nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(embedding.parameters())
    gradients, scaler = ScaledGradients(optimizer, "cpu"), LossScaler(init_scale=8.0, growth_interval=1)
    for index in ([0, 1], [1, 1]):
        loss = embedding(torch.tensor(index)).sum() * scaler.scale.clone()
        scaled_backward(scaler, [gradients], loss.backward)
    assert embedding.weight.grad.is_sparse
    assert embedding.weight.grad.to_dense()[:, 0].tolist() == [1.0, 3.0, 0.0, 0.0]


@pytest.mark.parametrize("sparse_first", [True, False])
def test_sparse_and_dense_gradients_of_one_weight_add_up(sparse_first):
    embedding = nn.Embedding(3, 2, sparse=True)
    gradients = ScaledGradients(torch.optim.SGD(embedding.parameters(), lr=1.0), "cpu")
    scaler = LossScaler(init_scale=8.0)
    for sparse in (sparse_first, not sparse_first):
        rows = embedding(torch.tensor([0])) if sparse else embedding.weight
        scaled_backward(scaler, [gradients], (rows.sum() * 8.0).backward)
    assert embedding.weight.grad.to_dense()[:, 0].tolist() == [2.0, 1.0, 1.0]


def test_overflow_skips_every_optimizer_of_the_backward():
    cases = [_Case(), _Case()]
    scaler = cases[0].scaler
    loss = cases[0].weight.sum() * math.inf + cases[1].weight.sum() * scaler.scale.clone()
    scaled_backward(scaler, [case.gradients for case in cases], loss.backward)
    assert [case.gradients.skip.item() for case in cases] == [1.0, 1.0]
    assert cases[1].gradient == [1.0, 1.0]
    assert scaler.scale.item() == 4.0


def test_optimizer_of_another_loss_is_not_skipped():
    bad, good = _Case(), _Case()
    bad.backward(math.inf)
    good.backward(1.0)
    assert bad.gradients.skip.item()
    assert not good.gradients.skip.item()
    assert good.scaler.scale.item() == 8.0


def test_two_losses_into_one_optimizer_scale_on_their_own():
    case, other = _Case(init_scale=8.0), LossScaler(init_scale=2.0)
    case.backward(3.0)
    scaled_backward(other, [case.gradients], (case.weight * 5.0 * 2.0).sum().backward)
    assert case.gradient == [8.0, 8.0]


def test_weight_shared_by_two_optimizers_is_unscaled_once():
    case = _Case()
    second = ScaledGradients(torch.optim.SGD([case.weight], lr=1.0), "cpu")
    for slope in (3.0, 4.0):
        loss = (case.weight * slope).sum() * case.scaler.scale.clone()
        scaled_backward(case.scaler, [case.gradients, second], loss.backward)
    assert case.gradient == [7.0, 7.0]


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_gradients_with_a_graph_of_their_own_can_be_unscaled():
    case = _Case()
    loss = case.weight.exp().sum() * 8.0
    scaled_backward(case.scaler, [case.gradients], lambda: loss.backward(create_graph=True))
    assert case.gradient == [1.0, 1.0]


def test_scale_can_wait_for_a_later_finish_and_still_sees_the_overflow():
    bad, good = _Case(), _Case()
    for case, slope in ((bad, math.inf), (good, 1.0)):
        case.scaler = bad.scaler
        case.backward(slope, delay=True)
    finish_backward(bad.scaler, [bad.gradients], delay=False, move=False)
    assert bad.scaler.state_dict() == {"loss_scale": 8.0, "unskipped": 0}
    finish_backward(bad.scaler, [good.gradients], delay=False)
    assert bad.scaler.state_dict() == {"loss_scale": 4.0, "unskipped": 0}
    assert [bad.gradients.skip.item(), good.gradients.skip.item()] == [1.0, 1.0]


def test_finish_without_a_backward_unscales_what_is_there():
    case = _Case()
    case.backward(3.0, delay=True)
    finish_backward(case.scaler, [case.gradients], delay=False)
    assert case.gradient == [3.0, 3.0]
    case.backward(1.0)
    assert case.gradient == [4.0, 4.0]
