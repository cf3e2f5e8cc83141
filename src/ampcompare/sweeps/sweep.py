"""A sweep: the content of its file, and the runs of a grid in their order.

Seeds can be added to a sweep that has begun. Each group of added seeds comes behind all earlier runs, with a
control of its own, so that a run never changes its number.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, product
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ampcompare import metrics
from ampcompare.config.schema import OPTIONS
from ampcompare.runtime.strict_model import Number, StrictModel, Text, validation_error
from ampcompare.sweeps.command_macros import DEFAULT_COMMAND
from ampcompare.sweeps.distributions import Parameter, Whole, nested

SEED = "seed"
PLAN = "plan"
BACKEND, BASELINE = "backend", "none"
BOOKENDS, CHAOS = "bookends", "chaos"  # kinds of control, as in plan.control
CHAOS_KEY = ""  # no parameter has this key
FIRST, LAST = "first", "last"  # arms of the control BOOKENDS; CHAOS is an arm, too
MAX_BANDS = 20  # with min_iter alone, the number of bands has no end
MAX_COUNT = 10**15


Count = Annotated[Whole, Field(ge=1, le=MAX_COUNT)]


class Objective(StrictModel):
    """The metric by which a sweep compares its runs.

    Attributes:
        name: The key under which runs log it.
        goal: Which way is better.
        target: The value that is good enough: no run is started once a finished run has reached it.
        impute: For W&B's own search. TPE learns from finished runs alone, so that it changes nothing here.
    """

    name: Text
    goal: Literal["minimize", "maximize"] = "minimize"
    target: Number | None = None
    impute: Any = None
    impute_while_running: Any = None

    @property
    def maximize(self) -> bool:
        """Return whether a greater value is better."""
        return self.goal == "maximize"

    @property
    def unused(self) -> tuple[str, ...]:
        """The keys that the file has and that change nothing here."""
        return tuple(key for key in ("impute", "impute_while_running") if getattr(self, key) is not None)

    def is_reached(self, value: float) -> bool:
        """Return whether the value is as good as the target; False where there is none."""
        return self.target is not None and (value >= self.target if self.maximize else value <= self.target)


class Hyperband(StrictModel):
    """Early termination by hyperband: at each band, only the best 1/eta of the runs continue.

    W&B's code (package `sweeps` 0.3.0, hyperband_stopping.py) decides what the keys mean: `max_iter` goes
    before `min_iter`, and `s` counts for `max_iter` alone.

    Attributes:
        min_iter: The first band, in values of the metric.
        max_iter: As many values as a run logs: the bands are `max_iter` divided by `eta`, `s` times.
        s: The number of bands below `max_iter`.
        eta: The factor between bands.
        strict: Judge a run by its newest value instead of by its best so far. False by default, as in W&B's
            documentation; the schema in `sweeps` 0.3.0 says true.
    """

    type: Literal["hyperband"]
    min_iter: Count | None = None
    max_iter: Count | None = None
    s: Count | None = None
    eta: Annotated[Whole, Field(ge=2, le=MAX_COUNT)] = 3
    strict: bool = False

    @model_validator(mode="after")
    def _has_bands(self) -> Self:
        if self.max_iter is None and self.min_iter is None:
            raise validation_error(
                "expected min_iter, or max_iter and s, which say after how many values runs are compared"
            )
        if self.max_iter is not None and self.s is None:
            raise validation_error("s: missing; max_iter needs the number of bands, such as s: 2")
        return self

    @property
    def unused(self) -> tuple[str, ...]:
        """The keys that the file has and that change nothing."""
        key = "s" if self.max_iter is None else "min_iter"
        return (key,) if getattr(self, key) is not None else ()

    @property
    def bands(self) -> tuple[int, ...]:
        """After how many values of the metric runs are compared, ascending."""
        if self.max_iter is None:
            return tuple((self.min_iter or 0) * self.eta**i for i in range(MAX_BANDS))
        bands: list[int] = []
        band = self.max_iter // self.eta
        while band and len(bands) < (self.s or 0):
            bands.append(band)
            band //= self.eta
        return tuple(reversed(bands)) or (1,)


@dataclass(frozen=True)
class Point:
    """A run of a grid.

    Attributes:
        parameters: Its parameters as a tree.
        index: Its index in the sweep; runs record it as `plan.place`.
        block: The number of its block; None where the order has no blocks.
        arm: For a run of a control, the baseline once more: `first` or `last` of all runs, or `chaos` for
            one that begins with changed last bits.
        series: The number of the runs that one process trains one after the other: they differ only in the
            seed.
    """

    parameters: dict[str, Any]
    index: int
    block: int | None = None
    arm: str | None = None
    series: int = 0


# A cell of the factorial design, which is a run without its seed: for each parameter's key, the index of its
# value. Runs of the control CHAOS have CHAOS_KEY, too.
Cell = Mapping[str, int]


@dataclass(frozen=True)
class DistinctPoints:
    """The points of a grid that are runs, where several train the same (`training_options.py`).

    Attributes:
        keys: The parameters that decide whether two points train the same.
        combinations: The combinations of their values that are runs, as indices of the values.
    """

    keys: tuple[str, ...]
    combinations: frozenset[tuple[int, ...]]


@dataclass(frozen=True)
class Sweep:
    """The content of a sweep file, and what was added to it.

    Attributes:
        path: The file.
        name: The sweep's name.
        method: `grid`, `random` or `bayes`.
        parameters: The parameters, fixed ones included.
        program: What `${program}` stands for in the command.
        command: The arguments of a run's command, with W&B's macros.
        metric: The metric by which runs are compared.
        run_cap: The largest number of runs.
        hyperband: Early termination.
        project: W&B's project.
        entity: W&B's entity.
        raw: The file's content.
        control: How the baseline is run once more: BOOKENDS, before and after all other runs; or CHAOS, with
            the last bits of its initial weights changed, in every block. None: not at all.
        added: Groups of seeds beyond the file's, oldest first.
        distinct_points: Which points are runs, where some train the same or cannot run; None: all.
        on_server: Whether W&B's server knows the sweep under its name.
        seeds_per_process: How many seeds one process trains at most, one after the other.
        unused: Keys of the file that have no effect here.
    """

    path: Path
    name: str
    method: str
    parameters: tuple[Parameter, ...]
    program: str | None = None
    command: tuple[str, ...] = DEFAULT_COMMAND
    metric: Objective | None = None
    run_cap: int | None = None
    hyperband: Hyperband | None = None
    project: str | None = None
    entity: str | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False)
    control: str | None = None
    added: tuple[tuple[Any, ...], ...] = ()
    distinct_points: DistinctPoints | None = None
    on_server: bool = False
    seeds_per_process: int = 1
    unused: tuple[str, ...] = ()

    @property
    def is_grid(self) -> bool:
        """Return whether every point runs once: in randomized blocks, or in file order under hyperband."""
        return self.method == "grid"

    def is_plan(self, key: str) -> bool:
        """Return whether a key is an option of our plan.

        Another program may have options of its own in a group `plan`. Then all of them are its own.
        """
        keys = [key, *(p.key for p in self.parameters)]
        return key.startswith(f"{PLAN}.") and all(k in OPTIONS for k in keys if k.startswith(f"{PLAN}."))

    @property
    def learns(self) -> bool:
        """Return whether the next point depends on the results of earlier runs."""
        return self.method == "bayes"

    @cached_property
    def seed(self) -> Parameter | None:
        """The parameter `seed`, if the file has it."""
        return next((p for p in self.parameters if p.key == SEED), None)

    @property
    def varied(self) -> list[Parameter]:
        """The parameters with several values, or with values that are drawn."""
        return [p for p in self.parameters if not (p.is_listed and p.grid_size() == 1)]

    @property
    def seeds(self) -> int:
        """The number of seeds of each value of a grid, added seeds included."""
        return (self.seed.grid_size() if self.seed else 1) + sum(map(len, self.added))

    @cached_property
    def compared(self) -> Parameter | None:
        """The parameter that a grid compares: the backend if it varies, else the first parameter that does.

        None where only the seed varies.
        """
        varied = [p for p in self.parameters if p.key != SEED and p.grid_size() > 1]
        return min(varied, key=lambda p: p.key != BACKEND, default=None)

    @property
    def is_higher_better(self) -> bool:
        """Return whether results are shown with the greatest value of the metric first.

        Where the file has no goal, the metric's name tells more than W&B's default, minimize.
        """
        if self.metric is None:
            return False
        if (self.raw.get("metric") or {}).get("goal"):
            return self.metric.maximize
        return metrics.guess_direction(self.metric.name) == metrics.HIGHER

    def total(self) -> int | None:
        """Return the number of runs; None for a search without `run_cap`, which has no end."""
        return len(self.points) if self.is_grid else self.run_cap

    @cached_property
    def points(self) -> list[Point]:
        """Every run of a grid: first the file's seeds, then each group of added seeds, oldest first.

        `run_cap` leaves out the last points of the grid, not the bookends around it.
        """
        points: list[Point] = []
        blocks = self._blocks()
        baseline = self._baselines([cell for block in blocks for cell in block])[0]
        if self.control == CHAOS:
            repeats = [[{**cell, CHAOS_KEY: 1} for cell in self._baselines(block)] for block in blocks]
            blocks = [[*block, *again] for block, again in zip(blocks, repeats, strict=True)]

        size = self.seeds_per_process
        series: dict[Any, int] = {}  # numbers of series, by what their runs have in common

        def add(
            seed: Any, part: tuple[int, int], cell: Cell, block: int | None = None, arm: str | None = None
        ) -> None:
            values = [seed if p.key == SEED else p.grid_value(cell[p.key]) for p in self.parameters]
            # The control's last runs, and added seeds, come after other runs: they are series of their own.
            common = (*part, arm, *sorted(cell.items()))
            number = series.setdefault(common, len(series))
            points.append(Point(nested(self.parameters, values), len(points), block, arm, number))

        drawn = enumerate(orders(self.name, len(blocks[0])))
        for group, seeds in enumerate([self.seed.values() if self.seed else [None], *self.added]):
            grid = [*self._ordered(len(seeds), blocks, drawn)]
            around = seeds if self.control == BOOKENDS else ()
            remaining = None if self.run_cap is None else self.run_cap - len(points) - 2 * len(around)
            if remaining is not None and remaining <= 0:
                break
            for n, seed in enumerate(around):
                add(seed, (group, n // size), baseline, arm=FIRST)
            for n, cell, at in grid[:remaining]:
                add(seeds[n], (group, n // size), cell, at, CHAOS if CHAOS_KEY in cell else None)
            for n, seed in enumerate(around):
                add(seed, (group, n // size), baseline, arm=LAST)
        return points

    def _baselines(self, cells: Sequence[Cell]) -> Sequence[Cell]:
        """Return the cells of the baseline; the first cell if no other is."""
        compared = self.compared
        if compared is None:
            return cells[:1]
        return [cell for cell in cells if cell[compared.key] == baseline_of(compared)] or cells[:1]

    def _ordered(
        self, seeds: int, blocks: Sequence[Sequence[Cell]], drawn: Iterator[tuple[int, Sequence[int]]]
    ) -> Iterator[tuple[int, Cell, int | None]]:
        """Yield index of the seed, cell and number of the block of each run.

        Hyperband compares running runs, so with hyperband runs come in the file's order and without blocks.
        With several seeds in a process, a block has that many seeds, and its order is that of the processes.
        With hyperband, the seeds of a process take one place in the file's order.
        """
        size = self.seeds_per_process
        if self.hyperband is None:
            parts = [range(first, min(first + size, seeds)) for first in range(0, seeds, size)]
            for (part, block), (number, order) in zip(product(parts, blocks), drawn, strict=False):
                yield from ((n, block[arm], number) for arm in order for n in part)
        else:
            keys = [p.key for p in reversed(self.parameters)]
            runs = [(n, cell) for n in range(seeds) for block in blocks for cell in block]
            runs.sort(
                key=lambda run: [*(run[0] // size if key == SEED else run[1][key] for key in keys), run[0]]
            )
            yield from ((n, cell, None) for n, cell in runs)

    def _blocks(self) -> list[list[Cell]]:
        """Return the cells in blocks: one block for each combination of the other parameters.

        Others are neither compared nor in `distinct_points`. The first of them changes fastest.
        """
        keys = self.distinct_points.keys if self.distinct_points else ()
        others = [p for p in self.parameters if p not in (self.seed, self.compared)]
        within = [p for p in others if p.key in keys] + ([self.compared] if self.compared else [])
        outer = [p for p in reversed(others) if p.key not in keys]
        blocks: list[list[Cell]] = [[{**at, **cell} for cell in _numbered(within)] for at in _numbered(outer)]
        if self.distinct_points is None:
            return blocks
        combinations = self.distinct_points.combinations
        return [
            [cell for cell in block if tuple(cell[key] for key in keys) in combinations] for block in blocks
        ]


def orders(name: str, values: int) -> Iterator[Sequence[int]]:
    """Yield the order of the compared values, as their indices, for one block after another, without end.

    A machine drifts: it gets warm, and other jobs come and go. If all runs of one backend came first, drift
    would count as a difference between backends. So a block holds each compared value once, at one seed and
    one combination of all other parameters, in random order (Fisher 1935, The Design of Experiments). The
    order is a hash of the sweep's name and the block's number, so that every start has the same order.

    Args:
        name: The sweep's name.
        values: The number of compared values.

    >>> sorted(next(orders("mine", 3)))
    [0, 1, 2]
    """
    for block in count():
        yield sorted(
            range(values),
            # The 0 keeps most orders of earlier versions.
            key=lambda value: hashlib.sha256(json.dumps([name, block, 0, value]).encode()).digest(),
        )


def _numbered(parameters: Sequence[Parameter]) -> Iterator[Cell]:
    """Yield every combination of the values of parameters, as indices; the last parameter changes fastest."""
    for numbers in product(*(range(p.grid_size()) for p in parameters)):
        yield dict(zip((p.key for p in parameters), numbers, strict=True))


def count_of(parameters: Sequence[Parameter]) -> int:
    """Return the number of combinations of the values of parameters."""
    return math.prod(p.grid_size() for p in parameters)


def baseline_of(compared: Parameter) -> int:
    """Return the index of the value that is the baseline: the backend `none`, else the first value."""
    values = compared.values() if compared.key == BACKEND else []
    return values.index(BASELINE) if BASELINE in values else 0
