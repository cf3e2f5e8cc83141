"""The points that a sweep is to have, and which of them a run is, by what its config says.

Values are compared as W&B's server does: by type, 1 like 1.0 and unlike true. A program may have recorded the
words that it was given, or what it made of them (`1e-3`, which YAML reads as a text), so that what no point
has to the letter is looked for by what it reads as.
"""

from __future__ import annotations

import ast
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ampcompare.records.tree import lookup
from ampcompare.sweeps.file import Sweep
from ampcompare.sweeps.points import SEED
from ampcompare.sweeps.same import Same
from ampcompare.sweeps.search import row_at

DIGITS = 10  # that numbers have to share: a multiple of 0.1 has noise in its last ones
WORDS: dict[str, Any] = {"none": None, "null": None, "true": True, "false": False}
_ABSENT = object()

Values = tuple[Any, ...]  # of the keys that a sweep varies


class Points:
    """The points of a sweep by the keys that it varies (`keys`), and the row of each, as a worker takes it.

    `rows` is None where nobody knows them before they are run: of `bayes`, of a search without end, of what
    W&B's server draws. `began` is the sweep's definition as it began, from which a search is drawn.
    """

    def __init__(self, sweep: Sweep, same: Same, began: str) -> None:
        repeats = (SEED,) if sweep.added else ()
        varied = [p for p in sweep.parameters if not p.is_listed or p.grid_size() > 1 or p.path == repeats]
        self.keys = tuple(p.key for p in varied)
        self.left_out = same.refusals if sweep.cells else ()
        self._same = same.alike if sweep.cells else ()
        is_random = sweep.method == "random"
        is_known = not sweep.on_server and sweep.run_cap is not None if is_random else sweep.is_grid
        if sweep.on_server and sweep.is_grid and sweep.run_cap is not None:  # it takes some of them
            is_known = sweep.run_cap >= len(dataclasses.replace(sweep, run_cap=None).points)
        total = sweep.total() or 0
        self.rows = [row_at(sweep, began, {}, place) for place in range(total)] if is_known else None
        self.planned = sweep.run_cap if self.rows is None else total
        self._indices = [(read, self._by(read)) for read in (typed, loosely)]

    def values(self, tree: Mapping[str, Any]) -> Values:
        """What a config or a row's parameters have of the varied keys."""
        return tuple(lookup(tree, key, _ABSENT) for key in self.keys)

    def named(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """The same by key; None for what is not there."""
        return {key: lookup(tree, key) for key in self.keys}

    def find(self, config: Mapping[str, Any]) -> list[int]:
        """The points that a run with this config may be: more than one where these have the same values."""
        assert self.rows is not None
        told = self.values(config)
        place, arm = lookup(config, "plan.place"), lookup(config, "plan.arm")
        if _ABSENT not in told:
            for read, index in self._indices:
                if found := index.get(tuple(map(read, told))):
                    of_arm = [number for number in found if self.rows[number].plan.get("arm") == arm] or found
                    return [place] if place in of_arm else of_arm
        # What a run decides itself (null, auto) it may have recorded as something else.
        if isinstance(place, int) and not isinstance(place, bool) and 0 <= place < len(self.rows):
            pairs = zip(self.values(self.rows[place].parameters), told, strict=True)
            if all(a in (None, "auto") or b is _ABSENT or loosely(a) == loosely(b) for a, b in pairs):
                return [place]
        return []

    def _by(self, read: Callable[[Any], Any]) -> dict[Values, list[int]]:
        found: dict[Values, list[int]] = {}
        for number, row in enumerate(self.rows or ()):
            own = self.named(row.parameters)
            for values in (own, *self._that_are_one_run_with(own)):
                found.setdefault(tuple(map(read, values.values())), []).append(number)
        return found

    def _that_are_one_run_with(self, own: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
        for first, *others in self._same:
            if all(repr(own.get(key, value)) == repr(value) for key, value in first.items()):
                return [{key: other.get(key, value) for key, value in own.items()} for other in others]
        return []


def typed(value: Any) -> Any:
    """A value to be compared by: numbers by their size, all else by type and content. Can be hashed."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "nan" if value != value else value
    return _of_parts(value, typed)


def loosely(value: Any) -> Any:
    """The same by what it reads as: a text that says a number, a truth value, none or a list is that."""
    if isinstance(value, str):
        value = _read(value.strip().lower(), value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):
            return "nan" if math.isnan(value) else float(f"{float(value):.{DIGITS}g}")
        return value
    return _of_parts(value, loosely)


def _read(word: str, text: str) -> Any:
    if word in WORDS:
        return WORDS[word]
    with suppress(ValueError):
        return float(word)
    with suppress(ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return ast.literal_eval(text.strip()) if word[:1] in ("[", "{", "(") else text
    return text


def _of_parts(value: Any, read: Callable[[Any], Any]) -> Any:
    if isinstance(value, list | tuple):
        return ("list", *map(read, value))
    if isinstance(value, Mapping):
        return ("tree", *sorted(((str(k), read(v)) for k, v in value.items()), key=repr))
    return (type(value).__name__, str(value))
