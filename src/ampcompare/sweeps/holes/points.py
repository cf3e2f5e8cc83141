"""The points that a sweep is to have, and which of them a run is, by what its config says.

A program may have recorded the words that it was given, or what it made of them (`1e-3`, which YAML reads as
a text), so that values are compared by what they read as.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ampcompare.records.tree import lookup
from ampcompare.sweeps.check import Same
from ampcompare.sweeps.file import Sweep
from ampcompare.sweeps.points import SEED
from ampcompare.sweeps.search import row_at
from ampcompare.sweeps.table import Row

DIGITS = 10  # that numbers have to share: a multiple of 0.1 has noise in its last ones
WORDS: dict[str, Any] = {"none": None, "null": None, "true": True, "false": False}
_ABSENT = object()


class Points:
    """The points of a sweep by the keys that it varies (`keys`), and the row of each, as a worker takes it.

    `rows` is None where nobody knows them before they are run: of `bayes`, of a search without end, of what
    W&B's server draws. `began` is the sweep's definition as it began, from which a search is drawn.
    """

    def __init__(self, sweep: Sweep, same: Same, began: str) -> None:
        repeats = (SEED,) if sweep.added else ()
        varied = [p for p in sweep.parameters if not p.is_listed or p.grid_size() > 1 or p.path == repeats]
        self.keys = tuple(p.key for p in varied)
        is_known = sweep.is_grid or (sweep.method == "random" and sweep.run_cap and not sweep.on_server)
        if sweep.on_server and sweep.is_grid and sweep.run_cap is not None:  # it takes some of them
            is_known = sweep.run_cap >= len(dataclasses.replace(sweep, run_cap=None).points)
        self.rows: list[Row] | None = None
        if is_known:
            self.rows = [row_at(sweep, began, {}, place) for place in range(sweep.total() or 0)]
        self._by: dict[Any, list[int]] = {}  # their numbers, by their values
        for number, row in enumerate(self.rows or ()):
            own = self.named(row.parameters)
            self._by.setdefault(self.read(own), []).append(number)
            for first, *others in same.alike if sweep.cells else ():  # which are one run with it
                for other in others if first.items() <= own.items() else ():
                    self._by.setdefault(self.read({**own, **other}), []).append(number)

    def named(self, tree: Mapping[str, Any], absent: Any = None) -> dict[str, Any]:
        """What a config or a row's parameters have of the varied keys."""
        return {key: lookup(tree, key, absent) for key in self.keys}

    def read(self, tree: Mapping[str, Any]) -> tuple[Any, ...]:
        """The same to be compared by."""
        return tuple(map(read, self.named(tree, _ABSENT).values()))

    def find(self, config: Mapping[str, Any]) -> list[int]:
        """The points that a run with this config may be: more than one where these have the same values."""
        assert self.rows is not None
        place, arm = lookup(config, "plan.place"), lookup(config, "plan.arm")
        if found := self._by.get(self.read(config)):
            of_arm = [number for number in found if self.rows[number].plan.get("arm") == arm] or found
            return [place] if place in of_arm else of_arm
        # What a run decides itself (null, auto) it may have recorded as something else.
        if isinstance(place, int) and not isinstance(place, bool) and 0 <= place < len(self.rows):
            own, told = self.named(self.rows[place].parameters), self.named(config, _ABSENT)
            pairs = zip(own.values(), told.values(), strict=True)
            if all(a in (None, "auto") or b is _ABSENT or read(a) == read(b) for a, b in pairs):
                return [place]
        return []


def read(value: Any) -> Any:
    """A value to be compared by, which can be hashed: a text that says a number, a truth value, none or a
    list is that; numbers by their size, all else by type and content.
    """
    if isinstance(value, str):
        word = value.strip().lower()
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            value = ast.literal_eval(value.strip()) if word[:1] in ("[", "{", "(") else float(word)
        value = WORDS.get(word, value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):
            return f"{float(value):.{DIGITS}g}"
        return value
    if isinstance(value, list | tuple):
        return ("list", *map(read, value))
    if isinstance(value, Mapping):
        return ("tree", *sorted(((str(k), read(v)) for k, v in value.items()), key=repr))
    return value if value is _ABSENT else (type(value).__name__, str(value))
