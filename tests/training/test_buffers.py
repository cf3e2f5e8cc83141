"""Buffers that an overflowing forward leaves non-finite: counted, and said once."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from support.hooks import before_forward
from support.training import play

from ampcompare import load_runs, metrics

BAD = (5, 9)  # the steps, of six in an epoch
WORDS = ("backend=native", "precision.init_scale=256", "epochs=2", "log.every=3", "data.train_limit=24")
WORDS += ("batch_size=4", "data.test_limit=8")  # fp16 is slow where it is emulated


@contextmanager
def overflow() -> Iterator[None]:
    """Give some steps images that fp32 can represent and fp16 cannot."""
    steps = itertools.count(1)

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
    assert record.values(metrics.NONFINITE_BUFFERS).tolist() == [0, 4, 4, 4]
    assert len(record.nonfinite(metrics.EVAL_LOSS)) == 2
