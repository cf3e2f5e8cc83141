"""The axis of a column of the comparison, with ticks to read it by: it holds all but the widest intervals."""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ampcompare.analysis.statistics.estimate import Estimate

MOST_TICKS = 4
LEAST_GAP = 0.3  # of the axis, between two ticks
CHARACTER = 0.055  # of the narrowest axis on a page: the width of a label's character
LEAST_SPAN, LEAST_OF_LOGS = 1e-300, 1e-9  # below it ticks run out of digits
EDGE = 0.1  # of the axis, left free at either end: half a label
REACH = 100  # times the largest figure: an end of an interval beyond it is an arrow, and said in words alone
LARGEST = 1e250  # of a ratio; beyond it, and below its inverse, is no end at all
DECADES = 4.0  # a range of ratios from which ticks are 1, 2, 5, 10 and not steps of one size


@dataclass(frozen=True)
class Axis:
    """From `low` to `high`, on a logarithmic scale for ratios; `null` is the line of no change, `margin` the
    zone within which a difference counts as none.
    """

    null: float
    margin: tuple[float, float] | None
    log: bool
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]

    def place(self, value: float) -> float:
        """Where a value lies, 0 to 1; what is beyond an end, at that end."""
        low, high, at = (_scaled(v, self.log) for v in (self.low, self.high, value))
        return min(1.0, max(0.0, (at - low) / (high - low)))

    def holds(self, value: float) -> bool:
        """Whether a value is on it; where an end of a mark is not, an arrow says so."""
        return self.low <= value <= self.high


def axis_of(
    marks: Sequence[Estimate],
    null: float,
    label: Callable[[float], str],
    *,
    log: bool,
    margin: tuple[float, float] | None = None,
) -> Axis:
    """The axis on which these lie with their spans, with no change and the margin; `label` words a tick's
    value.
    """
    dots = [_scaled(v, log) for v in (null, *(margin or ()), *(mark.value for mark in marks))]
    spans = [_scaled(end, log) for mark in marks for end in mark.span]
    reach = math.log(REACH) if log else sys.float_info.max
    ends = dots + [end for end in spans if min(dots) - reach <= end <= max(dots) + reach]
    low, high = min(ends), max(ends)
    if high - low < (LEAST_OF_LOGS if log else LEAST_SPAN):
        low, high = low - 0.1, high + 0.1
    low, high = low - EDGE * (high - low), high + EDGE * (high - low)
    first, last = (math.exp(low), math.exp(high)) if log else (low, high)
    bare = Axis(null, margin, log, first, last, ())
    ticks = next((found for found in _candidates(bare) if _fits(found, bare, label)), (null,))
    return Axis(null, margin, log, first, last, tuple((tick, label(tick)) for tick in ticks))


def _candidates(axis: Axis) -> Iterator[tuple[float, ...]]:
    """Ticks, more of them first: multiples of 1, 2, 2.5 and 5 away from no change; of a wide range of ratios
    1, 2, 5 and 10, or 1, 3 and 10, and then powers of ten alone.
    """
    if axis.log and axis.high / axis.low > DECADES:
        first, last = math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high))
        for factors, every in (((1, 2, 5), 1), ((1, 3), 1), ((1,), 1), ((1,), math.ceil((last - first) / 3))):
            powers = [p for p in range(first, last + 1) if p % every == 0]
            yield tuple(v for p in powers for f in factors if axis.holds(v := float(f"{f}e{p}")))
        return
    span = axis.high - axis.low
    smallest = math.floor(math.log10(span)) - 1
    for exponent in range(smallest, smallest + 4):
        for factor in (1, 2, 2.5, 5):
            step = factor * 10.0**exponent
            first, last = (
                math.ceil((axis.low - axis.null) / step),
                math.floor((axis.high - axis.null) / step),
            )
            yield tuple(axis.null + n * step for n in range(first, last + 1))


def _fits(ticks: Sequence[float], axis: Axis, label: Callable[[float], str]) -> bool:
    """Whether the ticks are few, and their labels, each in the middle of its tick, do not touch."""
    if not 1 < len(ticks) <= MOST_TICKS:
        return False
    widths = [(len(label(tick)) + 1) * CHARACTER for tick in ticks]
    gaps = [axis.place(b) - axis.place(a) for a, b in pairwise(ticks)]
    needed = [max(LEAST_GAP, (a + b) / 2) for a, b in pairwise(widths)]
    return all(gap >= least for gap, least in zip(gaps, needed, strict=True))


def _scaled(value: float, log: bool) -> float:
    if not log:
        return value
    return math.log(value) if 1 / LARGEST < value < LARGEST else math.copysign(math.inf, value - 1)
