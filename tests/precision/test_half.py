"""Pure fp16: everything in half precision, and why it needs loss scaling."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ampcompare.precision import build_precision

HALF, FLOAT = torch.float16, torch.float32


def small_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def prepared(model: nn.Module, optimizer: str = "SGD", **options):
    precision = build_precision("fp16", **options)
    kinds = {
        "SGD": {"lr": 0.1, "momentum": 0.9},
        "Adam": {"lr": 0.01, "eps": 1e-4},
        "AdamW": {"lr": 0.01, "eps": 1e-4},
    }
    made = getattr(torch.optim, optimizer)(model.parameters(), **kinds[optimizer])
    return precision, *precision.prepare(model, made)


def test_weights_batchnorm_and_buffers_are_half() -> None:
    _, model, _ = prepared(small_net())
    floating = [t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]
    assert {t.dtype for t in floating} == {HALF}
    assert model[1].num_batches_tracked.dtype is torch.int64


@pytest.mark.parametrize(
    ("backend", "keep", "norms"),
    [
        *[("fp16", None, HALF), ("fp16", False, HALF), ("fp16", True, FLOAT)],
        *[("apex_o2", None, FLOAT), ("apex_o2", False, HALF), ("apex_o2", True, FLOAT)],
    ],
)
def test_batchnorm_is_kept_in_fp32_where_it_is_asked_for_or_the_level_s_own(
    backend: str, keep, norms
) -> None:
    model = small_net()
    precision = build_precision(backend, keep_batchnorm_fp32=keep, loss_scale=1024.0)
    model, optimizer = precision.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    assert {model[0].weight.dtype, model[3].bias.dtype} == {HALF}
    assert {t.dtype for t in (*model[1].parameters(), model[1].running_mean, model[1].running_var)} == {norms}
    before = model[1].weight.detach().clone()
    for _ in range(2):
        precision.backward(model(torch.randn(8, 4)).square().mean())
        precision.step(optimizer)
        optimizer.zero_grad()
    assert not torch.equal(model[1].weight, before)
    assert model[1].weight.dtype is norms


def test_inputs_are_cast_down_and_outputs_up() -> None:
    _, model, _ = prepared(small_net())
    seen = []
    model[0].register_forward_pre_hook(lambda _, args: seen.append(args[0].dtype))
    assert model(torch.randn(3, 4)).dtype is FLOAT
    assert seen == [HALF]


def test_gradients_are_half_and_true_after_backward() -> None:
    precision, model, _ = prepared(nn.Linear(1, 1, bias=False), loss_scale=1024.0)
    precision.backward(model(torch.full((1, 1), 3.0)).sum())
    assert model.weight.grad.dtype is HALF
    assert model.weight.grad.item() == 3


def test_optimizer_updates_the_model_s_own_parameters() -> None:
    _, model, optimizer = prepared(small_net())
    ours = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert ours == [id(p) for p in model.parameters()]


def gradient_of_a_tiny_loss(loss_scale) -> float:
    precision, model, _ = prepared(nn.Linear(1, 1, bias=False), loss_scale=loss_scale)
    precision.backward(model(torch.full((1, 1), 256.0)).sum() * 2.0**-26)
    return model.weight.grad.item()


def test_tiny_gradient_vanishes_without_loss_scaling() -> None:
    assert gradient_of_a_tiny_loss(1.0) == 0


@pytest.mark.parametrize("loss_scale", [1024.0, "dynamic"])
def test_tiny_gradient_survives_with_loss_scaling(loss_scale) -> None:
    assert gradient_of_a_tiny_loss(loss_scale) == 2.0**-18


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW"])
@pytest.mark.parametrize("loss_scale", ["dynamic", 128.0, 1.0])
def test_training_lowers_the_loss(optimizer, loss_scale) -> None:
    precision, model, optimizer = prepared(small_net(), optimizer, loss_scale=loss_scale)
    x = torch.randn(32, 4)
    y = (x[:, 0] > 0).long()
    losses = []
    for _ in range(30):
        with precision.forward_context():
            loss = nn.functional.cross_entropy(model(x), y)
        precision.backward(loss)
        precision.step(optimizer)
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    assert all(p.dtype is HALF and p.isfinite().all() for p in model.parameters())


def test_update_below_half_a_unit_in_the_last_place_is_lost() -> None:
    precision, model, _ = prepared(nn.Linear(1, 1, bias=False), loss_scale=1.0)
    with torch.no_grad():
        model.weight.fill_(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    precision.backward(model(torch.ones(1, 1)).sum())
    optimizer.step()
    assert model.weight.item() == 1
