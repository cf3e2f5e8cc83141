"""The order of runs: in blocks, drawn within each, so that neither time nor place passes for a difference.

Machines drift: they get warm, others come and go. Where all runs of one backend come first, drift counts as a
difference between backends. A block holds each compared value once, at one seed and one combination of all
else; the order within it is drawn (randomised complete blocks: Fisher 1935, The Design of Experiments). Each
draw is a hash of a name and of the block's number, so that every worker, every start and every job of an
array gets the same without asking.

Several workers take the runs in turn. Where these last equally long, run p is on GPU p modulo G, and a value
that is always at one place of its block would be measured on one GPU alone. So a draw is changed, by as few
swaps as it takes, where it would leave a value on the GPU it has been on all along, for G of 2, 3 and 4.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import count
from typing import TypeVar

GPUS = (2, 3, 4)
DRAWS = 16  # of a block, where swaps do not free every value; the best is kept
LONGEST = 250  # values; a longer list is a range that is run through as it is
MOVED = -1

Value = TypeVar("Value")
Repeat = TypeVar("Repeat")


def orders(name: str, values: int, combinations: int = 1) -> Iterator[Sequence[int]]:
    """The order of `values` compared values, as their numbers, of one block after the other, without end.

    `name` is the sweep's. Blocks are: first every one of the `combinations` of what else is varied, then all
    of them again with the next seed. Longer lists than LONGEST stay in their order.

    >>> sorted(next(orders("mine", 3)))
    [0, 1, 2]
    """
    drawn = _Drawn(name, values, combinations)
    for block in count():
        yield range(values) if values > LONGEST else drawn.order(block)


def in_blocks(
    name: str, values: Sequence[Value], repeats: Sequence[Repeat]
) -> Iterator[tuple[Value, Repeat]]:
    """Every value with every repeat (a seed), block by block: `repeats` outermost, values as drawn."""
    for order, repeat in zip(orders(name, len(values)), repeats, strict=False):
        for number in order:
            yield values[number], repeat


class _Drawn:
    """The orders of a sweep's blocks. What a block may be depends on those before it."""

    def __init__(self, name: str, values: int, combinations: int) -> None:
        self.name, self.values, self.combinations = name, values, combinations
        # The GPU, of so many, that a value's runs were all on: at one combination, and at any (None).
        self._only: dict[tuple[int, int | None, int], int] = {}

    def order(self, block: int) -> tuple[int, ...]:
        """Of the next block, which has this number."""
        best, least = [], float("inf")
        for draw in range(DRAWS):
            order = self._swapped(self._drawn(block, draw), block)
            cost = sum(self._stays(value, place, block) for place, value in enumerate(order))
            if cost < least:
                best, least = order, cost
            if not cost:
                break
        for place, value in enumerate(best):
            for key, gpu in self._gpus(value, place, block):
                if self._only.setdefault(key, gpu) != gpu:
                    self._only[key] = MOVED
        return tuple(best)

    def _drawn(self, block: int, draw: int) -> list[int]:
        def key(value: int) -> bytes:
            return hashlib.sha256(json.dumps([self.name, block, draw, value]).encode()).digest()

        return sorted(range(self.values), key=key)

    def _swapped(self, order: list[int], block: int) -> list[int]:
        """The order with two values swapped wherever fewer stay on the GPU that all their runs were on."""
        for one in range(self.values):
            for other in range(self.values):
                if not self._stays(order[one], one, block):
                    break
                before = self._stays(order[one], one, block) + self._stays(order[other], other, block)
                after = self._stays(order[other], one, block) + self._stays(order[one], other, block)
                if after < before:
                    order[one], order[other] = order[other], order[one]
        return order

    def _stays(self, value: int, place: int, block: int) -> int:
        """For how many counts of GPUs the value would stay at this place where all its runs were."""
        return sum(self._only.get(key) == gpu for key, gpu in self._gpus(value, place, block))

    def _gpus(self, value: int, place: int, block: int) -> Iterator[tuple[tuple[int, int | None, int], int]]:
        """By count of GPUs the one that the value would be on, of all combinations and of this one."""
        position = block * self.values + place
        for within in (None,) if self.combinations == 1 else (None, block % self.combinations):
            for gpus in GPUS:
                yield (value, within, gpus), position % gpus
