"""Words as a reader wants them: in lists, counted, short and printable."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

# Between a number and what it counts, and within `n = 3`: where a line of a page must not end.
UNITS = r"%|points?|seeds?|runs?|images?|samples?|steps?|epochs?|rounds?|[GM]iB|k?J|m?s|min|h"
BETWEEN = re.compile(rf"(?<=[\d∞]) (?=(?:{UNITS})(?!\w))|(?<=\bn) (?== \d)|(?<=\bn =) (?=\d)|(?<=%) (?=CI\b)")


def unbroken(text: str) -> str:
    """Return the text with no-break spaces between numbers and their units.

    >>> unbroken("74 % less memory at n = 3").split(" ")
    ['74\\xa0%', 'less', 'memory', 'at', 'n\\xa0=\\xa03']
    """
    return BETWEEN.sub("\N{NO-BREAK SPACE}", text)


def plural(n: int, noun: str) -> str:
    """`1 run`, `3 runs`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def listed(items: Any) -> str:
    """`a`, `a and b`, `a, b and c`."""
    words = [str(item) for item in items]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""


def some(names: Sequence[str], limit: int = 5) -> str:
    """The names, of many the first and how many more."""
    if len(names) <= limit:
        return listed(names)
    return f"{', '.join(names[:limit])} and {len(names) - limit} more"


def by_reason(pairs: Iterable[tuple[str, str]], limit: int = 5) -> list[tuple[str, str]]:
    """Of (name, reason) those of one reason together: `("seed 1 and seed 2", "failed: exit code 1")`."""
    found: dict[str, list[str]] = {}
    for name, why in pairs:
        found.setdefault(why, []).append(name)
    return [(some(names, limit), why) for why, names in found.items()]


def by_size(value: str) -> tuple[int, float, str]:
    """What sorts numbers by their size, before everything else in the order of the alphabet."""
    try:
        return 0, float(value), ""
    except ValueError:
        return 1, 0.0, value


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def short(text: str, limit: int = 60) -> str:
    """The text, cut where it is longer than `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def printable(text: object) -> str:
    """The text without control characters and terminal escapes."""
    plain = str(text).replace("\N{NO-BREAK SPACE}", " ")
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in plain)
