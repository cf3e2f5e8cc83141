"""Loss and metrics over a whole test split, summed on the device."""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import zip_longest
from operator import itemgetter
from typing import Any

import torch
from torch import nn

from ampcompare import metrics
from ampcompare.data.batch import Batch, note_batch
from ampcompare.precision.base import Precision
from ampcompare.system.device import widest_float
from ampcompare.system.distributed import DistributedContext
from ampcompare.training.losses_and_metrics import call_network, count_classes
from ampcompare.training.task import Task, no_classes
from ampcompare.training.timing import Row


class Evaluation:
    """Evaluates a model on a whole loader, in full precision unless `autocast` is set.

    BatchNorm uses its running statistics and leaves them unchanged. The model stays in evaluation mode.

    Args:
        loader: The loader of the test split.
        task: Its scores are computed.
        autocast: Whether to evaluate in the backend's forward context.

    Attributes:
        commonest_class: The fraction of the commonest class among the targets, 0..1, after the first
            evaluation. None if the targets are no classes.
    """

    def __init__(
        self,
        model: nn.Module,
        loader: Any,
        precision: Precision,
        *,
        task: Task,
        autocast: bool = False,
    ) -> None:
        self.model = model
        self.loader = loader
        self.precision = precision
        self.task = task
        self.autocast = autocast
        self.commonest_class: float | None = None
        self._counts_classes = task.classify is not no_classes  # only in the first evaluation
        self._class_counts: torch.Tensor | None = None
        # The sum of each score and its number of values, in one tensor that a CUDA graph can fill.
        device = precision.device
        self._totals = torch.zeros((len(task.scores), 2), dtype=widest_float(device), device=device)

    @torch.no_grad()
    def run(
        self, should_stop: Callable[[], bool] = lambda: False, world: DistributedContext | None = None
    ) -> dict[str, float] | None:
        """Return every score by metric key (`eval/loss`, ...), or None if the evaluation was stopped.

        Waits for the device once, apart from what `should_stop` does. With several processes, the first
        evaluation waits once more, for the number of classes.

        Args:
            should_stop: Asked between batches. Each process asks equally often, also after its own last
                batch, so `should_stop` may have collectives.

        Raises:
            TrainingError: A metric returned values of a wrong shape.
        """
        world = world or DistributedContext()
        self.model.eval()
        self._totals.zero_()
        self._class_counts = None
        with self.precision.training_context() if self.autocast else nullcontext():
            for _, batch in zip_longest(range(len(self.loader)), self.loader.epoch(0)):
                if should_stop():
                    return None
                if batch is not None:
                    self.add(batch)
        values = self._read_values(world)
        return {score.key: value for score, value in zip(self.task.scores, values, strict=True)}

    def _read_values(self, world: DistributedContext) -> list[float]:
        """Return the mean of each score, and note the commonest class in the first evaluation."""
        totals = world.sum_(self._totals)
        means = totals[:, 0] / totals[:, 1]
        fraction = _commonest_fraction(self._class_counts, world) if self._counts_classes else None
        self._counts_classes = False
        if fraction is None:
            return means.tolist()  # sync: the epoch's result is wanted on the host
        # sync: the same, with the fraction in the same transfer
        *values, commonest = torch.cat([means, fraction.to(means.dtype).reshape(1)]).tolist()
        self.commonest_class = None if math.isnan(commonest) else commonest
        return values

    def add(self, batch: Batch) -> None:
        """Add one batch to the sums."""
        inputs, targets = batch
        try:
            with self.precision.forward_context() if self.autocast else nullcontext():
                outputs = call_network(self.model, inputs)
            sums = self.task.sum_scores(outputs, targets)
            counts = count_classes(outputs, targets) if self._counts_classes else None
        except Exception as problem:
            note_batch(problem, batch)
            raise
        self._totals += sums
        if counts is not None:
            self._class_counts = counts if self._class_counts is None else self._class_counts + counts


def summarize_best(evals: Sequence[tuple[float | None, float]], key: str, better: str | None) -> Row:
    """Return the best value of the compared metric and its epoch, by summary key.

    Args:
        evals: Of each evaluation the epochs until then, None if they are not known, and the value.
        key: The key of the metric.
        better: Which values are better, `metrics.LOWER` or `metrics.HIGHER`.

    Returns:
        Nothing without an evaluation. Of equal values, the first.
    """
    if not evals:
        return {}
    choose = min if better == metrics.LOWER else max
    epoch, value = choose(evals, key=itemgetter(1))
    best: Row = {metrics.make_best_key(key): value}
    return best if epoch is None else best | {metrics.BEST_EPOCH: epoch}


def _commonest_fraction(counts: torch.Tensor | None, world: DistributedContext) -> torch.Tensor | None:
    """Return the fraction of the commonest class over all processes, on the device; None without a class.

    It is NaN if no target counts.

    Args:
        counts: The number of targets of each class in this process; None if it has no class.
    """
    if world.size == 1:
        if counts is None or not len(counts):
            return None
        return counts.max() / counts.sum()
    device = world.device if counts is None else counts.device
    sizes = torch.zeros(world.size, dtype=torch.int64, device=device)
    if counts is not None:
        sizes[world.rank] = len(counts)
    size = int(world.sum_(sizes).max())  # sync: once in a run
    if not size:
        return None
    padded = torch.zeros(size, dtype=widest_float(device), device=device)
    if counts is not None:
        padded[: len(counts)] = counts
    padded = world.sum_(padded)
    return padded.max() / padded.sum()
