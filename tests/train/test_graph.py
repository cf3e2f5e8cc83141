"""The step as one CUDA graph. On a CPU the capture is played: recorded, then run again at each launch."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from support.properties import backends
from support.training import fit, timeless
from torch.optim.lr_scheduler import LRScheduler

from ampcompare import experiment
from ampcompare.config.load import load_config
from ampcompare.errors import UserError
from ampcompare.precision import REGISTRY
from ampcompare.program.stopping import StopRequest
from ampcompare.train.meter import Result
from ampcompare.train.step import Trainer

CPU = torch.device("cpu")


@backends(REGISTRY)
def test_a_graphed_run_logs_what_an_eager_one_does(
    quick_overrides: tuple[str, ...], backend: str, played: list[str]
):
    words = (
        f"backend={backend}",
        "precision.init_scale=65536",
        "training.clip_norm=5",
        "diagnostics.every=7",
    )
    eager, eager_rows = fit(quick_overrides, *words)
    eager.run()
    graphed, graphed_rows = fit(quick_overrides, *words, "execution=cuda_graph")
    graphed.run()
    assert timeless(graphed_rows) == timeless(eager_rows)
    # Three epochs of six batches, the last of each short. Not launched: three at first, short ones, looks (7,
    # 14).
    assert played.count("capture") == 1
    assert played.count("launch") == 18 - 3 - 3 - 2


def test_the_learning_rate_of_a_launch_is_a_tensor_that_follows_the_schedule(
    quick_overrides: tuple[str, ...], played: list[str], monkeypatch: pytest.MonkeyPatch
):
    seen: list[Any] = []
    compute = Trainer.compute

    def look(self: Trainer, *args: Any, **kwargs: Any) -> Result:
        rate = self.optimizer.param_groups[0]["lr"]
        seen.append((rate.clone() if isinstance(rate, torch.Tensor) else rate, len(played) and played[-1]))
        return compute(self, *args, **kwargs)

    monkeypatch.setattr(Trainer, "compute", look)
    made, rows = fit(quick_overrides, "execution=cuda_graph", "diagnostics.every=null")
    made.run()
    assert [float(rate) for rate, _ in seen] == pytest.approx(
        [r["train/learning_rate"] for r in rows if "train/loss" in r]
    )
    kinds = [type(rate) for rate, _ in seen]
    assert kinds[:3] == [float] * 3
    assert kinds[3:5] == [torch.Tensor] * 2
    assert len({float(rate) for rate, _ in seen}) == 18
    assert isinstance(made.trainer.scheduler, LRScheduler)


def test_the_capture_is_no_step_to_time(quick_overrides: tuple[str, ...], played: list[str]):
    made, _ = fit(quick_overrides, "execution=cuda_graph", "diagnostics.every=null")
    loader = made.train
    results = [made.trainer.step([plan]) for plan in loader.plans(0)]  # type: ignore[attr-defined]
    assert [r.cold for r in results] == [False, False, False, True, False, False]
    assert [r.samples for r in results] == [8] * 5 + [5]


def test_the_short_batch_is_never_the_one_captured(quick_overrides: tuple[str, ...], played: list[str]):
    # Four batches an epoch: the fourth step, after the warm-up, has the short one.
    made, _ = fit(
        quick_overrides, "execution=cuda_graph", "diagnostics.every=null", "data.train_limit=25", "epochs=2"
    )
    made.run()
    assert made.trainer._plan.shape == (4, 8)  # type: ignore[attr-defined]
    assert played.count("launch") == 3


class Stream:
    device = torch.device("cpu")

    def wait_stream(self, other: Stream) -> None: ...


class Cuda:
    """The parts of torch.cuda that a capture uses: which stream is the current one, and what it was at each
    step.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.default = self.now = Stream()
        self.end: BaseException | None = None  # what the end of a capture raises
        self.captured_on: list[Stream] = []
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: self)
        for name in ("graph", "stream"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.now)
        monkeypatch.setattr(torch.cuda, "device", nullcontext)

    def replay(self) -> None: ...

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.now = self.now, stream
        try:
            yield
        finally:
            self.now = before

    @contextmanager
    def graph(self, made: Any, stream: Stream) -> Iterator[None]:
        """As PyTorch's: an end that fails leaves the stream of the capture as the current one."""
        before, self.now = self.now, stream
        self.captured_on.append(stream)
        try:
            yield
        finally:
            if self.end:
                raise self.end
            self.now = before


@pytest.mark.parametrize("hidden", [False, True])
def test_no_memory_left_within_a_capture_is_one_line_and_leaves_nothing_behind(
    quick_overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, hidden: bool
):
    made, rows = fit(quick_overrides, "execution=cuda_graph", "diagnostics.every=null")
    cuda = Cuda(monkeypatch)
    trainer: Any = made.trainer
    trainer._stream = Stream()
    cuda.end = (
        RuntimeError("CUDA error: operation failed due to a previous error during capture")
        if hidden
        else None
    )
    compute = Trainer.compute

    def fails(self: Trainer, *args: Any, **kwargs: Any) -> Result:
        if cuda.captured_on:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return compute(self, *args, **kwargs)

    monkeypatch.setattr(Trainer, "compute", fails)
    said: list[str] = []
    assert experiment._train(made, StopRequest(), said.append) == 1
    assert len(said) == 1
    assert "error: out of memory on cpu with batch_size=8; try a smaller batch_size" in said[0]
    assert [row["global_step"] for row in rows if "train/loss" in row] == [1, 2, 3]
    assert cuda.now is cuda.default
    assert gc.isenabled()
    assert isinstance(made.trainer.optimizer.param_groups[0]["lr"], float)


def test_a_graph_needs_a_fused_optimizer():
    with pytest.raises(UserError, match=r"execution='cuda_graph': needs optimizer.fused=true"):
        load_config(None, ["execution=cuda_graph", "optimizer.fused=false"])
