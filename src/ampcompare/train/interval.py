"""Loss, accuracy and counters of one log interval: gathered on the device, copied at its end, read later."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ampcompare.machine.device import is_host, start_copy, wait_until, widest_float
from ampcompare.machine.processes import World

# Logits that wait to be counted: 4 MiB in fp32, more steps of the usual kind than an interval has.
MAX_KEPT = 2**20


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
    """The steps since the last row: their losses and outputs as they are, put together once at the end."""

    def __init__(self, world: World | None = None) -> None:
        self._world = world or World()
        self._losses: list[Tensor] = []
        self._images: list[int] = []
        self._outputs: list[tuple[Tensor, Tensor]] = []
        self._kept = 0
        self._resumed: list[Tensor] = []  # the losses of a checkpoint: the mean over processes already
        self._correct: Tensor | None = None  # in outputs that are not kept any more

    def __len__(self) -> int:
        return len(self._images)

    def add(self, loss: Tensor, outputs: Sequence[tuple[Tensor, Tensor]], images: int) -> None:
        """One step: its mean loss (0-d), logits [B, classes] and labels [B] by micro-batch, and its images.

        The tensors are kept as they are; nothing is queued on the device for most steps.
        """
        self._losses.append(loss)
        self._images.append(images)
        self._outputs.extend(outputs)
        for logits, _ in outputs:  # a generator would cost more than its work, at each step
            self._kept += logits.numel()
        if self._kept > MAX_KEPT:
            self._correct = self._count()

    def _count(self) -> Tensor:
        """How many of the kept outputs, and of those before them, were right."""
        if self._outputs:
            logits, labels = (torch.cat(parts) for parts in zip(*self._outputs, strict=True))
            found = (logits.argmax(1) == labels).sum()
            self._correct = found if self._correct is None else self._correct + found
        self._outputs, self._kept = [], 0
        assert self._correct is not None
        return self._correct

    def _mean_losses(self) -> Tensor:
        """Each step's loss over all processes. A mean of three equal numbers may differ in its last bit."""
        ours = [self._world.mean_(torch.stack(self._losses))] if self._losses else []
        return torch.cat([*self._resumed, *ours])

    def state_dict(self) -> dict[str, Any]:
        """The steps so far, of all processes. Waits for the device when it is written out."""
        return {
            "losses": self._mean_losses() if self._images else None,
            "images": list(self._images),
            "correct": self._world.sum_(self._count().clone()) if self._images else None,
        }

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Go on from a state of `state_dict`."""
        losses, correct = state["losses"], state["correct"]
        self._losses, self._resumed = [], [] if losses is None else [losses.to(device)]
        self._images = list(state["images"])
        self._outputs, self._kept = [], 0
        self._correct = None if correct is None else correct.to(device) * self._world.leads  # counted once

    def close(self, scalars: Mapping[str, Tensor], looks: Sequence[Mapping[str, Tensor]] = ()) -> Reading:
        """End the interval and begin the next. Queues one copy of everything, and does not wait for it."""
        correct = self._world.sum_(self._count())
        # On the host a look at each loss costs less than to stack them.
        alone = is_host(correct.device) and self._world.size == 1
        losses = [*self._resumed, *self._losses] if alone else [self._mean_losses()]
        images = self._images
        self._losses, self._resumed, self._correct, self._images = [], [], None, []
        others = [correct, *scalars.values(), *(x for look in looks for x in look.values())]
        return Reading(images, losses, others, list(scalars), [list(look) for look in looks])


class Reading:
    """The values of a closed interval on their way to the host, on a GPU behind the queued steps."""

    def __init__(
        self,
        images: list[int],
        losses: Sequence[Tensor],
        others: Sequence[Tensor],
        scalars: list[str],
        looks: list[list[str]],
    ) -> None:
        self._images, self._scalars, self._looks = images, scalars, looks
        self._shapes = [tensor.shape for tensor in others]
        self._numbers: list[list[float]] | None = None  # on the host they are there
        self._arrived: torch.cuda.Event | None = None
        device = others[0].device
        if is_host(device):  # a look at each costs less than the launches that would put them together
            self._numbers = [[n for x in losses for n in _numbers(x)], *map(_numbers, others)]
            return
        values = [x.detach().reshape(-1).to(widest_float(device)) for x in (*losses, *others)]
        self._values, self._arrived = start_copy(torch.cat(values))

    def read(self) -> IntervalValues:
        """The values. Waits for the device up to the interval's end, not for what was queued after it."""
        if self._arrived is not None:
            wait_until(self._arrived)  # sync: the copy of this interval; one interval later it is there
        losses, (correct,), *rest = self._copied() if self._numbers is None else self._numbers
        values = iter(zip(rest, self._shapes[1:], strict=True))
        scalars = {key: next(values)[0][0] for key in self._scalars}
        looks = [{key: _plain(*next(values)) for key in keys} for keys in self._looks]
        images = sum(self._images)
        loss = sum(n * x for n, x in zip(self._images, losses, strict=True)) / images
        bad = [i for i, x in enumerate(losses) if not math.isfinite(x)]
        return IntervalValues(loss, correct / images, bad, scalars, looks)

    def _copied(self) -> list[list[float]]:
        """The numbers of each tensor, from the one copy of all, which has come."""
        numbers = iter(self._values.tolist())
        sizes = [len(self._images), *(shape.numel() for shape in self._shapes)]
        return [[next(numbers) for _ in range(size)] for size in sizes]


def _numbers(tensor: Tensor) -> list[float]:
    """The elements of a tensor on the host, all as floats as a copy in float64 would have them."""
    if tensor.ndim == 0:
        return [float(tensor.item())]
    return [float(x) for x in tensor.flatten().tolist()]


def _plain(values: list[float], shape: torch.Size) -> float | list[float]:
    return values if shape else values[0]
