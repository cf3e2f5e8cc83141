"""The points of a sweep as a field: a row for each value compared, a column for each of the rest, a mark for
each seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampcompare.report.palette import ordered
from ampcompare.report.runs.grid import typed
from ampcompare.report.runs.holes import Holes, Standing, State

SEED = "seed"
MOST_COLUMNS, MOST_ROWS, MOST_MARKS = 40, 100, 4_000
CONTROL = "control"
SAME, LEFT_OUT = "same run", "left out"  # of a point that another stands for, of one that cannot run
SIGNS = {
    State.FINISHED: "",
    State.EARLY: "▸",
    State.RUNNING: "…",
    State.FAILED: "✕",
    State.CRASHED: "!",
    State.STOPPED: "■",
    State.REFUSED: "⊘",
    State.MISSING: "",
}


@dataclass(frozen=True)
class Mark:
    """One point: its state by name, its sign, what it is in words."""

    state: str
    sign: str
    words: str

    @property
    def look(self) -> str:
        """The state as the style sheet names it."""
        return self.state.replace(" ", "-")


@dataclass(frozen=True)
class Cell:
    """The points at a row and a column, by seed; `says` stands there where there is none."""

    marks: tuple[Mark, ...]
    done: int
    says: str = ""


@dataclass(frozen=True)
class Field:
    """The whole: heads, rows with their cells, and how many points stand how, each with a mark."""

    row_key: str
    column_keys: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    counts: tuple[tuple[Mark, int], ...]
    sentence: str
    left_out: tuple[str, ...]
    has_seeds: bool  # whether there is more than one in a cell
    has_same: bool


def field_of(holes: Holes, compared: Sequence[str] = ()) -> Field | None:
    """The field of a sweep; None where it is one point, or more than can be looked at."""
    keys = [key for key in holes.grid.keys if key != SEED]
    if len(holes.standings) < 2 or len(holes.standings) > MOST_MARKS:
        return None
    row_key = next((key for key in compared if key in keys), keys[0] if keys else "")
    rest = [key for key in keys if key != row_key]
    if not rest and SEED in holes.grid.keys:
        rest = [SEED]
    at: dict[tuple[str, tuple[str, ...]], list[Standing]] = {}
    same: set[tuple[str, tuple[str, ...]]] = set()
    columns: dict[tuple[str, ...], tuple[Any, ...]] = {}
    for standing in holes.standings:
        row, column = _place(standing.point.values, row_key, rest)
        columns.setdefault(column, _order(standing.point.values, rest))
        at.setdefault((_row(row, standing), column), []).append(standing)
        for other in standing.point.others:
            there = _place(other, row_key, rest)
            columns.setdefault(there[1], _order(other, rest))
            same.add((_row(there[0], standing), there[1]))
    heads = sorted(columns, key=lambda column: columns[column])
    names = [name for row in ordered({row for row, _ in [*at, *same]} - _controls(at)) for name in (row,)]
    names += sorted(_controls(at))
    if len(heads) > MOST_COLUMNS or len(names) > MOST_ROWS:
        return None
    rows = tuple(
        (name, tuple(_cell(at.get((name, h), ()), (name, h) in same) for h in heads)) for name in names
    )
    counts = tuple((Mark(s.value, SIGNS[s], s.value), n) for s, n in holes.counts.items())
    return Field(
        row_key,
        " · ".join(rest),
        tuple(" · ".join(head) for head in heads),
        rows,
        counts,
        holes.sentence.partition(":")[0].rstrip(".") + ".",
        holes.grid.left_out,
        SEED in holes.grid.keys and any(len(cell.marks) > 1 for _, cells in rows for cell in cells),
        any(cell.says == SAME for _, cells in rows for cell in cells),
    )


def _place(values: Mapping[str, Any], row_key: str, rest: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    return _text(values.get(row_key, "")), tuple(_text(values[key]) for key in rest)


def _order(values: Mapping[str, Any], rest: Sequence[str]) -> tuple[Any, ...]:
    """By size where values are numbers, else by name."""
    found = (typed(values[key]) for key in rest)
    return tuple((0, v, "") if isinstance(v, int | float) else (1, 0, str(v)) for v in found)


def _row(row: str, standing: Standing) -> str:
    return f"{row} ({CONTROL})" if standing.point.arm else row


def _controls(at: Mapping[tuple[str, tuple[str, ...]], Sequence[Standing]]) -> set[str]:
    return {row for (row, _), found in at.items() if any(standing.point.arm for standing in found)}


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)


def _cell(found: Sequence[Standing], is_same: bool) -> Cell:
    marks = tuple(
        map(
            _mark,
            sorted(found, key=lambda s: _order(s.point.values, [SEED] if SEED in s.point.values else [])),
        )
    )
    done = sum(standing.state.is_whole for standing in found)
    if marks:
        return Cell(marks, done)
    return Cell((), 0, SAME) if is_same else Cell((), 0, LEFT_OUT)


def _mark(standing: Standing) -> Mark:
    point, attempt = standing.point, standing.attempt
    said = [" ".join(f"{key}={_text(value)}" for key, value in point.values.items())]
    said += [f"control, {point.arm}"] if point.arm else []
    said += [f"{standing.state.value}{f' ({attempt.why})' if attempt and attempt.why else ''}"]
    said += [f"run {attempt.run_id}"] if attempt and attempt.run_id else []
    failed = sum(not a.state.is_whole for a in standing.attempts)
    if standing.state.is_whole and failed:
        said.append(f"after {failed} that did not end well")
    return Mark(standing.state.value, SIGNS[standing.state], ": ".join(said[:1]) + ": " + ", ".join(said[1:]))
