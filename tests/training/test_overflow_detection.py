"""Which module is named after a skipped step, and where the host does not wait to know of the skip."""

import math
from typing import Any

import pytest
import torch
from support.properties import backends
from support.training import batch, trainer
from torch import Tensor, nn

from ampcompare.config.schema import TrainingConfig
from ampcompare.precision import REGISTRY
from ampcompare.training.interval import StepResult

SKIPS = [name for name, backend in REGISTRY.items() if backend.scales]


class Spoiling(nn.Module):
    """The identity, whose gradient is inf while it is armed."""

    armed = False

    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        if self.armed:
            y.register_hook(lambda gradient: gradient * math.inf)
        return y


class Net(nn.Module):
    """The gradient becomes infinite behind `middle`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.middle = nn.Linear(192, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.spoil, self.head, self.unused = Spoiling(), nn.Linear(8, 4), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.spoil(self.middle(self.stem(x.flatten(1)))))


def named(result: StepResult) -> str | None:
    if result.overflow is None or result.overflow.first < 0:
        return None
    return result.overflow.modules[result.overflow.first]


@pytest.mark.parametrize(
    ("backend", "clip"),
    [
        ("native", {}),
        ("apex_o1", {"clip_norm": 1.0}),
        ("apex_o2", {"clip_value": 0.5}),
        ("fp16", {"accumulate": 2}),
    ],
)
def test_the_module_in_front_of_the_overflow_is_named(backend: str, clip: dict[str, Any]):
    made = trainer(backend, Net(), TrainingConfig(**clip), init_scale=256.0)
    batches = [batch(8)] * clip.get("accumulate", 1)
    found = []
    for made.model.spoil.armed in (False, True, False):
        found.append(named(made.step(batches)))
    assert found == [None, "middle.0", None]  # not the head behind it, nor what comes before
    assert made.precision.skipped_steps() == 1


@backends(SKIPS)
def test_steps_after_a_skip_are_checked_on_a_device_that_nobody_waits_for(backend: str):
    """As on a GPU, where the host knows of a skip when its gradients are gone."""
    made = trainer(backend, Net(), init_scale=256.0)
    made.overflows.on_host = False
    found = []
    for step in range(6):
        made.model.spoil.armed = step in (0, 3)
        result = made.step([batch(8)], diagnose=step == 5)
        found.append((result.overflow is not None, named(result)))
        if step == 1:
            made.overflows.watch()
    assert found == [(False, None)] * 2 + [(True, name) for name in (None, "middle.0", None, None)]
