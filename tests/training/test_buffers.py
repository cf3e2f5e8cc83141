"""Buffers that an overflowing forward leaves non-finite: found, said once, put back where that is wanted."""

import copy
import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from support.hooks import before_forward
from support.logs import logged
from support.training import Killed, batch, fit, play, timeless, trainer
from torch import Tensor, nn

from ampcompare import load_runs, metrics
from ampcompare.config.schema import TrainingConfig
from ampcompare.models import tiny
from ampcompare.precision import REGISTRY
from ampcompare.training.overflow_detection import BufferMonitor
from ampcompare.training.trainer import Trainer

SKIPS = [name for name, backend in REGISTRY.items() if backend.scales and backend.dtype == "float16"]
COUNT = metrics.NONFINITE_BUFFERS


def made(backend: str, how: str = "warn") -> Trainer:
    torch.manual_seed(0)
    return trainer(backend, tiny(4), TrainingConfig(on_nonfinite_buffers=how), init_scale=256.0)


def overflowing(seed: int = 1) -> tuple[Tensor, Tensor]:
    """Images that fp32 holds and fp16 does not."""
    images, labels = batch(seed=seed)
    return images * 1e30, labels


def floating(model: nn.Module) -> list[Tensor]:
    return [b.clone() for b in model.buffers() if b.is_floating_point()]


def same(one: Trainer, other: Trainer) -> bool:
    return all(map(torch.equal, floating(one.model), floating(other.model)))


def evaluated(one: Trainer) -> Tensor:
    """Return the outputs for normal images, computed with the running statistics."""
    with torch.no_grad():
        return one.model.eval()(batch(seed=3)[0])


@pytest.mark.parametrize("backend", SKIPS)
def test_an_overflowing_forward_spoils_every_evaluation_unless_buffers_are_put_back(backend: str):
    said, restored, without = made(backend), made(backend, "restore"), made(backend)
    for batches in ([batch()], [batch(seed=4), overflowing()], [batch(seed=2)]):
        said.step(batches)
        restored.step(batches)
        if len(batches) == 1:
            without.step(batches)
    assert said.observer.buffers.count() == len(floating(said.model)) > 0
    assert not evaluated(said).isfinite().any()  # it does not heal
    assert restored.observer.buffers.count() == len(floating(restored.model))
    assert same(restored, without)
    assert evaluated(restored).isfinite().all()


def test_a_skip_by_the_backward_alone_leaves_the_statistics_of_its_forward():
    one, other = made("native", "restore"), made("native")
    for each in (one, other):
        each.precision.scaler._scale.fill_(2.0**100)
        each.step([batch()])
        assert each.precision.skipped_steps() == 1
    assert same(one, other)
    assert not same(one, made("native"))
    assert one.observer.buffers.count() == 0


