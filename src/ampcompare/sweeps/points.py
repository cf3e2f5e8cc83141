"""Which runs a sweep is, in their order: the points of its grid in blocks, with its control around them.

Seeds can be added to a sweep that has begun: each group of them comes behind all that was there, with a
control of its own, so that a run keeps its number for good.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from ampcompare.sweeps.file.parameters import Parameter, nested
from ampcompare.sweeps.order import drawn

SEED = "seed"
BACKEND, BASELINE = "backend", "none"
FIRST, LAST = "first", "last"


# Of one seed the runs in blocks, each run as (compared value, combination of the others) by their numbers;
# None where a run that is in other blocks is not in this one (same.py).
Cells = tuple[tuple[tuple[int, int] | None, ...], ...]


@dataclass(frozen=True)
class Point:
    """A run to be made: its parameters as a tree, and where in the sweep it belongs.

    `place` is its number in the sweep, `block` that of its block, None where the order has none. `arm` is
    `first` or `last` for a run of the control: the baseline once more, before or behind the others.
    """

    parameters: dict[str, Any]
    place: int
    block: int | None = None
    arm: str | None = None


@dataclass(frozen=True)
class Axes:
    """The parameters by what a comparison makes of them; all of them are `parameters`, as in the file."""

    parameters: tuple[Parameter, ...]

    @property
    def seed(self) -> Parameter | None:
        """The repetition, if it is varied or named at all."""
        return next((p for p in self.parameters if p.path == (SEED,)), None)

    @property
    def compared(self) -> Parameter | None:
        """The backend where it is varied, else the first that is, None where only the seed is."""
        varied = [p for p in self.parameters if p.grid_size() > 1 and p.path != (SEED,)]
        return next((p for p in varied if p.path == (BACKEND,)), varied[0] if varied else None)

    @property
    def others(self) -> list[Parameter]:
        """What is neither compared nor the seed."""
        return [p for p in self.parameters if p.path != (SEED,) and p != self.compared]

    @property
    def baseline(self) -> int:
        """The number of the compared value that the others are compared with: `none`, or the first."""
        compared = self.compared
        if compared is None or compared.path != (BACKEND,):
            return 0
        values = [compared.grid_value(i) for i in range(compared.grid_size())]
        return values.index(BASELINE) if BASELINE in values else 0


class Points:
    """The runs of a grid by their number.

    `seeds` are those of each group that was added; `control` puts the baseline, once a seed, before and
    behind each group; `is_drawn` orders within blocks, else the file's first parameter changes fastest.
    `cells` are the runs of one seed where not each point is a run of its own.
    """

    def __init__(
        self,
        name: str,
        parameters: Sequence[Parameter],
        seeds: Sequence[Sequence[Any]] = (),
        control: bool = False,
        is_drawn: bool = True,
        cells: Cells | None = None,
    ) -> None:
        self.name, self.control, self.is_drawn, self._cells = name, control, is_drawn, cells
        self.axes = axes = Axes(tuple(parameters))
        own = axes.seed
        self._seeds: list[Parameter | None] = [own]
        self._seeds += [
            Parameter((SEED,), "categorical", {"values": list(group)}) for group in seeds if group
        ]
        self._values = axes.compared.grid_size() if axes.compared else 1
        self._combinations = math.prod(p.grid_size() for p in axes.others)
        self._in_seed = self._values * self._combinations
        if cells is not None:
            self._values, self._combinations = len(cells[0]), len(cells)
            self._block_ends = list(accumulate(sum(cell is not None for cell in block) for block in cells))
            self._in_seed = self._block_ends[-1]
        self._counts = [p.grid_size() if p else 1 for p in self._seeds]
        self._ends = list(accumulate(self._size(count) for count in self._counts))

    @property
    def count(self) -> int:
        """How many runs there are; may be more than a length can be."""
        return self._ends[-1]

    @property
    def count_of_file(self) -> int:
        """How many points the grid has, be they runs of their own or not, without its control."""
        return self.seeds * math.prod(p.grid_size() for p in self.axes.parameters if p.path != (SEED,))

    @property
    def seeds(self) -> int:
        """How many seeds each value has, those that were added included."""
        return sum(self._counts)

    def point(self, index: int) -> Point:
        """The run of a number. Raises IndexError beyond the last."""
        if not 0 <= index < self.count:
            raise IndexError(index)
        group = next(i for i, end in enumerate(self._ends) if index < end)
        count, place = self._counts[group], index - ([0, *self._ends][group])
        around = count if self.control else 0
        if place < around:
            return self._of_control(group, place, index, FIRST)
        place -= around
        grid = count * self._in_seed
        if place >= grid:
            return self._of_control(group, place - grid, index, LAST)
        if not self.is_drawn and group == 0:
            return Point(self._in_file(place if self._cells is None else self._file_places[place]), index)
        seed, place = divmod(place, self._in_seed)
        block = bisect_right(self._block_ends, place) if self._cells else place // self._values
        number = sum(self._counts[:group]) * self._combinations  # blocks of the groups before
        number += seed * self._combinations + block
        order = drawn(self.name, self._values, number, self._combinations)
        if self._cells is None:
            value, combination = order[place % self._values], block
        else:
            runs = [cell for arm in order if (cell := self._cells[block][arm]) is not None]
            value, combination = runs[place - self._block_ends[block] + len(runs)]
        return Point(self._tree(group, value, combination, seed), index, number)

    def _size(self, seeds: int) -> int:
        return seeds * (self._in_seed + (2 if self.control else 0))

    def _of_control(self, group: int, seed: int, index: int, arm: str) -> Point:
        baseline = self.axes.baseline
        runs = [cell for block in self._cells or () for cell in block if cell is not None]
        first = next((cell for cell in runs if cell[0] == baseline), runs[0] if runs else (baseline, 0))
        return Point(self._tree(group, *first, seed), index, arm=arm)

    @cached_property
    def _file_places(self) -> list[int]:
        """The places of the runs in the file's own order, where not each point is a run of its own."""
        runs = {cell for block in self._cells or () for cell in block}
        sizes = {p.key: p.grid_size() for p in self.axes.parameters}
        found = []
        for index in range(math.prod(sizes.values())):
            rest, numbers = index, {}
            for key, size in sizes.items():
                rest, numbers[key] = divmod(rest, size)
            combination, times = 0, 1
            for parameter in self.axes.others:
                combination += times * numbers[parameter.key]
                times *= parameter.grid_size()
            value = numbers[self.axes.compared.key] if self.axes.compared else 0
            found += [index] if (value, combination) in runs else []
        return found

    def _tree(self, group: int, value: int, combination: int, seed: int) -> dict[str, Any]:
        values = {}
        for parameter in self.axes.others:
            combination, number = divmod(combination, parameter.grid_size())
            values[parameter.key] = parameter.grid_value(number)
        if self.axes.compared:
            values[self.axes.compared.key] = self.axes.compared.grid_value(value)
        if own := self._seeds[group]:
            values[own.key] = own.grid_value(seed)
        return nested(self.axes.parameters, [values[p.key] for p in self.axes.parameters])

    def _in_file(self, index: int) -> dict[str, Any]:
        """The parameters of one point where the first parameter of the file changes fastest."""
        values = []
        for parameter in self.axes.parameters:
            index, number = divmod(index, parameter.grid_size())
            values.append(parameter.grid_value(number))
        return nested(self.axes.parameters, values)
