"""The axis of a column of the comparison table, with ticks; only the widest intervals leave it."""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ampcompare.analysis.statistics.estimate import Estimate

MAX_TICKS = 4
MIN_GAP = 0.3  # between two ticks, as a fraction of the axis
CHARACTER_WIDTH = 0.055  # of a label, as a fraction of the narrowest axis on a page
MIN_ZONE = 0.05  # width of a margin that a reader sees, as a fraction of the axis
# A shorter axis has no room for ticks in double precision.
MIN_SPAN = 1e-300
MIN_LOG_SPAN = 1e-9
EDGE = 0.1  # free at either end for half a label, as a fraction of the span
REACH = 100  # from the outermost values, as a ratio: an end of an interval beyond it becomes an arrow
MAX_RATIO = 1e250  # a larger ratio, or one below the inverse, counts as infinite or 0
WIDE_RATIO = 4.0  # of the ends: a wider axis has ticks at 1, 2, 5, 10 in place of even steps


@dataclass(frozen=True)
class Axis:
    """The axis of one column.

    Attributes:
        null: The value of no change.
        margin: The zone within which a difference counts as none; None where there is no margin.
        log: Whether the scale is logarithmic, as for ratios.
        low: The left end.
        high: The right end.
        ticks: Values with their labels.
    """

    null: float
    margin: tuple[float, float] | None
    log: bool
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]

    def position(self, value: float) -> float:
        """Return where a value lies, from 0 to 1; a value beyond an end lies at that end."""
        low, high, at = (_scaled(v, self.log) for v in (self.low, self.high, value))
        return min(1.0, max(0.0, (at - low) / (high - low)))

    @property
    def has_visible_zone(self) -> bool:
        """Return whether the margin is wide enough on the axis for a reader to see it."""
        if self.margin is None:
            return False
        low, high = self.margin
        return self.position(high) - self.position(low) >= MIN_ZONE

    def contains(self, value: float) -> bool:
        """Return whether a value lies on the axis; an interval that leaves it ends in an arrow."""
        return self.low <= value <= self.high


def make_axis(
    marks: Sequence[Estimate],
    null: float,
    label: Callable[[float], str],
    *,
    log: bool,
    margin: tuple[float, float] | None = None,
    least: float = 0.0,
) -> Axis:
    """Return the axis on which these estimates lie with their intervals.

    Args:
        marks: At least one; an end of an interval far beyond all values is not on the axis.
        null: The value of no change, which is on the axis.
        label: Returns the label of a tick.
        log: Whether the scale is logarithmic.
        margin: The zone within which a difference counts as none, which is on the axis.
        least: How far the axis reaches from no change at least: as a fraction of a ratio, else in the unit of
            the estimates. Without it, noise would fill an axis on which nothing else is.
    """
    narrowest = (null - least, null + least)
    dots = [_scaled(value, log) for value in (null, *(margin or narrowest), *(mark.value for mark in marks))]
    ends = [_scaled(end, log) for mark in marks for end in mark.span]
    reach = math.log(REACH) if log else sys.float_info.max
    least = min(dots) - reach
    most = max(dots) + reach
    points = dots + [end for end in ends if least <= end <= most]
    low = min(points)
    high = max(points)
    if high - low < (MIN_LOG_SPAN if log else MIN_SPAN):
        low -= 0.1
        high += 0.1
    edge = EDGE * (high - low)
    low -= edge
    high += edge
    if log:
        low = math.exp(low)
        high = math.exp(high)
    axis = Axis(null, margin, log, low, high, ticks=())
    ticks = next((ticks for ticks in _candidates(axis) if _are_readable(ticks, axis, label)), (null,))
    return replace(axis, ticks=tuple((tick, label(tick)) for tick in ticks))


def _candidates(axis: Axis) -> Iterator[tuple[float, ...]]:
    """Yield sets of ticks, those with more ticks first.

    Ticks are multiples of 1, 2, 2.5 or 5 times a power of ten, counted from no change. An axis with a wide
    range of ratios has 1, 2, 5 and 10, or 1, 3 and 10, or powers of ten.
    """
    if axis.log and axis.high / axis.low > WIDE_RATIO:
        first = math.floor(math.log10(axis.low))
        last = math.ceil(math.log10(axis.high))
        for factors, every in (((1, 2, 5), 1), ((1, 3), 1), ((1,), 1), ((1,), math.ceil((last - first) / 3))):
            powers = [power for power in range(first, last + 1) if power % every == 0]
            values = [float(f"{factor}e{power}") for power in powers for factor in factors]
            yield tuple(value for value in values if axis.contains(value))
        return
    span = axis.high - axis.low
    smallest = math.floor(math.log10(span)) - 1
    for exponent in range(smallest, smallest + 4):
        for factor in (1, 2, 2.5, 5):
            step = factor * 10.0**exponent
            first = math.ceil((axis.low - axis.null) / step)
            last = math.floor((axis.high - axis.null) / step)
            yield tuple(axis.null + n * step for n in range(first, last + 1))


def _are_readable(ticks: Sequence[float], axis: Axis, label: Callable[[float], str]) -> bool:
    """Return whether the ticks are few, and their centred labels do not touch."""
    if not 1 < len(ticks) <= MAX_TICKS:
        return False
    widths = [(len(label(tick)) + 1) * CHARACTER_WIDTH for tick in ticks]
    gaps = [axis.position(b) - axis.position(a) for a, b in pairwise(ticks)]
    needed = [max(MIN_GAP, (a + b) / 2) for a, b in pairwise(widths)]
    return all(gap >= minimum for gap, minimum in zip(gaps, needed, strict=True))


def _scaled(value: float, log: bool) -> float:
    if not log:
        return value
    if 1 / MAX_RATIO < value < MAX_RATIO:
        return math.log(value)
    return math.copysign(math.inf, value - 1)
