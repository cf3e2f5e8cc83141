"""Loss, accuracy and counters of one log interval: gathered on the device, copied once at its end, read when there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class IntervalValues:
    """What an interval came to, on the host. `nonfinite_steps` are positions (0-based) within the interval.

    `scalars` and `looks` are the tensors that were given at its end: numbers, lists for those with elements.
    """

    loss: float
    accuracy: float
    nonfinite_steps: list[int]
    scalars: dict[str, float]
    looks: list[dict[str, float | list[float]]]


class Interval:
    """The steps since the last row: their losses and right answers as they are, put together once at the end."""

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._correct: list[Tensor] = []
        self._images: list[int] = []

    def __len__(self) -> int:
        return len(self._images)

    def add(self, loss: Tensor, correct: Tensor, images: int) -> None:
        """One step: its mean loss, its number of right answers (both 0-d, on the device, kept) and its images."""
        self._losses.append(loss)
        self._correct.append(correct)
        self._images.append(images)

    def close(self, scalars: Mapping[str, Tensor], looks: Sequence[Mapping[str, Tensor]] = ()) -> Reading:
        """End the interval and begin the next. Queues one copy of everything, and does not wait for it."""
        steps = [torch.stack(self._losses).double(), torch.stack(self._correct).double()]
        images = self._images
        self._losses, self._correct, self._images = [], [], []
        tensors = [*steps, *scalars.values(), *(x for look in looks for x in look.values())]
        return Reading(images, tensors, list(scalars), [list(look) for look in looks])


class Reading:
    """The values of a closed interval on their way to the host. On a GPU by pinned memory, behind the queued steps."""

    def __init__(
        self, images: list[int], tensors: Sequence[Tensor], scalars: list[str], looks: list[list[str]]
    ) -> None:
        self._images, self._scalars, self._looks = images, scalars, looks
        self._shapes = [tensor.shape for tensor in tensors]
        values = torch.cat([tensor.detach().reshape(-1).double() for tensor in tensors])
        self._arrived: torch.cuda.Event | None = None
        if values.device.type == "cuda":
            pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            values = pinned.copy_(values, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()
        self._values = values

    def read(self) -> IntervalValues:
        """The values. Waits for the device up to the interval's end, not for what was queued after it."""
        if self._arrived is not None:
            self._arrived.synchronize()  # sync: the copy of this interval; one interval later it is there
        numbers = iter(self._values.tolist())
        shapes = iter(self._shapes)
        losses, correct = ([next(numbers) for _ in range(next(shapes).numel())] for _ in range(2))
        scalars = {key: _take(numbers, next(shapes)) for key in self._scalars}
        looks = [{key: _take(numbers, next(shapes)) for key in keys} for keys in self._looks]
        images = sum(self._images)
        loss = sum(n * x for n, x in zip(self._images, losses, strict=True)) / images
        bad = [i for i, x in enumerate(losses) if not math.isfinite(x)]
        return IntervalValues(loss, sum(correct) / images, bad, scalars, looks)  # type: ignore[arg-type]


def _take(numbers: object, shape: torch.Size) -> float | list[float]:
    values = [next(numbers) for _ in range(shape.numel())]  # type: ignore[call-overload]
    return values if shape else values[0]
