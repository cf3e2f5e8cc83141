"""A figure as somebody printed it: its value, and between what it lies by the digits that it was given."""

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
    """A published figure: `text` as it stands there, `value` and the interval that it may be of. In a file it
    is a text ("0.240": quoted, so that its last zero counts), a number, or a mapping of `value` and the rest.

    Of a number alone the interval is its rounding: "0.24" is 0.235 to 0.245, "6h54min" half a minute either
    way (in seconds). Of a figure with an interval of its own (`confidence`, from `n` runs) it is that one.
    """

    text: str
    value: Number
    low: Number
    high: Number
    n: Annotated[int, Field(ge=2)] | None = None
    confidence: Annotated[float, Field(gt=0, lt=1)] | None = None

    @property
    def is_rounding(self) -> bool:
        """Whether the interval is of the printed digits alone."""
        return self.confidence is None

    @model_validator(mode="before")
    @classmethod
    def _read(cls, what: Any) -> Any:
        if isinstance(what, Mapping):
            return {"text": f"{what.get('value')}", "confidence": 0.95, **what}
        text = "" if isinstance(what, bool) or not isinstance(what, int | float | str) else str(what).strip()
        if len(text) <= MAX_CHARS:
            if match := _NUMBER.fullmatch(text):
                return _rounded(text, float(text.replace(",", "")), match["decimals"])
            if (match := _DURATION.fullmatch(text)) and match.lastgroup:
                given = {unit: number for unit, number in match.groupdict().items() if number is not None}
                value = sum(float(number) * SECONDS[unit] for unit, number in given.items())
                last = given[match.lastgroup].partition(".")[2]
                return _rounded(text, value, last, SECONDS[match.lastgroup])
        raise validation_error(
            'is no figure; expected it as it was printed, such as "0.240", "1,803" or "6h54min"'
        )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.low <= self.value <= self.high:
            raise validation_error(
                f"low {self.low:g}, value {self.value:g}, high {self.high:g}: not in this order"
            )
        return self


def _rounded(text: str, value: float, decimals: str | None, unit: float = 1.0) -> dict[str, Any]:
    half = 0.5 * unit * 10.0 ** -len(decimals or "")
    return {"text": text, "value": value, "low": value - half, "high": value + half}
