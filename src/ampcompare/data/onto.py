"""Batches on their way from the host to the device, behind the steps."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ampcompare.data.batch import Batch, each, in_layout, tensors


class Onto:
    """Puts batches on a device. With `pinned` the copies are queued on a stream of their own.

    The host makes the next batch while the device works on the steps that are queued, and the copy runs
    beside them: the step's stream waits for the copy, the host for nothing.
    """

    def __init__(self, device: torch.device, pinned: bool, channels_last: bool) -> None:
        self.device, self.channels_last = device, channels_last
        self.stream = torch.cuda.Stream(device) if pinned else None

    def all(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches on the device, each copied when it is asked for: behind the step that is under way."""
        for batch in batches:
            yield self.one(batch)

    def one(self, batch: Batch) -> Batch:
        if self.stream is None:
            return self._moved(batch)
        here = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self.stream):
            moved = self._moved(batch)
        here.wait_stream(self.stream)  # of the device's two queues: the host goes on
        for field in moved:
            for tensor in tensors(field):
                tensor.record_stream(here)  # its memory is not given to the next copy before the step is done
        return moved

    def _moved(self, batch: Batch) -> Batch:
        return each(batch[0], self._move), each(batch[1], self._move)

    def _move(self, tensor: Tensor) -> Tensor:
        if self.stream is not None and tensor.get_device() < 0 and not tensor.is_pinned():
            tensor = tensor.pin_memory()  # of a loader that does not pin: a copy on the host
        # Pinned memory that is let go is given out again only when its copy is done.
        moved = tensor.to(self.device, non_blocking=self.stream is not None)
        return in_layout(moved, self.channels_last)
