"""Which runs a sweep is, in their order: the points of its grid in blocks, with its control around them.

Seeds can be added to a sweep that has begun: each group of them comes behind all that was there, with a
control of its own, so that a run keeps its number for good.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from ampcompare.sweeps.distributions import Parameter, nested
from ampcompare.sweeps.order import orders

SEED = "seed"
BACKEND, BASELINE = "backend", "none"
FIRST, LAST = "first", "last"
MOST_POINTS = 100_000

Cell = Mapping[str, int]  # a run but for its seed: the number of each parameter's value, by its key


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
class Cells:
    """Which points are runs of their own, where not every one is (same.py): the combinations of values of
    `keys`, by number, that are `kept`. What is in `folded` does not set blocks apart.
    """

    keys: tuple[str, ...]
    kept: frozenset[tuple[int, ...]]
    folded: frozenset[str]


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
        values = compared.values()
        return values.index(BASELINE) if BASELINE in values else 0


def count_of(parameters: Sequence[Parameter]) -> int:
    """How many combinations of their values there are."""
    return math.prod(p.grid_size() for p in parameters)


def points_of(
    name: str,
    axes: Axes,
    *,
    added: Sequence[Sequence[Any]] = (),
    control: bool = False,
    run_cap: int | None = None,
    cells: Cells | None = None,
    in_blocks: bool = True,
) -> list[Point]:
    """Every run of a grid: `added` are further groups of seeds, in the order of their coming. A `run_cap`
    leaves out the last points of the grid, not its control. Without blocks they are in the file's order.
    """
    found: list[Point] = []
    blocks = _blocks(axes, cells)
    drawn = enumerate(orders(name, len(blocks[0]), len(blocks)))
    runs = [cell for block in blocks for cell in block if cell is not None]
    compared = axes.compared.key if axes.compared else ""
    baseline = next((cell for cell in runs if cell.get(compared, 0) == axes.baseline), runs[0])
    keys = [p.key for p in reversed(axes.parameters)]
    for seed in [axes.seed, *(Parameter((SEED,), "categorical", {"values": s}) for s in added if s)]:
        seeds = range(seed.grid_size() if seed else 1)
        grid: list[tuple[int, Cell, int | None]]
        if in_blocks:
            grid = [
                (n, cell, number)
                for (n, block), (number, order) in zip(product(seeds, blocks), drawn, strict=False)
                for arm in order
                if (cell := block[arm]) is not None
            ]
        else:
            grid = [(n, cell, None) for n in seeds for cell in runs]
            grid.sort(key=lambda run: [run[0] if key == SEED else run[1][key] for key in keys])
        around = seeds if control else ()
        room = None if run_cap is None else run_cap - len(found) - 2 * len(around)
        if room is not None and room <= 0:
            break
        found += [_point(axes, seed, baseline, n, arm=FIRST) for n in around]
        found += [_point(axes, seed, cell, n, block=number) for n, cell, number in grid[:room]]
        found += [_point(axes, seed, baseline, n, arm=LAST) for n in around]
    return [replace(point, place=place) for place, point in enumerate(found)]


def _blocks(axes: Axes, kept: Cells | None) -> list[list[Cell | None]]:
    """The runs of one seed in blocks; None where a run that is in other blocks is not in this one."""
    others, compared = axes.others, axes.compared
    folded = kept.folded if kept else frozenset()
    runs: dict[tuple[int, ...], dict[tuple[int, ...], Cell]] = {}
    for cell in _combinations(others):
        block = runs.setdefault(tuple(n for key, n in cell.items() if key not in folded), {})
        inner = tuple(n for key, n in cell.items() if key in folded)
        for value in range(compared.grid_size() if compared else 1):
            whole = {**cell, compared.key: value} if compared else cell
            if kept is None or tuple(whole[key] for key in kept.keys) in kept.kept:
                block[(*inner, value)] = whole
    arms = sorted({arm for block in runs.values() for arm in block})
    return [[block.get(arm) for arm in arms] for block in runs.values()]


def _combinations(parameters: Sequence[Parameter]) -> Iterator[Cell]:
    """Every combination of the parameters' values, the first parameter changing fastest."""
    for numbers in product(*(range(p.grid_size()) for p in reversed(parameters))):
        yield dict(zip((p.key for p in parameters), reversed(numbers), strict=True))


def _point(
    axes: Axes,
    seed: Parameter | None,
    cell: Cell,
    number: int,
    block: int | None = None,
    arm: str | None = None,
) -> Point:
    values = [
        seed.grid_value(number) if seed and p.path == (SEED,) else p.grid_value(cell[p.key])
        for p in axes.parameters
    ]
    return Point(nested(axes.parameters, values), 0, block, arm)
