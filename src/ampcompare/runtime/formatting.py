"""Format text and numbers for a reader: lists, counts, few digits, units, a dash for what is missing."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

NOTHING = "–"
NO_SPREAD = "no spread"  # an interval of values that are all equal
MAX_WHOLE_DIGITS = 9  # numbers of 10**10 and more are shown in powers of ten
MAX_DIGITS = 7  # the most that are shown to distinguish two values
ROUNDING = 1e-9  # a smaller difference counts as none


def number(value: float | None, digits: int = 3) -> str:
    """Format a number with `digits` significant digits: `1,204`, `36.5`, `0.0123`.

    Digits before the decimal point are always shown.
    """
    if value is None:
        return NOTHING
    if value == 0:
        return "0"
    if not math.isfinite(value):  # the end of an unbounded interval
        return "∞" if value > 0 else "−∞"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])  # after rounding: 9.999 counts as 10.0
    if not -4 <= exponent <= MAX_WHOLE_DIGITS:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - exponent)}f}"


def count(value: float) -> str:
    """Format a whole number; others keep two decimals, and below 1 three digits, as `3.05e-05`."""
    if not math.isfinite(value):
        return number(value)
    if value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.2f}" if abs(value) >= 1 else f"{value:.3g}"


def in_percent(value: float) -> str:
    """Format a value that is in percent already, as `93.62%`."""
    return f"{value:.2f}%"


def ratio(value: float) -> str:
    """Format a ratio: `1.90×`."""
    return f"{number(value)}×"


def signed(value: float) -> str:
    """Format a difference without an interval, with two decimals or two digits: `+0.32`, `−0.0041`."""
    if abs(value) < ROUNDING or abs(value) >= 0.005:
        return signed_fixed(value, 2)
    return f"{'+' if value > 0 else '−'}{number(abs(value), 2)}"


def signed_fixed(value: float, decimals: int) -> str:
    """Format a difference with its sign and so many decimals: `+0.32`; `±0.00` if it rounds to 0."""
    if not math.isfinite(value):
        return f"+{number(value)}" if value > 0 else number(value)
    text = amount(value, decimals)
    if float(text) == 0:
        return f"±{text}"
    return f"{'+' if value > 0 else '−'}{text}"


def decimals_of_interval(ends: Sequence[float], marks: Sequence[float], least: int) -> int:
    """Return the decimals with which an interval is shown, and the value that it belongs to.

    They follow the width of the interval, of which one digit is shown: more would claim a precision that the
    interval denies. At most two are added to `least`, unless both ends are smaller than that shows, or an end
    would look like a mark.

    Args:
        ends: The two ends.
        marks: The values to tell the ends from, such as no change and a margin.
        least: The lowest result.

    Returns:
        `least` to MAX_DIGITS.

    >>> decimals_of_interval((-0.31, 0.30), (0.0,), 2), decimals_of_interval((0.0012, 0.0034), (0.0,), 2)
    (2, 3)
    """
    width = max(ends) - min(ends)
    decimals = least
    if 0 < width < math.inf:
        is_tiny = max(map(abs, ends)) < 0.5 * 10 ** -(least + 2)
        most = MAX_DIGITS if is_tiny else least + 2
        decimals = min(most, max(least, -math.floor(math.log10(width))))
    return digits_to_distinguish(ends, marks, signed_fixed, decimals)


def digits_to_distinguish(
    ends: Sequence[float | None], marks: Sequence[float], show: Callable[[float, int], str], least: int
) -> int:
    """Return the digits at which `show` tells each end of an interval from each mark.

    A reader then sees that an interval excludes a mark.

    Args:
        ends: The ends of the interval; None: no end.
        marks: The values to tell them from.
        show: Formats a value with a number of digits.
        least: The lowest result.

    Returns:
        `least` to MAX_DIGITS; MAX_DIGITS if the values are closer than that.
    """
    pairs = [(end, mark) for end in ends for mark in marks if end is not None and end != mark]
    for digits in range(least, MAX_DIGITS):
        if all(show(end, digits) != show(mark, digits) for end, mark in pairs):
            return digits
    return MAX_DIGITS


def amount(value: float, decimals: int) -> str:
    """Format the magnitude of a value; with two digits if no decimals would show it."""
    text = f"{abs(value):.{decimals}f}"
    return number(abs(value), 2) if value and decimals >= MAX_DIGITS and float(text) == 0 else text


def interval(low: float | None, high: float | None, show: Callable[[float], str]) -> str:
    """Format an interval as `1.88 to 1.92`; "" without one, `no spread` if both ends are equal."""
    if low is None or high is None:
        return ""
    return f"{show(low)} to {show(high)}" if low != high else NO_SPREAD


def between(low: float | None, high: float | None, show: Callable[[float], str]) -> str:
    """Format an interval to follow a value, as ` (1.88 to 1.92)`; "" without one."""
    span = interval(low, high, show)
    return f" ({span})" if span else ""


def level(confidence: float) -> str:
    """Format a confidence level: `95%`, `98.33%`."""
    return f"{round(confidence * 100, 2):g}%"


def duration(seconds: float) -> str:
    """Format a duration: `48 s`, `12 min 5 s`, `2 h 3 min`."""
    if seconds < 0:
        return NOTHING
    if not math.isfinite(seconds):
        return f"{number(seconds)} s"
    whole = round(seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def rough_duration(seconds: float) -> str:
    """Format an estimated duration in the unit that suits it: `40 s`, `12 min`, `2.5 h`."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 5400:
        return f"{round(seconds / 60)} min"
    return f"{number(seconds / 3600, 2)} h"


