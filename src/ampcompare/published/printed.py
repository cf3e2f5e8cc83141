"""A figure as somebody printed it: its value, and between what it lies by the digits that it was given."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ampcompare.errors import UserError

_NUMBER = re.compile(r"[-+]?(?P<whole>\d{1,3}(?:,\d{3})+|\d+)(?:\.(?P<decimals>\d+))?")
_DURATION = re.compile(r"(?:(?P<h>\d+) ?h)? ?(?:(?P<min>\d+) ?min)? ?(?:(?P<s>\d+(?:\.\d+)?) ?s)?")
SECONDS = {"h": 3600.0, "min": 60.0, "s": 1.0}
LONGEST = 40  # characters
LARGEST = 1e300


@dataclass(frozen=True)
class Printed:
    """A published figure: `text` as it stands there, `value` and the interval that it may be of.

    Of a number alone the interval is its rounding: "0.24" is 0.235 to 0.245, "6h54min" half a minute either
    way (in seconds). Of a figure with an interval of its own (`confidence`, from `n` runs) it is that one.
    """

    text: str
    value: float
    low: float
    high: float
    n: int | None = None
    confidence: float | None = None

    @property
    def is_rounding(self) -> bool:
        """Whether the interval is of the printed digits alone."""
        return self.confidence is None


def printed(what: Any, where: str) -> Printed:
    """A figure out of a publication's file: a text ("0.240": quoted, so that its last zero counts), a number,
    or a mapping with `value`, `low`, `high`, `n` and `confidence`. `where` names it. Raises UserError.
    """
    if isinstance(what, Mapping):
        return _with_interval(what, where)
    if isinstance(what, bool) or not isinstance(what, int | float | str):
        raise UserError(f'{where}: {what!r} is no figure; write it as it was printed, "0.240" or "6h54min"')
    text = str(what).strip()
    if len(text) <= LONGEST:
        if match := _NUMBER.fullmatch(text):
            value = float(text.replace(",", ""))
            half = 0.5 * 10.0 ** -len(match["decimals"] or "")
            if abs(value) <= LARGEST:
                return Printed(text, value, value - half, value + half)
        elif (match := _DURATION.fullmatch(text)) and any(match.groupdict().values()):
            return _duration(text, match.groupdict())
    raise UserError(
        f'{where}: {text[:60]!r} is no figure; expected one such as "0.240", "1,803" or "6h54min"'
    )


def _duration(text: str, parts: Mapping[str, str | None]) -> Printed:
    given = {unit: number for unit, number in parts.items() if number is not None}
    value = sum(float(number) * SECONDS[unit] for unit, number in given.items())
    unit, number = list(given.items())[-1]
    half = 0.5 * SECONDS[unit] * 10.0 ** -len(number.partition(".")[2])
    return Printed(text, value, value - half, value + half)


def _with_interval(what: Mapping[Any, Any], where: str) -> Printed:
    known = {"value", "low", "high", "n", "confidence"}
    if unknown := [str(key) for key in what if key not in known]:
        raise UserError(f"{where}: {unknown[0]}: no such key; known are {', '.join(sorted(known))}")
    numbers = {key: _number(what.get(key), f"{where}.{key}") for key in ("value", "low", "high")}
    value, low, high = numbers.values()
    if not low <= value <= high:
        raise UserError(f"{where}: low {low:g}, value {value:g}, high {high:g}: expected them in this order")
    n, confidence = what.get("n"), what.get("confidence", 0.95)
    if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 2):
        raise UserError(f"{where}.n: {n!r}; expected the number of runs, 2 or more")
    if isinstance(confidence, bool) or not isinstance(confidence, float) or not 0 < confidence < 1:
        raise UserError(f"{where}.confidence: {confidence!r}; expected a fraction, such as 0.95")
    return Printed(f"{what['value']}", value, low, high, n, confidence)


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"{where}: {value!r}; expected a number")
    return float(value)
