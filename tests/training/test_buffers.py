"""Buffers that an overflowing forward leaves non-finite: counted, and said once."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from support.hooks import before_forward
from support.training import batch, play, trainer
from torch import Tensor

from ampcompare import load_runs, metrics
from ampcompare.models import tiny
from ampcompare.training.overflow_detection import BufferMonitor

COUNT = metrics.NONFINITE_BUFFERS


def overflowing(seed: int = 1) -> tuple[Tensor, Tensor]:
    """Images that fp32 holds and fp16 does not."""
    images, labels = batch(seed=seed)
    return images * 1e30, labels


@pytest.mark.parametrize("backend", ["native", "apex_o1", "apex_o2"])
def test_an_overflowing_forward_spoils_every_evaluation(backend: str):
    torch.manual_seed(0)
    made = trainer(backend, tiny(4), init_scale=256.0)
    buffers = BufferMonitor(made.model)
    for batches in ([batch()], [batch(seed=4), overflowing()], [batch(seed=2)]):
        made.step(batches)
    assert buffers.count() == 4  # running statistics
    with torch.no_grad():
        assert not made.model.eval()(batch(seed=3)[0]).isfinite().any()  # it does not heal


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


def test_a_run_warns_once_about_spoiled_buffers(tmp_path: Path):
    with overflow():
        said = play(*WORDS, f"output_dir={tmp_path}")
    (record,) = load_runs([tmp_path])
    assert said.count("of the model's buffers") == said.count("step 5: 4 of the model's buffers") == 1
    assert said.count("was skipped") == 1
    assert "step 5 was skipped: 8 is the last module whose gradient is inf or nan; the loss" in said
    assert record.summary[metrics.NONFINITE_AT] == 5
    assert record.summary[metrics.NONFINITE_MODULES] == "8 (2)"
    named = record.history[record.history[metrics.NONFINITE_MODULE].notna()]
    assert named[metrics.STEP].tolist() == [*BAD]
    assert record.values(COUNT).tolist() == [0, 4, 4, 4]
    assert len(record.nonfinite(metrics.EVAL_LOSS)) == 2
