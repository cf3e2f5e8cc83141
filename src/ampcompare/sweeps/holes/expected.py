"""The points that a sweep is to have, as the report knows them (`Grid`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ampcompare.errors import UserError
from ampcompare.sweeps.distributions import Parameter
from ampcompare.sweeps.file import Sweep
from ampcompare.sweeps.holes.grid import Grid, GridPoint
from ampcompare.sweeps.points import SEED, Point
from ampcompare.sweeps.same import Same

MOST_POINTS = 100_000


def grid_of(sweep: Sweep, same: Same, name: str | None = None) -> Grid:
    """The points of a sweep, those that are one run as one. `name` is what its runs call it, if not so.

    Raises UserError for more points than anyone looks at.
    """
    name = sweep.name if name is None else name
    varied = [p for p in sweep.parameters if not p.is_listed or p.grid_size() > 1 or _is_repeat(p, sweep)]
    keys = tuple(p.key for p in varied)
    if not sweep.is_grid:
        return Grid(name, keys, None, sweep.run_cap, sweep.hyperband is not None)
    total = sweep.total() or 0
    if total > MOST_POINTS:
        raise UserError(
            f"{sweep.path}: {total:,} points are more than can be told one by one ({MOST_POINTS:,})"
        )
    merged = same.alike if sweep.cells is not None else ()
    points = tuple(_point(sweep.points[index], varied, merged) for index in range(total))
    left_out = same.refusals if sweep.cells is not None else ()
    return Grid(name, keys, points, total, sweep.hyperband is not None, left_out)


def _is_repeat(parameter: Parameter, sweep: Sweep) -> bool:
    """Whether it is a seed to which others were added."""
    return parameter.path == (SEED,) and bool(sweep.added)


def _point(
    point: Point, varied: list[Parameter], merged: tuple[tuple[Mapping[str, Any], ...], ...]
) -> GridPoint:
    values = dict(values_of(point.parameters, varied))
    others: list[dict[str, Any]] = []
    for first, *rest in merged:
        if all(key in values and repr(values[key]) == repr(value) for key, value in first.items()):
            others = [{**values, **other} for other in rest]
    return GridPoint(point.place, values, point.arm, tuple(others))


def values_of(tree: Mapping[str, Any], parameters: list[Parameter]) -> Iterator[tuple[str, Any]]:
    """Key and value of each parameter in the tree that a run is given."""
    for parameter in parameters:
        inner: Any = tree
        for part in parameter.path:
            inner = inner[part]
        yield parameter.key, inner
