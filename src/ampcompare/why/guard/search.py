"""The smallest set of things that cures, found by asking few times: bisection, culprit after culprit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Ask = Callable[[list[tuple[str, ...]]], list[bool]]


def minimal(items: Sequence[str], ask: Ask, *, at_once: int = 1) -> list[str]:
    """A set of `items` that cures and of which none can be left out, in their order.

    `ask` is given sets and says of each whether it cures; all items are known to, none at all is known not
    to, and neither is asked. `at_once` sets are asked together, for whom that costs no more time. Where more
    of the items never do harm, the set is minimal. Where they do, or the answers are noisy, it is a set that
    cured when it was asked.

    Bisection over how many of the items, from the first on, are enough: the last of these is needed. Then the
    same over those before it, the found one being there each time, until the found ones are enough alone
    (as delta debugging does, Zeller & Hildebrandt 2002, with Junker's order, QuickXplain 2004). With k in the
    result it takes at most k times (log2 of the items, rounded up, plus 1) sets at one a time: for one and
    three items or more no more than 2 log2.

    >>> asked = []
    >>> def ask(sets):
    ...     asked.extend(sets)
    ...     return [{"b", "f"} <= {*one} for one in sets]
    >>> minimal("abcdefgh", ask), len(asked)
    (['b', 'f'], 7)
    """
    found: list[str] = []
    enough = len(items)  # so many from the first on, with the found ones, are known to cure
    while enough:  # none left: the found ones are what cured last
        if found and ask([_in_order(items, found)])[0]:
            break
        too_few = 0  # and so many not
        while enough - too_few > 1:
            counts = _between(too_few, enough, at_once)
            answers = ask([_in_order(items, [*items[:count], *found]) for count in counts])
            for count, cures in zip(counts, answers, strict=True):
                if cures:
                    enough = count
                    break
                too_few = count
        enough -= 1
        found.append(items[enough])
    return list(_in_order(items, found))


def _between(low: int, high: int, at_once: int) -> list[int]:
    """Up to `at_once` whole numbers above low and below high, evenly."""
    pieces = at_once + 1
    places = ((low * (pieces - i) + high * i) // pieces for i in range(1, pieces))
    return sorted({place for place in places if low < place < high} or {low + 1})


def _in_order(items: Sequence[str], chosen: Sequence[str]) -> tuple[str, ...]:
    return tuple(item for item in items if item in {*chosen})
