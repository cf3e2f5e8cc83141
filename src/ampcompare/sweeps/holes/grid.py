"""Which points a sweep is to have, and which of them a run is, by what its config says.

Values are compared as W&B's server does: by type, 1 like 1.0 and unlike true. A program may have recorded the
words that it was given, or what it made of them (`1e-3`, which YAML reads as a text), so that what no point
has to the letter is looked for by what it reads as.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ampcompare.records.tree import lookup

PLACE, ARM = "plan.place", "plan.arm"
DIGITS = 10  # that numbers have to share: a multiple of 0.1 has noise in its last ones
LONGEST = 10_000  # characters of a text that may be a list
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan|infinity)", re.IGNORECASE)
_WORDS: dict[str, Any] = {"none": None, "null": None, "true": True, "false": False}
_ABSENT = object()

Values = Mapping[str, Any]  # by dotted key


@dataclass(frozen=True)
class GridPoint:
    """A run that a sweep is to have: its number, what it has of the varied keys, what of these comes to the
    same run (`others`), and which run of the control it is, if any.
    """

    place: int
    values: Values
    arm: str | None = None
    others: tuple[Values, ...] = ()


@dataclass(frozen=True)
class Grid:
    """The points of a sweep by the keys that it varies.

    Of a search, which has no such points until they are drawn, `points` is None. `planned` is how many runs
    there are to be in the end, None where that is open. `left_out` says which points cannot run. A sweep that
    `prunes` stops runs on purpose (hyperband).
    """

    name: str
    keys: tuple[str, ...]
    points: tuple[GridPoint, ...] | None
    planned: int | None = None
    prunes: bool = False
    left_out: tuple[str, ...] = ()

    def candidates(self, config: Mapping[str, Any]) -> tuple[list[int], bool]:
        """The points that a run with this config may be, by their numbers in `points`, and whether it has
        their own values rather than others that come to the same run. More than one only where points have
        the same values.
        """
        told = [lookup(config, key, _ABSENT) for key in self.keys]
        place, arm = lookup(config, PLACE), lookup(config, ARM)
        if _ABSENT not in told:
            for index, read in ((self._exact, typed), (self._loose, loosely)):
                if found := index.get(tuple(map(read, told))):
                    same_arm = [n for n, _ in found if self._point(n).arm == arm] or [n for n, _ in found]
                    placed = [n for n in same_arm if self._point(n).place == place]
                    return placed or same_arm, dict(found)[(placed or same_arm)[0]]
        number = self._places.get(place) if _is_number(place) else None
        return ([number], True) if number is not None and self._may_be(number, told) else ([], True)

    def _point(self, number: int) -> GridPoint:
        assert self.points is not None
        return self.points[number]

    def _may_be(self, number: int, told: Sequence[Any]) -> bool:
        """Whether a run says nothing else than the point but for what a run decides itself (null, auto)."""
        values = self._point(number).values
        pairs = zip((values[key] for key in self.keys), told, strict=True)
        return all(
            there is _ABSENT or here in (None, "auto") or loosely(here) == loosely(there)
            for here, there in pairs
        )

    @cached_property
    def _places(self) -> dict[int, int]:
        return {point.place: number for number, point in enumerate(self.points or ())}

    @cached_property
    def _exact(self) -> dict[Any, list[tuple[int, bool]]]:
        return self._by(typed)

    @cached_property
    def _loose(self) -> dict[Any, list[tuple[int, bool]]]:
        return self._by(loosely)

    def _by(self, read: Any) -> dict[Any, list[tuple[int, bool]]]:
        found: dict[Any, list[tuple[int, bool]]] = {}
        for number, point in enumerate(self.points or ()):
            for values in (point.values, *point.others):
                of_key = found.setdefault(tuple(read(values[key]) for key in self.keys), [])
                of_key.append((number, values is point.values))
        return found


def typed(value: Any) -> Any:
    """A value to be compared by: numbers by their size, all else by type and content. Can be hashed."""
    if isinstance(value, bool) or value is None:
        return ("", value)
    if isinstance(value, int | float):
        return "nan" if isinstance(value, float) and math.isnan(value) else value
    return _of_parts(value, typed) or ("text", str(value))


def loosely(value: Any) -> Any:
    """The same by what it reads as: a text that says a number, a truth value, none or a list is that."""
    if isinstance(value, str):
        value = _read(value)
    if _is_number(value) or isinstance(value, float):
        try:
            return float(f"{float(value):.{DIGITS}g}") if not math.isnan(value) else "nan"
        except OverflowError:
            return value
    return _of_parts(value, loosely) or typed(value)


def _of_parts(value: Any, read: Any) -> Any:
    if isinstance(value, list | tuple):
        return ("list", *map(read, value))
    if isinstance(value, Mapping):
        return ("tree", *sorted(((str(k), read(v)) for k, v in value.items()), key=repr))
    return None


def _read(text: str) -> Any:
    word = text.strip()
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    if _NUMBER.fullmatch(word):
        return float(word)
    if word[:1] in ("[", "{", "(") and len(word) < LONGEST:
        try:
            return ast.literal_eval(word)
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            return text
    return text


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
