"""Loss and accuracies over a whole test split, summed on the device, and what was answered to each image."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ampcompare import metrics
from ampcompare.machine.device import start_copy, widest_float
from ampcompare.machine.processes import World
from ampcompare.precision.base import Precision

Batch = tuple[Tensor, Tensor]


class Loader(Protocol):
    """Batches of (images [B, 3, H, W], floating, labels [B] int64) on the device."""

    def __len__(self) -> int: ...
    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]: ...
    @property
    def sample_count(self) -> int: ...
    def positions(self) -> Tensor:
        """Where its images lie in an epoch of all processes, int64 [own images] on the CPU, not shuffled."""


class Evaluation:
    """Evaluates a model on the whole of `loader`, in full precision unless `autocast`.

    BatchNorm uses and keeps its running statistics; the model is left in evaluation mode. `answers` is the
    class given to each image in the last whole evaluation, in the order of the split: uint8 or int32 [N] on
    the CPU, None before the first.
    """

    def __init__(
        self, model: nn.Module, loader: Loader, precision: Precision, *, autocast: bool = False
    ) -> None:
        self.model, self.loader, self.precision, self.autocast = model, loader, precision, autocast
        # The sums of loss, right answers, right among the first five, images. In one place, also for a graph.
        device = precision.device
        self._totals = torch.zeros(4, dtype=widest_float(device), device=device)
        self.answers: Tensor | None = None
        self._answers: list[Tensor] = []  # of the batches so far

    @torch.no_grad()
    def run(
        self, should_stop: Callable[[], bool] = lambda: False, world: World | None = None
    ) -> dict[str, float] | None:
        """`eval/loss`, `eval/accuracy`, `eval/top5_accuracy`; None if `should_stop` says so between batches.

        Waits for the device once.
        """
        world = world or World()
        self.model.eval()
        self._totals.zero_()
        self._answers = []
        for batch in self.batches():
            if should_stop():
                return None
            self._answers.append(self.add(batch))
        totals = world.sum_(self._totals)
        answers, _ = start_copy(self._gathered(world))
        loss, top1, top5 = (totals[:3] / totals[3]).tolist()  # sync: the epoch's result is wanted on the host
        # Queued before that wait, the copy has come (10 kB at 10,000 images). No pinned memory is kept.
        self.answers = answers.cpu().clone()
        return {metrics.EVAL_LOSS: loss, metrics.EVAL_ACCURACY: top1, metrics.EVAL_TOP5: top5}

    def batches(self) -> Iterable[Any]:
        """All of the loader's batches, as `add` takes them."""
        return self.loader.epoch(0)

    def add(self, batch: Any) -> Tensor:
        """Add one batch to the sums: images [B, 3, H, W] and labels [B]. Returns the classes given, [B]."""
        inputs, labels = batch
        with self.precision.forward_context() if self.autocast else nullcontext():
            logits = self.model(inputs)
        logits = logits.float()
        top = logits.topk(min(5, logits.shape[1]), dim=1).indices
        best = top == labels[:, None]
        sums = [F.cross_entropy(logits, labels, reduction="sum"), best[:, 0].sum(), best.sum()]
        self._totals[:3] += torch.stack(sums)
        self._totals[3] += len(labels)
        return top[:, 0].to(torch.uint8 if logits.shape[1] <= 256 else torch.int32)

    def _gathered(self, world: World) -> Tensor:
        """The answers of all processes in the order of the split; all of them come here together."""
        own, self._answers = self._answers, []
        if world.size == 1:
            return torch.cat(own)
        whole = torch.zeros(self.loader.sample_count, dtype=torch.int32, device=self._totals.device)
        if own:  # fewer images than processes: none for some
            # sync: a copy of 8 bytes an image to the device, once an evaluation on several processes
            whole[self.loader.positions().to(whole.device)] = torch.cat(own).int()
        return world.sum_(whole).to(own[0].dtype if own else whole.dtype)


def as_npy(answers: Tensor) -> bytes:
    """Classes as a NumPy file: uint8 for up to 256 of them, else uint16, or uint32 if need be."""
    kinds = (np.uint8,) if answers.dtype == torch.uint8 else (np.uint16, np.uint32)
    array, file = answers.numpy(), io.BytesIO()
    fits = next(kind for kind in kinds if array.max(initial=0) <= np.iinfo(kind).max)
    np.save(file, array.astype(fits), allow_pickle=False)
    return file.getvalue()
