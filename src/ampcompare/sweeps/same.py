"""Which points of a grid come to the same run, and which to none: of a grid of backends and loss scales.

`none` has no loss scale, so that with two of them it is two points and one run; `native_bf16` with a static
one is refused. Each run is made once. A block (order.py) then holds, for one seed, every run that those
points came to: a baseline that all scales share stands among all of them, not before the later ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from ampcompare.config.canonical import canonical
from ampcompare.errors import UserError
from ampcompare.report.words import plural, some
from ampcompare.sweeps.check import config_of, is_of_backend, trains_here
from ampcompare.sweeps.file.parameters import Parameter
from ampcompare.sweeps.file.sweep import Sweep
from ampcompare.sweeps.points import BACKEND, SEED, Cells

MOST_POINTS = 5_000  # of one seed
MOST_TRIED = 200  # of those in which the telling parameters differ; more are as many runs as points
MOST_NAMED = 3

Values = tuple[int, ...]  # of the telling parameters, by their numbers
Chosen = Mapping[str, Any]  # the same by their keys


@dataclass(frozen=True)
class Same:
    """The runs of one seed (`cells`; None: as many as points, in blocks as ever); in words which points are
    one, and why others are left out.
    """

    cells: Cells | None = None
    ones: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    alike: tuple[tuple[Chosen, ...], ...] = ()  # values that come to one run; the first stand for the others

    def said(self, sweep: Sweep) -> Iterator[str]:
        """What is to be said before the first run: the number of points and of runs, and why these differ."""
        if self.cells is None or sweep.cells is None:  # as of a sweep that began before any of this
            return
        points = sweep.points
        runs = sum(cell is not None for block in sweep.cells for cell in block) * points.seeds
        why = f": {some(self.ones, MOST_NAMED)}" if self.ones else ""
        yield f"{plural(points.count_of_file, 'point')}, {plural(runs, 'different run')}{why}"
        if self.refusals:
            yield f"left out, as they cannot run: {some(self.refusals, MOST_NAMED)}"


def same_runs(sweep: Sweep, words: Sequence[str]) -> Same:
    """What the points of the grid come to, with the `key=value` words behind every command.

    Raises UserError where none of them could run.
    """
    if not (sweep.is_grid and trains_here(sweep)):
        return Same()
    axes = sweep.points.axes
    telling = [p for p in axes.parameters if is_of_backend(p) and p.grid_size() > 1]
    points = math.prod(p.grid_size() for p in axes.parameters if p.path != (SEED,))
    tried = math.prod(p.grid_size() for p in telling)
    if not telling or points > MOST_POINTS or tried > MOST_TRIED:
        return Same()
    found = _Found(sweep, words, telling)
    if not found.refused and all(len(alike) == 1 for alike in found.alike):
        return Same()
    if not found.alike:
        raise UserError(f"{sweep.path}: no point of the grid can run: {next(iter(found.refused.values()))}")
    ones = (found.as_one(alike) for alike in found.alike if len(alike) > 1)
    refusals = dict.fromkeys(text.partition("; ")[0] for text in found.refused.values())
    alike = tuple(tuple(map(found.chosen, values)) for values in found.alike)
    return Same(found.cells(), tuple(ones), tuple(refusals), alike)


class _Found:
    """The combinations of the telling parameters by what they come to."""

    def __init__(self, sweep: Sweep, words: Sequence[str], telling: Sequence[Parameter]) -> None:
        self.sweep, self.telling = sweep, telling
        self.refused: dict[Values, str] = {}
        effects: list[tuple[dict[str, Any], list[Values]]] = []
        for values in product(*(range(p.grid_size()) for p in telling)):
            try:
                config = config_of(sweep, words, self.chosen(values))
            except UserError as problem:
                self.refused[values] = str(problem)
                continue
            effect = canonical(config.to_dict())
            known = next((alike for other, alike in effects if other == effect), None)
            if known is None:
                effects.append((effect, [values]))
            elif config.backend == effect[BACKEND] and self._backend(known[0]) != config.backend:
                known.insert(0, values)  # what is called by its own name stands for the others
            else:
                known.append(values)
        self.alike = [alike for _, alike in effects]

    def chosen(self, values: Values) -> dict[str, Any]:
        return {p.key: p.grid_value(v) for p, v in zip(self.telling, values, strict=True)}

    def _backend(self, values: Values) -> Any:
        return self.chosen(values).get(BACKEND)

    def cells(self) -> Cells:
        """The runs of one seed in blocks, each as (value compared, combination of the others), None where
        what runs in other blocks does not in this one.
        """
        axes = self.sweep.points.axes
        kept = {alike[0] for alike in self.alike}
        folded = {p.key for i, p in enumerate(self.telling) if p != axes.compared and self._varies(i)}
        blocks: dict[Values, dict[Values, tuple[int, int]]] = {}
        for place, numbers in enumerate(_numbers(axes.others)):
            of_key = dict(zip((p.key for p in axes.others), numbers, strict=True))
            block = tuple(n for key, n in of_key.items() if key not in folded)
            inner = tuple(n for key, n in of_key.items() if key in folded)
            runs = blocks.setdefault(block, {})
            for value in range(axes.compared.grid_size() if axes.compared else 1):
                of_all = of_key | ({axes.compared.key: value} if axes.compared else {})
                if tuple(of_all[p.key] for p in self.telling) in kept:
                    runs[(*inner, value)] = (value, place)
        arms = sorted({arm for runs in blocks.values() for arm in runs})
        return tuple(tuple(runs.get(arm) for arm in arms) for runs in blocks.values())

    def _varies(self, place: int) -> bool:
        """Whether points that are one run differ in this parameter."""
        return any(len({values[place] for values in alike}) > 1 for alike in self.alike)

    def as_one(self, alike: Sequence[Values]) -> str:
        """`backend=none is one run whatever its precision.loss_scale`, or which points are one."""
        chosen = [self.chosen(values) for values in alike]
        differing = [key for key in chosen[0] if len({repr(one[key]) for one in chosen}) > 1]
        same = {key: value for key, value in chosen[0].items() if key not in differing}
        total = math.prod(p.grid_size() for p in self.telling if p.key in differing)
        if same and len(alike) == total:
            return f"{_typed(same)} is one run whatever its {some(differing)}"
        return f"{_typed(chosen[0])} is also {some([_typed(one) for one in chosen[1:]], MOST_NAMED)}"


def _typed(chosen: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in chosen.items())


def _numbers(parameters: Sequence[Parameter]) -> Iterator[Values]:
    """Every combination of the parameters' values by number, the first parameter changing fastest."""
    for values in product(*(range(p.grid_size()) for p in reversed(parameters))):
        yield values[::-1]