def whole_percent(fraction: float) -> str:
    """Format a fraction in whole percent: `36%`, and `below 1%` for a small one above 0."""
    whole = f"{100 * fraction:.0f}"
    return "below 1%" if fraction > 0 and whole == "0" else f"{whole}%"


# Where a line of a page must not break: between a number and its unit, and within `n = 3`.
UNITS = r"points?|seeds?|runs?|images?|samples?|steps?|epochs?|rounds?|[GM]iB|k?J|m?s|min|h"
BETWEEN = re.compile(rf"(?<=[\d∞]) (?=(?:{UNITS})(?!\w))|(?<=\bn) (?== \d)|(?<=\bn =) (?=\d)|(?<=%) (?=CI\b)")


def unbroken(text: str) -> str:
    r"""Return the text with no-break spaces between numbers and their units.

    >>> unbroken("74% less memory at n = 3").split(" ")
    ['74%', 'less', 'memory', 'at', 'n\xa0=\xa03']
    """
    return BETWEEN.sub("\N{NO-BREAK SPACE}", text)


def plural(n: int, noun: str) -> str:
    """Format a number and its noun: `1 run`, `3 runs`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def count_range(low: int, high: int) -> str:
    """Format a range of counts: `4 to 9`, or `5` if both ends are equal."""
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def listed(items: Any) -> str:
    """Join items as `a`, `a and b`, `a, b and c`."""
    texts = [str(item) for item in items]
    if len(texts) < 2:
        return "".join(texts)
    return f"{', '.join(texts[:-1])} and {texts[-1]}"


def some(names: Sequence[str], limit: int = 5) -> str:
    """Join the first names, and say how many more there are."""
    if len(names) <= limit:
        return listed(names)
    return f"{', '.join(names[:limit])} and {len(names) - limit} more"


def group_by_reason(pairs: Iterable[tuple[str, str]], limit: int = 5) -> list[tuple[str, str]]:
    """Group (name, reason) pairs by reason: `("seed 1 and seed 2", "failed: exit code 1")`."""
    groups: dict[str, list[str]] = {}
    for name, why in pairs:
        groups.setdefault(why, []).append(name)
    return [(some(names, limit), why) for why, names in groups.items()]


def numeric_sort_key(value: str) -> tuple[int, float, str]:
    """Return a sort key: numbers by size, then other texts in alphabetical order."""
    try:
        return 0, float(value), ""
    except ValueError:
        return 1, 0.0, value


def capital(text: str) -> str:
    """Return the text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def short(text: str, limit: int = 60) -> str:
    """Return the text, cut if it is longer than `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def printable(text: object) -> str:
    """Return the text without control characters and terminal escapes."""
    plain = str(text).replace("\N{NO-BREAK SPACE}", " ")
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in plain)
