"""Which points of a grid come to the same run, and which to none: of a grid of backends and loss scales.

`none` has no loss scale, so that with two of them it is two points and one run; `native_bf16` with a static
one is refused. Each run is made once. A block (order.py) then holds, for one seed, every run that those
points came to: a baseline that all scales share stands among all of them, not before the later ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from ampcompare.config.canonical import canonical
from ampcompare.errors import UserError
from ampcompare.report.words import plural, some
from ampcompare.sweeps.check import config_of, is_of_backend, trains_here
from ampcompare.sweeps.file import Sweep
from ampcompare.sweeps.points import Cells, count_of

MOST_TRIED = 200  # combinations of backend and precision; of more each is a run of its own
MOST_NAMED = 3

Chosen = Mapping[str, Any]  # values of backend and precision, by their keys


@dataclass(frozen=True)
class Same:
    """The points that are runs (`cells`; None: all of them), which values come to one run (the first stand
    for the others), and why others are left out.
    """

    cells: Cells | None = None
    alike: tuple[tuple[Chosen, ...], ...] = ()
    refusals: tuple[str, ...] = ()

    def said(self, sweep: Sweep) -> Iterator[str]:
        """What is to be said before the first run: the number of points and of runs, and why these differ."""
        if sweep.cells is None:
            return
        points = count_of([p for p in sweep.parameters if p != sweep.axes.seed]) * sweep.seeds
        runs = len(replace(sweep, control=False, run_cap=None).points)
        ones = []
        for alike in self.alike:
            shared = " ".join(
                f"{k}={v}" for k, v in alike[0].items() if all(other[k] == v for other in alike)
            )
            ones.append(f"{len(alike)} points{f' of {shared}' if shared else ''} are one run")
        why = f": {some(ones, MOST_NAMED)}" if ones else ""
        yield f"{plural(points, 'point')}, {plural(runs, 'different run')}{why}"
        if self.refusals:
            yield f"left out, as they cannot run: {some(self.refusals, MOST_NAMED)}"


def same_runs(sweep: Sweep, words: Sequence[str]) -> Same:
    """What the points of the grid come to, with the `key=value` words behind every command.

    Raises UserError where none of them could run.
    """
    telling = [p for p in sweep.parameters if is_of_backend(p) and p.is_listed and p.grid_size() > 1]
    if not (sweep.is_grid and trains_here(sweep) and telling and count_of(telling) <= MOST_TRIED):
        return Same()
    groups: dict[str, dict[tuple[int, ...], Chosen]] = {}  # what trains the same, by number and value
    refused: dict[str, None] = {}
    for numbers in product(*(range(p.grid_size()) for p in telling)):
        chosen = {p.key: p.grid_value(n) for p, n in zip(telling, numbers, strict=True)}
        try:
            effect = canonical(config_of(sweep, words, chosen).to_dict())
        except UserError as problem:
            refused[str(problem).partition("; ")[0]] = None
        else:
            groups.setdefault(json.dumps(effect, sort_keys=True, default=str), {})[numbers] = chosen
    if not groups:
        raise UserError(f"{sweep.path}: no point of the grid can run: {next(iter(refused))}")
    merged = [alike for alike in groups.values() if len(alike) > 1]
    if not refused and not merged:
        return Same()
    folded = {p.key for alike in merged for i, p in enumerate(telling) if len({n[i] for n in alike}) > 1}
    kept = frozenset(next(iter(alike)) for alike in groups.values())
    cells = Cells(tuple(p.key for p in telling), kept, frozenset(folded))
    return Same(cells, tuple(tuple(alike.values()) for alike in merged), tuple(refused))
