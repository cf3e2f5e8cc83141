"""Buffers that an overflowing forward leaves non-finite: found, said once, put back where that is wanted."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.training import batch, trainer
from torch import Tensor, nn

from ampcompare.config.schema import TrainingConfig
from ampcompare.models import tiny
from ampcompare.precision import REGISTRY
from ampcompare.train.step import Trainer
from ampcompare.train.watch import Buffers

CPU = torch.device("cpu")
RESTORE = TrainingConfig(on_nonfinite_buffers="restore")
SKIPS = [name for name, backend in REGISTRY.items() if backend.scales and backend.dtype == "float16"]


def made(backend: str, config: TrainingConfig | None = None, **options: Any) -> Trainer:
    torch.manual_seed(0)
    return trainer(backend, tiny(4), config, init_scale=256.0, **options)


def overflowing(seed: int = 1) -> tuple[Tensor, Tensor]:
    """Images that fp32 holds and fp16 does not."""
    images, labels = batch(seed=seed)
    return images * 1e30, labels


def floating(model: nn.Module) -> list[Tensor]:
    return [b.clone() for b in model.buffers() if b.is_floating_point()]


def same(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def evaluated(one: Trainer) -> Tensor:
    """What the model says of sound images, by its running statistics."""
    with torch.no_grad():
        return one.model.eval()(batch(seed=3)[0])


@pytest.mark.parametrize("backend", ["native", "apex_o2"])
def test_an_overflowing_forward_spoils_every_evaluation_after_it(backend: str):
    one = made(backend)
    one.step([batch()])
    assert one.buffers.count() == 0
    one.step([overflowing()])
    assert one.precision.skipped_steps() == 1
    for seed in range(3):  # it does not heal
        one.step([batch(seed=seed)])
    assert one.buffers.count() == len(floating(one.model)) > 0
    assert not evaluated(one).isfinite().any()


@pytest.mark.parametrize("backend", SKIPS)
def test_restored_buffers_are_those_of_a_run_without_the_step(backend: str):
    one, other = made(backend, RESTORE), made(backend)
    for step, images in enumerate([batch(), overflowing(), batch(seed=2)]):
        one.step([images])
        if step != 1:
            other.step([images])
    assert same(floating(one.model), floating(other.model))
    assert one.buffers.count() == len(floating(one.model))
    assert evaluated(one).isfinite().all()


def test_a_skip_by_the_backward_alone_leaves_the_statistics_of_its_forward():
    one, other = made("native", RESTORE), made("native")
    for each in (one, other):
        each.precision.scaler._scale.fill_(2.0**100)
        each.step([batch()])
        assert each.precision.skipped_steps() == 1
    assert same(floating(one.model), floating(other.model))
    assert not same(floating(one.model), floating(made("native").model))
    assert one.buffers.count() == 0


def test_all_micro_batches_of_a_skipped_step_are_taken_back():
    one = made("native", RESTORE)
    before = floating(one.model)
    one.step([batch(), overflowing(), batch(seed=2)])
    assert same(floating(one.model), before)


def test_each_time_counts():
    one = made("native", RESTORE)
    for images in (batch(), overflowing(), batch(), overflowing(), overflowing()):
        one.step([images])
    assert one.buffers.count() == 3 * len(floating(one.model))


def test_a_step_that_was_not_skipped_is_left_alone():
    buffers = Buffers(tiny(4), restores=True)
    (first, *_) = buffers._floating()
    kept = buffers.keep()
    first.fill_(math.nan)
    buffers.put_back(kept, torch.tensor(False))
    assert first.isnan().all()
    assert buffers.count() == 0


class Odd(nn.Module):
    """A mask of -inf, a counter, an empty and a missing buffer, two types."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([0.0, -math.inf]))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("empty", torch.zeros(0))
        self.register_buffer("missing", None)
        self.register_buffer("narrow", torch.ones(2, 3, dtype=torch.float16).t())
        self.register_buffer("scalar", torch.ones(()))


def test_buffers_that_come_later_or_cannot_be_looked_at_are_left_alone():
    model = Odd()
    model.register_buffer("eighth", torch.ones(2).to(torch.float8_e4m3fn))
    model.register_buffer("expanded", torch.ones(1).expand(3))
    say, restore = Buffers(model, restores=False), Buffers(model, restores=True)
    model.missing = torch.ones(2)  # as caches are made by a first forward
    kept = restore.keep()
    model.scalar.fill_(math.nan)
    assert say.count() == 1
    restore.put_back(kept, torch.tensor(True))
    assert model.scalar == 1
    model.scalar = None
    assert say.count() == 0


@pytest.mark.parametrize("name", ["narrow", "scalar"])
def test_buffers_of_any_kind_are_found_and_put_back_by_their_present_tensors(name: str):
    model = Odd()
    say, restore = Buffers(model, restores=False), Buffers(model, restores=True)
    setattr(model, name, getattr(model, name) + 1)  # as careless forwards do: another tensor
    kept = restore.keep()
    spoiled = getattr(model, name)
    assert say.count() == 0  # the mask was so from the start
    model.count += 1
    spoiled[(0,) * spoiled.dim()] = math.inf  # its first element
    assert say.count() == 1
    restore.put_back(kept, torch.tensor(True))
    assert (spoiled == 2).all()
    assert model.mask.tolist() == [0, -math.inf]
    assert (model.count, restore.count()) == (1, 1)


def test_what_was_not_finite_before_a_step_is_not_what_the_step_spoiled():
    model = Odd()
    buffers = Buffers(model, restores=True)

    def step(*, skipped: bool, **values: float) -> int:
        kept = buffers.keep()
        for name, value in values.items():
            getattr(model, name).fill_(value)
        buffers.put_back(kept, torch.tensor(skipped))
        return int(buffers.count())

    assert step(skipped=False, narrow=math.inf) == 0  # as a running_var in fp16 overflows without a skip
    assert step(skipped=True) == 0
    assert step(skipped=True, scalar=math.nan) == 1
    assert step(skipped=True) == 1
    assert step(skipped=False, narrow=1.0) == 1  # sound again, so it can be spoiled again
    assert step(skipped=True, narrow=math.inf, scalar=5.0) == 2
    assert (model.narrow == 1).all()
    assert model.scalar == 1