class Odd(nn.Module):
    """A mask of -inf, a counter, empty, missing and expanded buffers, three types."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([0.0, -math.inf]))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("empty", torch.zeros(0))
        self.register_buffer("missing", None)
        self.register_buffer("narrow", torch.ones(2, 3, dtype=torch.float16).t())
        self.register_buffer("scalar", torch.ones(()))
        self.register_buffer("eighth", torch.ones(2).to(torch.float8_e4m3fn))
        self.register_buffer("expanded", torch.ones(1).expand(3))


@pytest.mark.parametrize("name", ["narrow", "scalar"])
def test_buffers_of_any_kind_are_restored_in_their_current_tensors(name: str):
    model = Odd()
    watched = BufferMonitor(model, restores=False)
    restored = BufferMonitor(model, restores=True)
    model.missing = torch.ones(2)  # as caches are made by a first forward
    setattr(model, name, getattr(model, name) + 1)  # as careless forwards do: another tensor
    kept = restored.save()
    spoiled = getattr(model, name)
    assert watched.count() == 0  # the mask was so from the start
    model.count += 1
    spoiled[(0,) * spoiled.dim()] = math.inf  # its first element
    assert watched.count() == 1
    restored.restore(kept, torch.tensor(True))
    assert (spoiled == 2).all()
    assert model.mask.tolist() == [0, -math.inf]
    assert (model.count, restored.count()) == (1, 1)


def test_a_buffer_that_was_not_finite_before_a_step_does_not_count_as_spoiled():
    model = Odd()
    buffers = BufferMonitor(model, restores=True)

    def step(*, skipped: bool, **values: float) -> int:
        kept = buffers.save()
        for name, value in values.items():
            getattr(model, name).fill_(value)
        buffers.restore(kept, torch.tensor(skipped))
        return int(buffers.count())

    assert step(skipped=False, narrow=math.inf) == 0  # as a running_var in fp16 overflows without a skip
    assert step(skipped=True) == 0
    assert step(skipped=True, scalar=math.nan) == 1
    assert step(skipped=False, narrow=1.0) == 1  # sound again, so it can be spoiled again
    assert step(skipped=True, narrow=math.inf, scalar=5.0) == 2
    assert (model.narrow == 1).all()
    assert model.scalar == 1


# A whole training of which some forwards overflow.

BAD = (5, 9)  # the steps, of six in an epoch
WORDS = ("backend=native", "precision.init_scale=256", "epochs=2", "log.every=3", "data.train_limit=24")
WORDS += ("batch_size=4", "data.test_limit=8")  # fp16 is slow where it is emulated


@contextmanager
def overflow(first: int = 1) -> Iterator[None]:
    """Give some steps images that fp32 can represent and fp16 cannot.

    Args:
        first: The number of the first step.
    """
    steps = itertools.count(first)

    def spoil(network: torch.nn.Module, images: torch.Tensor) -> torch.Tensor | None:
        is_bad = network.training and next(steps) in BAD
        return images * 1e30 if is_bad else None

    with before_forward(spoil):
        yield


@pytest.mark.parametrize(("how", "counts", "bad"), [("warn", [0, 4, 4, 4], 2), ("restore", [0, 4, 8, 8], 0)])
def test_a_run_warns_once_about_spoiled_buffers_and_restores_them_if_asked(
    tmp_path: Path, how: str, counts: list[int], bad: int
):
    with overflow():
        said = play(*WORDS, f"training.on_nonfinite_buffers={how}", f"output_dir={tmp_path}")
    (record,) = load_runs([tmp_path])
    assert said.count("of the model's buffers") == said.count("step 5: 4 of the model's buffers") == 1
    assert ("were restored to their values before the step" in said) is (how == "restore")
    assert said.count("was skipped") == 1
    assert "step 5 was skipped: 8 is the last module whose gradient is inf or nan; the loss" in said
    assert record.summary[metrics.NONFINITE_AT] == 5
    assert record.summary[metrics.NONFINITE_MODULES] == "8 (2)"
    named = record.history[record.history[metrics.NONFINITE_MODULE].notna()]
    assert named[metrics.STEP].tolist() == [*BAD]
    assert record.values(COUNT).tolist() == counts
    assert len(record.nonfinite(metrics.EVAL_LOSS)) == bad


@pytest.mark.parametrize("how", ["warn", "restore"])
def test_a_resumed_run_counts_and_warns_like_an_uninterrupted_one(how: str):
    words, at = (*WORDS, f"training.on_nonfinite_buffers={how}"), 6  # behind the first

    def die(step: int) -> None:
        if step == at:
            raise Killed

    with logged() as whole_notes, overflow():
        one, whole = fit(*words)
        one.run()
    with logged() as notes:
        first, rows = fit(*words, on_step=die)
        with overflow(), pytest.raises(Killed):
            first.run()
        second, later = fit(*words)
        second.resume(copy.deepcopy(first.checkpoint()))
        with overflow(first=at + 1):
            assert second.run()[metrics.NONFINITE_AT] == BAD[0]
    assert str(timeless(rows + later)) == str(timeless(whole))
    assert notes == whole_notes
