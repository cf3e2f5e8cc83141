"""Loss and accuracies over a whole test split, summed on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ampcompare import metrics
from ampcompare.machine.device import widest_float
from ampcompare.machine.processes import World
from ampcompare.precision.base import Precision

Batch = tuple[Tensor, Tensor]


class Loader(Protocol):
    """Batches of (images [B, 3, H, W], floating, labels [B] int64) on the device."""

    def __len__(self) -> int: ...
    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]: ...


class Evaluation:
    """Evaluates a model on the whole of `loader`, in full precision unless `autocast`.

    BatchNorm uses and keeps its running statistics; the model is left in evaluation mode.
    """

    def __init__(
        self, model: nn.Module, loader: Loader, precision: Precision, *, autocast: bool = False
    ) -> None:
        self.model, self.loader, self.precision, self.autocast = model, loader, precision, autocast
        # The sums of loss, right answers, right among the first five, images. In one place, also for a graph.
        device = precision.device
        self._totals = torch.zeros(4, dtype=widest_float(device), device=device)

    @torch.no_grad()
    def run(
        self, should_stop: Callable[[], bool] = lambda: False, world: World | None = None
    ) -> dict[str, float] | None:
        """`eval/loss`, `eval/accuracy`, `eval/top5_accuracy`; None if `should_stop` says so between batches.

        Waits for the device once.
        """
        self.model.eval()
        self._totals.zero_()
        for batch in self.batches():
            if should_stop():
                return None
            self.add(batch)
        totals = (world or World()).sum_(self._totals)
        loss, top1, top5 = (totals[:3] / totals[3]).tolist()  # sync: the epoch's result is wanted on the host
        return {metrics.EVAL_LOSS: loss, metrics.EVAL_ACCURACY: top1, metrics.EVAL_TOP5: top5}

    def batches(self) -> Iterable[Any]:
        """All of the loader's batches, as `add` takes them."""
        return self.loader.epoch(0)

    def add(self, batch: Any) -> None:
        """Add one batch to the sums: images [B, 3, H, W] and labels [B]."""
        inputs, labels = batch
        with self.precision.forward_context() if self.autocast else nullcontext():
            logits = self.model(inputs)
        logits = logits.float()
        best = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
        sums = [F.cross_entropy(logits, labels, reduction="sum"), best[:, 0].sum(), best.sum()]
        self._totals[:3] += torch.stack(sums)
        self._totals[3] += len(labels)
