"""What the training loop may rely on under every backend."""

from __future__ import annotations

import copy
import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ampcompare.precision import build_precision
from ampcompare.precision.base import Precision

BACKENDS = {
    "none": ("none", {}),
    "native": ("native", {}),
    "native static": ("native", {"loss_scale": 512.0}),
    "native_bf16": ("native_bf16", {}),
    "apex_o1": ("apex_o1", {}),
    "apex_o1 static": ("apex_o1", {"loss_scale": 512.0}),
    "apex_o1_bf16": ("apex_o1_bf16", {}),
    "apex_o1 static one": ("apex_o1", {"loss_scale": 1.0}),
}
SKIPPING = ["native", "native static", "apex_o1"]


@pytest.fixture(params=BACKENDS)
def precision(request: pytest.FixtureRequest) -> Precision:
    return _build(request.param)


def _build(kind: str) -> Precision:
    name, options = BACKENDS[kind]
    return build_precision(name, **options)


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )


def _batch(seed: int, size: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Four classes that differ in the mean of their channels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (size,), generator=generator)
    means = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [-1, -1, -1]])[labels]
    return torch.randn(size, 3, 6, 6, generator=generator) + means[:, :, None, None], labels


def _train(
    precision: Precision, steps: int, *, accumulate: int = 1, fused: bool = False
) -> tuple[list[float], nn.Module]:
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=fused)
    model, optimizer = precision.prepare(model, optimizer)
    losses = []
    with precision.session():
        for step in range(steps):
            for number in range(accumulate):
                images, labels = _batch(step * accumulate + number)
                with precision.forward_context():
                    loss = F.cross_entropy(model(images), labels) / accumulate
                precision.backward(loss, sync=number == accumulate - 1)
            precision.step(optimizer)
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses, model


@pytest.mark.parametrize("kind", BACKENDS)
def test_loss_on_the_same_twenty_steps_stays_close_to_float(kind):
    expected, _ = _train(Precision(), 20)
    found, _ = _train(_build(kind), 20)
    assert expected[-1] < 0.5 * expected[0]
    assert found == pytest.approx(expected, abs=0.04 if "bf" in kind else 0.01)
    if kind != "none":
        assert found != expected  # something was cast


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", BACKENDS)
def test_micro_batches_train_as_under_float(kind, fused):
    expected, _ = _train(Precision(), 4, accumulate=2)
    found, _ = _train(_build(kind), 4, accumulate=2, fused=fused)
    assert found == pytest.approx(expected, abs=0.03)


def test_clipping_holds_on_true_gradients(precision):
    weight = nn.Parameter(torch.tensor([1.0]))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    precision.prepare(nn.Module(), optimizer)
    precision.backward((weight * 100).sum())
    precision.unscale_(optimizer)
    assert nn.utils.clip_grad_norm_([weight], 0.5).item() == 100.0
    precision.step(optimizer)
    assert weight.item() == pytest.approx(0.5, abs=1e-4)


def test_evaluation_outside_the_context_is_that_of_float(precision):
    model, (images, _) = _net().eval(), _batch(0)
    expected = model(images)
    with precision.session(), torch.no_grad():
        with precision.forward_context():
            model(images)
        assert torch.equal(model(images), expected)


@pytest.mark.parametrize("kind", SKIPPING)
@pytest.mark.parametrize("fused", [False, True])
def test_overflow_leaves_everything_bit_identical(kind, fused):
    precision = _build(kind)
    weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = torch.optim.Adam([weight], lr=0.1, fused=fused)
    precision.prepare(nn.Module(), optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100)

    def step(slope: float) -> None:
        precision.backward((weight * slope).sum())
        precision.step(optimizer)
        optimizer.zero_grad()
        schedule.step()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(math.nan)  # the very first
        assert weight.tolist() == [1.0, -2.0]
        step(1.0)
        before = [weight.detach().clone(), *(v.clone() for v in optimizer.state[weight].values())]
        step(math.inf)
    after = [weight, *optimizer.state[weight].values()]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    assert precision.skipped_steps().item() == 2


def test_state_is_plain_numbers_and_comes_back(precision):
    _train(precision, 2)
    state = precision.state_dict()

    def numbers(value: object) -> bool:
        if isinstance(value, dict):
            return all(isinstance(k, str) and numbers(v) for k, v in value.items())
        return type(value) in (int, float)

    assert numbers(state)
    other = build_precision(precision.declares.label, **vars(precision.options))
    other.load_state_dict(copy.deepcopy(state))
    assert other.state_dict() == state


def test_unknown_backend_names_the_known_ones():
    with pytest.raises(ValueError, match=r"backend='o1': expected one of none, native, native_bf16"):
        build_precision("o1")


def test_an_option_that_no_backend_has_names_those_there_are():
    with pytest.raises(
        ValueError, match=r"^dtype='fp16': no option of a backend; expected one of loss_scale"
    ):
        build_precision("native", dtype="fp16")
