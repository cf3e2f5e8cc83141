"""What is seen of activations, and that looking changes nothing."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support.properties import backends
from support.training import batch, trainer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ampcompare.models import tiny
from ampcompare.precision import REGISTRY
from ampcompare.training.diagnostics.activations import ActivationRecorder

CPU = torch.device("cpu")
LARGEST, SUBNORMAL = "activation/max_abs", "activation/subnormal_fraction"


class Given(nn.Module):
    """Returns what it was made with."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def forward(self, x: Tensor) -> Any:
        return self.output


def seen(output: Any) -> dict[str, float]:
    """Return what is seen of a network whose only module gives this output."""
    model = nn.Sequential(Given(output))
    look = ActivationRecorder(model, CPU)
    with look.recording():
        model(torch.ones(2))
    return {key: value.item() for key, value in look.take().items()}


def test_the_fraction_counts_elements_that_are_subnormal_in_fp16():
    exponents = torch.arange(-40.0, 5.0, 0.25)
    x = torch.cat([2.0**exponents, -(2.0**exponents), torch.zeros(7)])
    found = seen(x)
    nonzero = (x != 0).sum()
    assert found[SUBNORMAL] == pytest.approx(((x.abs() < 2.0**-14) & (x != 0)).sum() / nonzero)
    assert found[LARGEST] == x.abs().max()


@dataclass
class Out:
    logits: Tensor
    ids: Tensor


@pytest.mark.parametrize(
    "pack",
    [
        lambda a, b: (a, [b]),
        lambda a, b: {"x": a, "y": {"z": b}, "n": None},
        lambda a, b: Out(a, (torch.arange(3), b)),
    ],
)
def test_floating_outputs_in_tuples_dicts_and_dataclasses_are_recorded(pack: Any):
    found = seen(pack(torch.tensor([-5.0]), torch.tensor([3.0, 2.0**-20, 0.0])))
    assert (found[LARGEST], found[SUBNORMAL]) == (5, pytest.approx(1 / 3))


@pytest.mark.parametrize("order", ["channels last", "every second"])
def test_a_large_tensor_is_sampled_evenly_in_any_layout(order: str):
    x = torch.ones(16, 16, 96, 96)  # 2.4 million elements: 36 times as many as are looked at
    x[:, :4] = 2.0**-20  # a quarter of the channels
    if order == "channels last":
        x = x.contiguous(memory_format=torch.channels_last)
    if order == "every second":
        x = x[..., ::2]
    assert seen(x)[SUBNORMAL] == pytest.approx(0.25, abs=0.02)


def trained(model: nn.Module, backend: str, diagnose: bool) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    torch.manual_seed(1)
    made = trainer(backend, model, init_scale=256.0)
    found = [made.step([batch(8)] * 2, diagnose=diagnose and i == 1).diagnostics for i in range(3)]
    assert not any(module._forward_hooks for module in model.modules())
    return [*model.state_dict().values(), torch.rand(1)], found


@backends(REGISTRY)
def test_recording_changes_no_number_under_any_backend(backend: str):
    ends, looks = [], []
    for diagnose in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(tiny(4), nn.Dropout(0.1))
        end, found = trained(model, backend, diagnose)
        ends.append(end)
        looks.append([any(key.startswith("activation/") for key in each) for each in found])
    assert all(a.equal(b) for a, b in zip(*ends, strict=True))
    assert looks == [[False] * 3, [False, True, False]]


class Growing(nn.Linear):
    """Gives more in each call."""

    factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        self.factor *= 1000
        return super().forward(x) * self.factor


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = Growing(192, 4)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.body, x.flatten(1).requires_grad_(), use_reentrant=True)


def test_a_forward_that_the_backward_computes_again_is_recorded_once():
    model = Recomputed()
    found = trainer("none", model).step([batch(8)], diagnose=True).diagnostics
    assert model.body.factor == 1e6  # called twice
    assert 100 < found[f"{LARGEST}/body"] < 1e5
