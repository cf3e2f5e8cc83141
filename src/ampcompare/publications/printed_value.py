"""A value as it was printed, with the interval that its digits or its source give."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from ampcompare.runtime.strict_model import Number, StrictModel, validation_error

_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.(?P<decimals>\d+))?")
_DURATION = re.compile(r"(?:(?P<h>\d+) ?h)? ?(?:(?P<min>\d+) ?min)? ?(?:(?P<s>\d+(?:\.\d+)?) ?s)?")
SECONDS = {"h": 3600.0, "min": 60.0, "s": 1.0}
MAX_CHARS = 40  # characters


class PrintedValue(StrictModel):
    """A published value.

    In a file it is a text ("0.240" in quotes, so that its last zero counts), a number, or a mapping of
    `value` and the other fields. For a number alone, the interval is that of rounding: "0.24" is 0.235 to
    0.245, and "6h54min" is half a minute either way (in seconds).

    Attributes:
        text: The value as it was printed.
        value: The value.
        low: Lower end of the interval.
        high: Upper end of the interval.
        n: Number of runs behind a value with its own confidence interval.
        confidence: Level of its own interval, 0..1. None if the interval is that of rounding.
    """

    text: str
    value: Number
    low: Number
    high: Number
    n: Annotated[int, Field(ge=2)] | None = None
    confidence: Annotated[float, Field(gt=0, lt=1)] | None = None

    @property
    def is_rounding(self) -> bool:
        """Return whether the interval is only that of the printed digits."""
        return self.confidence is None

    @model_validator(mode="before")
    @classmethod
    def _read(cls, content: Any) -> Any:
        if isinstance(content, Mapping):
            return {"text": f"{content.get('value')}", "confidence": 0.95, **content}
        text = (
            ""
            if isinstance(content, bool) or not isinstance(content, int | float | str)
            else str(content).strip()
        )
        if len(text) <= MAX_CHARS:
            if match := _NUMBER.fullmatch(text):
                return _rounded(text, float(text.replace(",", "")), match["decimals"])
            if (match := _DURATION.fullmatch(text)) and match.lastgroup:
                parts = {unit: number for unit, number in match.groupdict().items() if number is not None}
                value = sum(float(number) * SECONDS[unit] for unit, number in parts.items())
                last = parts[match.lastgroup].partition(".")[2]
                return _rounded(text, value, last, SECONDS[match.lastgroup])
        raise validation_error(
            'is not a number; expected it as it was printed, such as "0.240", "1,803" or "6h54min"'
        )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.low <= self.value <= self.high:
            raise validation_error(
                f"low {self.low:g}, value {self.value:g}, high {self.high:g}: not in this order"
            )
        return self


def _rounded(text: str, value: float, decimals: str | None, unit: float = 1.0) -> dict[str, Any]:
    half_unit = 0.5 * unit * 10.0 ** -len(decimals or "")
    return {"text": text, "value": value, "low": value - half_unit, "high": value + half_unit}
