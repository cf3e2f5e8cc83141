"""A value as it was printed, with the interval that its digits leave open."""

import re
from typing import Any

from pydantic import model_validator

from ampcompare.runtime.strict_model import Number, StrictModel, validation_error

_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.(?P<decimals>\d+))?")
_DURATION = re.compile(r"(?:(?P<h>\d+) ?h)? ?(?:(?P<min>\d+) ?min)? ?(?:(?P<s>\d+(?:\.\d+)?) ?s)?")
SECONDS = {"h": 3600.0, "min": 60.0, "s": 1.0}
MAX_CHARS = 40


class PrintedValue(StrictModel):
    """A published value.

    In a file it is a text ("0.240" in quotes, so that its last zero counts) or a number. The interval is that
    of rounding: "0.24" is 0.235 to 0.245, and "6h54min" is half a minute either way (in seconds).

    Attributes:
        text: The value as it was printed.
        value: In the unit of the text; a duration is in seconds.
        low: Lower end of the interval.
        high: Upper end of the interval.
    """

    text: str
    value: Number
    low: Number
    high: Number

    @model_validator(mode="before")
    @classmethod
    def _read(cls, content: Any) -> Any:
        if isinstance(content, dict):
            raise validation_error(
                "is a value with an interval of its own, which went in 0.5; write the value as it was printed"
            )
        is_scalar = isinstance(content, int | float | str) and not isinstance(content, bool)
        text = str(content).strip() if is_scalar else ""
        fields = _parse(text) if len(text) <= MAX_CHARS else None
        if fields is None:
            raise validation_error(
                'is not a number; expected it as it was printed, such as "0.240", "1,803" or "6h54min"'
            )
        return fields


def _parse(text: str) -> dict[str, Any] | None:
    """Return the fields of a printed number or duration, None for another text."""
    number = _NUMBER.fullmatch(text)
    if number is not None:
        return _rounded(text, float(text.replace(",", "")), number["decimals"])
    duration = _DURATION.fullmatch(text)
    if duration is None or duration.lastgroup is None:
        return None
    parts = {unit: digits for unit, digits in duration.groupdict().items() if digits is not None}
    seconds = sum(float(digits) * SECONDS[unit] for unit, digits in parts.items())
    smallest = duration.lastgroup
    return _rounded(text, seconds, parts[smallest].partition(".")[2], SECONDS[smallest])


def _rounded(text: str, value: float, decimals: str | None, unit: float = 1.0) -> dict[str, Any]:
    """Return the fields of a value whose last digit is rounded.

    Args:
        decimals: The digits after the decimal point.
        unit: What the value would be with a printed 1.
    """
    half_unit = 0.5 * unit * 10.0 ** -len(decimals or "")
    return {"text": text, "value": value, "low": value - half_unit, "high": value + half_unit}
