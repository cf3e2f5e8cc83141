"""The training step of one process among several: DDP, each loss weighed by its share of the batch."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ampcompare.machine.device import is_cuda
from ampcompare.machine.world import World
from ampcompare.train.trainer import StepResult, Trainer


def wrap(model: nn.Module) -> nn.Module:
    """The model in DDP, which adds up the gradients of all processes while they are computed.

    Buffers are not sent at each step: BatchNorm's statistics count in evaluations alone (`share_buffers`).
    """
    device = next(model.parameters()).device
    known = inspect.signature(DistributedDataParallel).parameters
    # Renamed between PyTorch 2.11 and 2.14.
    quiet = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    ids = [device] if is_cuda(device) else None
    return DistributedDataParallel(model, device_ids=ids, **{quiet: False})  # type: ignore[arg-type]


class ShardedTrainer(Trainer):
    """A Trainer for this process's share of each batch.

    Gradients are reduced before they are unscaled and looked at, so that inf and nan of one process are in
    all of them, and all skip the same steps.
    """

    def __init__(self, *args: Any, world: World, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.world, self.processes = world, world.size

    def feed(self, loader: Any, epoch: int, start: int = 0) -> Iterator[Any]:
        """Batches with the number of samples that they have in all processes."""
        return loader.shares(epoch, start)

    def step(self, batches: Sequence[Any], *, diagnose: bool = False) -> StepResult:
        self._images = sum(count for _, count in batches)
        return super().step([batch for batch, _ in batches], diagnose=diagnose)

    def count_images(self, batches: Sequence[Any]) -> int:
        return self._images

    def sum_(self, count: Tensor) -> Tensor:
        return self.world.sum_(count)

    def reducing(self, last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last else self.model.no_sync()  # type: ignore[operator]
