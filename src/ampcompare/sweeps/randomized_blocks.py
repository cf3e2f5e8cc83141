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

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import count, repeat
from typing import Any, TypeVar

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
    return repeat(range(values)) if values > LONGEST else _orders(name, values, combinations)


def _orders(name: str, values: int, combinations: int) -> Iterator[Sequence[int]]:
    # The GPU, of so many, that a value's runs were all on: at one combination, and at any (None).
    only: dict[tuple[int, int | None, int], int] = {}

    def gpus(value: int, place: int, block: int) -> Iterator[tuple[tuple[int, int | None, int], int]]:
        """By count of GPUs the one that the value would be on, of all combinations and of this one."""
        for within in (None,) if combinations == 1 else (None, block % combinations):
            for count_of in GPUS:
                yield (value, within, count_of), (block * values + place) % count_of

    def stays(value: int, place: int, block: int) -> int:
        """For how many counts of GPUs the value would stay at this place where all its runs were."""
        return sum(only.get(key) == gpu for key, gpu in gpus(value, place, block))

    def drawn(block: int, draw: int) -> list[int]:
        """An order, with two values swapped wherever fewer stay on the GPU that all their runs were on."""
        order = sorted(range(values), key=lambda value: _hash([name, block, draw, value]))
        for one in range(values):
            for other in range(values) if stays(order[one], one, block) else ():
                x, y = order[one], order[other]
                now = stays(x, one, block) and stays(x, one, block) + stays(y, other, block)
                if now and stays(y, one, block) + stays(x, other, block) < now:
                    order[one], order[other] = y, x
        return order

    for block in count():
        best, least = [], float("inf")
        for draw in range(DRAWS):
            order = drawn(block, draw)
            cost = sum(stays(value, place, block) for place, value in enumerate(order))
            if cost < least:
                best, least = order, cost
            if not cost:
                break
        for place, value in enumerate(best):
            for key, gpu in gpus(value, place, block):
                only[key] = gpu if only.get(key, gpu) == gpu else MOVED
        yield tuple(best)


def _hash(of: list[Any]) -> bytes:
    return hashlib.sha256(json.dumps(of).encode()).digest()


def in_blocks(
    name: str, values: Sequence[Value], repeats: Sequence[Repeat]
) -> Iterator[tuple[Value, Repeat]]:
    """Every value with every repeat (a seed), block by block: `repeats` outermost, values as drawn."""
    for order, at in zip(orders(name, len(values)), repeats, strict=False):
        for number in order:
            yield values[number], at
