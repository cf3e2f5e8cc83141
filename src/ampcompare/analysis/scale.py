"""Format an estimate relative to a baseline: a ratio, a change in percent, or a difference.

The ends of an interval have enough digits to tell them from no change and from other marks, such as a margin
or the bound of a requirement. The value has as many.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ampcompare.analysis.statistics.estimate import Estimate
from ampcompare.runtime import formatting

MIN_DECIMALS = 2  # of a difference in quality


@dataclass(frozen=True)
class Scale:
    """The way in which estimates of one kind are written.

    Attributes:
        null: The estimate of no change.
        show: Formats a number with a number of digits.
        digits: Returns the number of digits for a number, its interval, and the values to tell the ends of
            the interval from.
        single: Formats a number that has no interval.
        sign: What comes behind the number.
        shown: Converts an estimate to the number that is shown.
    """

    null: float
    show: Callable[[float, int], str]
    digits: Callable[[float, Sequence[float], Sequence[float]], int]
    single: Callable[[float], str]
    sign: str = ""
    shown: Callable[[float], float] = float

    def value(self, estimate: Estimate, marks: Sequence[float] = ()) -> str:
        """Return the value as text, with the digits of its interval.

        Args:
            marks: Values to tell the ends of the interval from, besides no change.
        """
        number = self.shown(estimate.value)
        if has_no_spread(estimate) and not marks:
            return f"{self.single(number)}{self.sign}"
        return f"{self.show(number, self.digits_of(estimate, marks))}{self.sign}"

    def interval(self, estimate: Estimate, marks: Sequence[float] = ()) -> str:
        """Return the interval, or without one the observed range; `no spread` if both ends are equal.

        Args:
            marks: Values to tell the ends from, besides no change.
        """
        if has_no_spread(estimate):
            return formatting.NO_SPREAD
        digits = self.digits_of(estimate, marks)
        low, high = (self.shown(end) for end in estimate.span)
        return formatting.interval(low, high, lambda end: self.show(end, digits))

    def confidence_interval(self, estimate: Estimate, marks: Sequence[float] = ()) -> str:
        """Return the interval with its level: `95% CI 1.88 to 1.92`; `no spread` if both ends are equal."""
        interval = self.interval(estimate, marks)
        return interval if has_no_spread(estimate) else f"{formatting.level(estimate.level)} CI {interval}"

    def value_and_interval(self, estimate: Estimate) -> str:
        """Return `−41% (95% CI −43 to −39)`; the value alone if there is no interval."""
        if not estimate.has_interval:
            return self.value(estimate)
        return f"{self.value(estimate)} ({self.confidence_interval(estimate)})"

    def digits_of(self, estimate: Estimate, marks: Sequence[float] = ()) -> int:
        """Return the digits that tell the ends of the interval from no change and from the marks."""
        ends = [self.shown(end) for end in estimate.span]
        if has_no_spread(estimate):
            ends = [self.shown(estimate.value)] * 2
        all_marks = [self.shown(mark) for mark in (self.null, *marks)]
        return self.digits(self.shown(estimate.value), ends, all_marks)


def has_no_spread(estimate: Estimate) -> bool:
    """Return whether both ends of the interval are the same number, up to rounding errors."""
    low, high = estimate.span
    return math.isclose(low, high, rel_tol=formatting.ROUNDING)


def _decimals_of_change(percent: float) -> int:
    return int(abs(percent) < 9.95)


RATIO = Scale(
    null=1.0,
    show=formatting.number,
    digits=lambda shown, ends, marks: formatting.digits_to_distinguish(
        ends, [*ends, *marks], formatting.number, 3
    ),
    single=formatting.number,
    sign="×",
)
CHANGE = Scale(
    null=1.0,
    show=formatting.signed_fixed,
    digits=lambda shown, ends, marks: formatting.decimals_of_interval(
        ends, marks, _decimals_of_change(shown)
    ),
    single=lambda shown: formatting.signed_fixed(shown, _decimals_of_change(shown)),
    sign="%",
    shown=lambda ratio: (ratio - 1) * 100,
)
DIFFERENCE = Scale(
    null=0.0,
    show=formatting.signed_fixed,
    digits=lambda shown, ends, marks: formatting.decimals_of_interval(ends, marks, MIN_DECIMALS),
    single=formatting.signed,
)
