"""Several claims of one question, tested together: the chance of a single false one is held."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Tested:
    """A claim within its family: `rejected` says whether its null hypothesis is.

    `level` is the one at which it was tested: the interval at 1 - `level` leaves the null out exactly where
    it is rejected. `adjusted_p` is the smallest level of the whole family at which it is rejected.
    """

    level: float
    adjusted_p: float
    rejected: bool


def holm(p_values: Mapping[Hashable, float], alpha: float = 0.05) -> dict[Hashable, Tested]:
    """Holm's step-down test (1979): the family's error is at most `alpha`, whatever depends on what.

    The smallest p is tested at alpha/k, the next at alpha/(k - 1), and so on until one fails; that one and
    all behind it are not rejected, at the level of the first that failed. A p that is NaN counts as 1: the
    claim is in the family, and nothing is shown of it. Of equal ones the first given comes first.
    """
    known = {key: 1.0 if math.isnan(p) else p for key, p in p_values.items()}
    k, found, largest, failed = len(known), {}, 0.0, 0.0
    for rank, key in enumerate(sorted(known, key=lambda key: known[key])):
        level = failed or alpha / (k - rank)
        rejected = not failed and known[key] < level
        failed = failed or (0.0 if rejected else level)
        largest = min(1.0, max(largest, (k - rank) * known[key]))
        found[key] = Tested(level, largest, rejected)
    return {key: found[key] for key in p_values}
