"""Which runs a sweep is, in their order: the points of its grid in blocks, with its control around them.

Seeds can be added to a sweep that has begun: each group of them comes behind all that was there, with a
control of its own, so that a run keeps its number for good.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    """Which points are runs of their own, where not every one is (check.py): the combinations of values of
    `keys`, by number, that are `kept`. A block has all of them.
    """

    keys: tuple[str, ...]
    kept: frozenset[tuple[int, ...]]


class Axes:
    """The parameters by what a comparison makes of them; all of them are `parameters`, as in the file.

    `seed` is the repetition, if it is varied or named at all; `compared` the backend where it is varied, else
    the first that is, None where only the seed is; `others` are neither. `baseline` is the number of the
    compared value that the others are compared with: `none`, or the first.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.parameters = tuple(parameters)
        self.seed = next((p for p in parameters if p.path == (SEED,)), None)
        varied = [p for p in parameters if p.path != (SEED,) and p.grid_size() > 1]
        backend = [p for p in varied if p.path == (BACKEND,)]
        self.compared = next(iter([*backend, *varied]), None)
        self.others = [p for p in parameters if p not in (self.seed, self.compared)]
        values = self.compared.values() if self.compared and backend else []
        self.baseline = values.index(BASELINE) if BASELINE in values else 0


def count_of(parameters: Sequence[Parameter]) -> int:
    """How many combinations of their values there are."""
    return math.prod(p.grid_size() for p in parameters)


def points_of(
    name: str,
    axes: Axes,
    cells: Cells | None,
    added: Sequence[Sequence[Any]],
    cap: int | None,
    *,
    has_control: bool,
    in_blocks: bool,
) -> list[Point]:
    """Every run of a grid: first the file's seeds, then the groups that were added, in the order of their
    coming. A `cap` leaves out the last points of the grid, not its control. Hyperband compares runs in
    passing: its are in the file's order.
    """
    found: list[Point] = []
    blocks = _blocks(axes, cells)
    drawn = enumerate(orders(name, len(blocks[0]), len(blocks)))
    runs = [cell for block in blocks for cell in block]
    compared = axes.compared.key if axes.compared else ""
    baseline = next((cell for cell in runs if cell.get(compared, 0) == axes.baseline), runs[0])
    keys = [p.key for p in reversed(axes.parameters)]

    def add(seed: Any, cell: Cell, block: int | None = None, arm: str | None = None) -> None:
        values = [seed if p == axes.seed else p.grid_value(cell[p.key]) for p in axes.parameters]
        found.append(Point(nested(axes.parameters, values), len(found), block, arm))

    for seeds in [axes.seed.values() if axes.seed else [None], *added]:
        grid: list[tuple[int, Cell, int | None]] = []
        if in_blocks:
            for (n, block), (number, order) in zip(product(range(len(seeds)), blocks), drawn, strict=False):
                grid += [(n, block[arm], number) for arm in order]
        else:
            grid = [(n, cell, None) for n in range(len(seeds)) for cell in runs]
            grid.sort(key=lambda run: [run[0] if key == SEED else run[1][key] for key in keys])
        around = seeds if has_control else ()
        room = None if cap is None else cap - len(found) - 2 * len(around)
        if room is not None and room <= 0:
            break
        for seed in around:
            add(seed, baseline, arm=FIRST)
        for n, cell, at in grid[:room]:
            add(seeds[n], cell, at)
        for seed in around:
            add(seed, baseline, arm=LAST)
    return found


def _blocks(axes: Axes, cells: Cells | None) -> list[list[Cell]]:
    """The runs of one seed in blocks, one for each combination of what is neither compared nor in `cells`,
    the first of that changing fastest.
    """

    def numbered(parameters: Sequence[Parameter], *, is_reversed: bool = False) -> Iterator[Cell]:
        ordered = parameters[::-1] if is_reversed else parameters
        for numbers in product(*(range(p.grid_size()) for p in ordered)):
            yield dict(zip((p.key for p in ordered), numbers, strict=True))

    keys = cells.keys if cells else ()
    apart = [p for p in axes.others if p.key not in keys]
    within = [p for p in axes.others if p.key in keys] + ([axes.compared] if axes.compared else [])
    blocks: list[list[Cell]] = [
        [{**at, **cell} for cell in numbered(within)] for at in numbered(apart, is_reversed=True)
    ]
    if cells is None:
        return blocks
    return [[cell for cell in block if tuple(cell[key] for key in keys) in cells.kept] for block in blocks]
