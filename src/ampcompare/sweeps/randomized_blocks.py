"""Orders the runs of a grid in randomised complete blocks, so that drift is not taken for a difference.

A machine drifts: it gets warm, and other jobs come and go. If all runs of one backend came first, drift
would count as a difference between backends. A block holds each compared value once, at one seed and one
combination of all other parameters. The order within a block is random (Fisher 1935, The Design of
Experiments). It is a hash of the sweep's name and the block's number, so that every start has the same order.

Several workers take the runs in turn. If runs last equally long, run p is on GPU p modulo G, and a value that
has the same index in every block would be measured on one GPU only. So an order is changed, by as few swaps
as possible, where it would leave a value on the GPU of all its earlier runs, for G of 2, 3 and 4.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import count, repeat
from typing import Any

GPUS = (2, 3, 4)
MAX_DRAWS = 16  # random orders of a block, until swaps free every value; else the best is used
MAX_VALUES = 250  # a longer list is a range, which keeps its order
MOVED = -1


def orders(name: str, values: int, combinations: int = 1) -> Iterator[Sequence[int]]:
    """Yield the order of the compared values, as their indices, for one block after another, without end.

    The first blocks are the combinations of the other parameters at the first seed, then come those at the
    next seed. Lists of more than MAX_VALUES values stay in their order.

    Args:
        name: The sweep's name.
        values: The number of compared values.
        combinations: The number of combinations of the other parameters at one seed.

    >>> sorted(next(orders("mine", 3)))
    [0, 1, 2]
    """
    return repeat(range(values)) if values > MAX_VALUES else _orders(name, values, combinations)


def _orders(name: str, values: int, combinations: int) -> Iterator[Sequence[int]]:
    # The GPU of all runs of a value so far, by number of GPUs: at one combination, and at all (None).
    only: dict[tuple[int, int | None, int], int] = {}

    def gpus(value: int, position: int, block: int) -> Iterator[tuple[tuple[int, int | None, int], int]]:
        """Yield the GPU of the value, by number of GPUs, for all combinations and for this one."""
        for within in (None,) if combinations == 1 else (None, block % combinations):
            for count_of in GPUS:
                yield (value, within, count_of), (block * values + position) % count_of

    def count_stuck(value: int, position: int, block: int) -> int:
        """Return for how many GPU counts the value would stay on the GPU of all its earlier runs."""
        return sum(only.get(key) == gpu for key, gpu in gpus(value, position, block))

    def draw_order(block: int, draw: int) -> list[int]:
        """Return a random order, improved by swaps after which fewer values stay on the GPU of their runs."""
        order = sorted(range(values), key=lambda value: _hash([name, block, draw, value]))
        for first in range(values):
            for second in range(values) if count_stuck(order[first], first, block) else ():
                x, y = order[first], order[second]
                now = count_stuck(x, first, block) and count_stuck(x, first, block) + count_stuck(
                    y, second, block
                )
                if now and count_stuck(y, first, block) + count_stuck(x, second, block) < now:
                    order[first], order[second] = y, x
        return order

    for block in count():
        best, lowest_cost = [], float("inf")
        for draw in range(MAX_DRAWS):
            order = draw_order(block, draw)
            cost = sum(count_stuck(value, position, block) for position, value in enumerate(order))
            if cost < lowest_cost:
                best, lowest_cost = order, cost
            if not cost:
                break
        for position, value in enumerate(best):
            for key, gpu in gpus(value, position, block):
                only[key] = gpu if only.get(key, gpu) == gpu else MOVED
        yield tuple(best)


def _hash(values_to_hash: list[Any]) -> bytes:
    return hashlib.sha256(json.dumps(values_to_hash).encode()).digest()
