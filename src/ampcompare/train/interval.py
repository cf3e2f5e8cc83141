"""Loss, accuracy and counters of one log interval: gathered on the device, copied at its end, read later."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ampcompare.machine.device import is_host, start_copy, wait_until, widest_float
from ampcompare.machine.world import World
from ampcompare.train.scores import IGNORED

# Logits that wait to be counted: 4 MiB in fp32, more steps of the usual kind than an interval has.
MAX_KEPT = 2**20


@dataclass(frozen=True)
class IntervalValues:
    """What an interval came to, on the host. `nonfinite_steps` are positions (0-based) within the interval.

    `scalars` and `looks` are the tensors that were given at its end: numbers, lists for those with elements.
    `loss` is None where no step gave one, `accuracy` where nothing was classified.
    """

    loss: float | None
    accuracy: float | None
    nonfinite_steps: list[int]
    scalars: dict[str, float]
    looks: list[dict[str, float | list[float]]]


class Interval:
    """The steps since the last row: their losses and outputs as they are, put together once at the end."""

    def __init__(self, world: World | None = None) -> None:
        self._world = world or World()
        self._losses: list[Any] = []
        self._images: list[int] = []
        self._outputs: list[tuple[Tensor, Tensor]] = []
        self._kept = 0
        self._resumed: list[Tensor] = []  # the losses of a checkpoint: the mean over processes already
        # Of outputs that are not kept any more, how many were right and how many there were, [2].
        self._counts: Tensor | None = None

    def __len__(self) -> int:
        return len(self._images)

    @property
    def images(self) -> int:
        """Of all its steps."""
        return sum(self._images)

    def add(self, loss: Tensor | float | None, outputs: Sequence[tuple[Tensor, Tensor]], images: int) -> None:
        """One step: its mean loss (0-d, on the host also a number; None in all steps or in none), its images,
        and by micro-batch logits [N, C] and labels [N] of what it classified, if it did.

        The tensors are kept as they are; nothing is queued on the device for most steps.
        """
        if loss is not None:
            self._losses.append(loss)
        self._images.append(images)
        self._outputs.extend(outputs)
        for logits, _ in outputs:  # a generator would cost more than its work, at each step
            self._kept += logits.numel()
        if self._kept > MAX_KEPT:
            self._counts = self._count()

    def _count(self) -> Tensor | None:
        """How many of the outputs so far were right, and of how many, [2]; None where none is a class."""
        if self._outputs:
            pairs = zip(*self._outputs, strict=True)
            logits, labels = (torch.cat(parts) if parts[1:] else parts[0] for parts in pairs)
            found = torch.stack([(logits.argmax(1) == labels).sum(), (labels != IGNORED).sum()])
            self._counts = found if self._counts is None else self._counts + found
        self._outputs, self._kept = [], 0
        return self._counts

    def _mean_losses(self) -> Tensor:
        """Each step's loss over all processes. A mean of three equal numbers may differ in its last bit."""
        ours = [self._world.mean_(torch.stack(self._losses))] if self._losses else []
        return torch.cat([*self._resumed, *ours])

    def state_dict(self) -> dict[str, Any]:
        """The steps so far, of all processes. Waits for the device when it is written out."""
        counts = self._count()
        correct, counted = (None, None) if counts is None else self._world.sum_(counts.clone())
        return {
            "losses": self._mean_losses() if self._images else None,
            "images": list(self._images),
            "correct": correct,
            "counted": counted,
        }

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Go on from a state of `state_dict`."""
        losses, correct = state["losses"], state["correct"]
        self._losses, self._resumed = [], [] if losses is None else [losses.to(device)]
        self._images = list(state["images"])
        self._outputs, self._kept = [], 0
        self._counts = None
        if correct is not None:
            # A checkpoint from before anything but images was classified has their number alone.
            counted = state.get("counted", torch.tensor(sum(self._images)))
            counts = torch.stack([correct.to(device), counted.to(device)])
            self._counts = counts * self._world.leads  # counted once

    def close(self, scalars: Mapping[str, Tensor], looks: Sequence[Mapping[str, Tensor]] = ()) -> Reading:
        """End the interval and begin the next. Queues one copy of everything, and does not wait for it."""
        counts = self._count()
        summed = [] if counts is None else [self._world.sum_(counts)]
        others = [*scalars.values(), *(x for look in looks for x in look.values())]
        losses = [*self._resumed, *self._losses]
        # On the host a look at each loss costs less than to stack them.
        if losses and not (_on_host([*losses, *others]) and self._world.size == 1):
            losses = [self._mean_losses()]
        images = self._images
        self._losses, self._resumed, self._counts, self._images = [], [], None, []
        return Reading(images, losses, summed, others, list(scalars), [list(look) for look in looks])


class Reading:
    """The values of a closed interval on their way to the host, on a GPU behind the queued steps."""

    def __init__(
        self,
        images: list[int],
        losses: Sequence[Any],
        counts: Sequence[Tensor],
        others: Sequence[Tensor],
        scalars: list[str],
        looks: list[list[str]],
    ) -> None:
        self._images, self._scalars, self._looks = images, scalars, looks
        self._classifies = bool(counts)
        others = [*counts, *others]
        self._shapes = [tensor.shape for tensor in others]
        self._numbers: list[list[float]] | None = None  # on the host they are there
        self._arrived: torch.cuda.Event | None = None
        # On the host a look at each costs less than the launches that would put them together.
        if _on_host([*losses, *others]):
            self._numbers = [[n for x in losses for n in _numbers(x)], *map(_numbers, others)]
            return
        self._losses = sum(loss.numel() for loss in losses)
        values = [x.detach().reshape(-1).to(widest_float(x.device)) for x in (*losses, *others)]
        self._values, self._arrived = start_copy(torch.cat(values))

    def read(self) -> IntervalValues:
        """The values. Waits for the device up to the interval's end, not for what was queued after it."""
        if self._arrived is not None:
            wait_until(self._arrived)  # sync: the copy of this interval; one interval later it is there
        losses, *rest = self._copied() if self._numbers is None else self._numbers
        values = iter(zip(rest, self._shapes, strict=True))
        correct, counted = next(values)[0] if self._classifies else (0.0, 0.0)
        scalars = {key: next(values)[0][0] for key in self._scalars}
        looks = [{key: _plain(*next(values)) for key in keys} for keys in self._looks]
        images = sum(self._images)
        loss = sum(n * x for n, x in zip(self._images, losses, strict=True)) / images if losses else None
        bad = [i for i, x in enumerate(losses) if not math.isfinite(x)]
        accuracy = correct / counted if counted else None
        return IntervalValues(loss, accuracy, bad, scalars, looks)

    def _copied(self) -> list[list[float]]:
        """The numbers of each tensor, from the one copy of all, which has come."""
        numbers = iter(self._values.tolist())
        sizes = [self._losses, *(shape.numel() for shape in self._shapes)]
        return [[next(numbers) for _ in range(size)] for size in sizes]


def _on_host(values: Sequence[Tensor | float]) -> bool:
    """Whether all values are there: numbers, and tensors, which lie on one device."""
    return all(is_host(value.device) for value in values[-1:] if isinstance(value, Tensor))


def _numbers(tensor: Tensor | float) -> list[float]:
    """The elements of a tensor on the host, as floats as a copy in float64 would have them; a number."""
    if not isinstance(tensor, Tensor):
        return [tensor]
    if tensor.ndim == 0:
        return [float(tensor.item())]
    return [float(x) for x in tensor.flatten().tolist()]


def _plain(values: list[float], shape: torch.Size) -> float | list[float]:
    return values if shape else values[0]
