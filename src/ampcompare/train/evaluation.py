"""Loss and metrics over a whole test split, summed on the device, and what was answered to each sample."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from itertools import zip_longest
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ampcompare.data.batch import Batch
from ampcompare.machine.device import start_copy, widest_float
from ampcompare.machine.world import World
from ampcompare.precision.base import Precision
from ampcompare.train.errors import note_batch
from ampcompare.train.scores import call
from ampcompare.train.task import Task


class Loader(Protocol):
    """Batches of inputs and targets on the device."""

    def __len__(self) -> int: ...
    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]: ...
    @property
    def sample_count(self) -> int: ...
    def positions(self) -> Tensor:
        """Where its samples lie in an epoch of all processes, int64 [own] on the CPU, not shuffled."""


class Evaluation:
    """Evaluates a model on the whole of `loader`, in full precision unless `autocast`, by the scores of
    `task`.

    BatchNorm uses and keeps its running statistics; the model is left in evaluation mode. `answers` is the
    class given to each sample in the last whole evaluation, in the order of the split: uint8 or int32 [N] on
    the CPU, None before the first, and where there are no such classes.
    """

    def __init__(
        self,
        model: nn.Module,
        loader: Loader,
        precision: Precision,
        *,
        task: Task,
        autocast: bool = False,
    ) -> None:
        self.model, self.loader, self.precision, self.autocast = model, loader, precision, autocast
        self.task = task
        # The sum of each score and how many values it is of. In one place, also for a graph.
        device, count = precision.device, len(self.task.scores)
        self._totals = torch.zeros((count, 2), dtype=widest_float(device), device=device)
        self.answers: Tensor | None = None
        self._answers: list[Tensor] = []  # of the batches so far

    @torch.no_grad()
    def run(
        self, should_stop: Callable[[], bool] = lambda: False, world: World | None = None
    ) -> dict[str, float] | None:
        """Every score under its key (`eval/loss`, ...); None if `should_stop` says so between batches.

        Of several processes each asks `should_stop` equally often, so that it may ask them all: one whose
        share has fewer batches goes on asking when it has none left. But for that it waits for the device
        once. Raises TrainingError for a metric's values of a wrong shape.
        """
        world = world or World()
        self.model.eval()
        self._totals.zero_()
        self._answers = []
        for _, batch in zip_longest(range(len(self.loader)), self.batches()):
            if should_stop():
                return None
            if batch is not None and (given := self.add(batch)) is not None:
                self._answers.append(given)
        totals = world.sum_(self._totals)
        answers = start_copy(self._gathered(world))[0] if self.task.answers else None
        values = (totals[:, 0] / totals[:, 1]).tolist()  # sync: the epoch's result is wanted on the host
        # Queued before that wait, the copy has come (10 kB at 10,000 images). No pinned memory is kept.
        self.answers = None if answers is None else answers.cpu().clone()
        return {score.key: value for score, value in zip(self.task.scores, values, strict=True)}

    def batches(self) -> Iterable[Any]:
        """All of the loader's batches, as `add` takes them."""
        return self.loader.epoch(0)

    def add(self, batch: Any) -> Tensor | None:
        """Add one batch to the sums. Returns the classes given, [B], of a task that has some."""
        inputs, targets = batch
        try:
            with self.precision.forward_context() if self.autocast else nullcontext():
                outputs = call(self.model, inputs)
            sums, given = self.task.look(outputs, targets)
        except Exception as problem:
            note_batch(problem, batch)
            raise
        self._totals += sums
        return given

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
