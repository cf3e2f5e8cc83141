"""A share with its exact interval: how many of the runs failed, and how many might."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Proportion:
    """`k` of `n`: the share and its interval, fractions 0..1. Of none there is no share; all is possible."""

    k: int
    n: int
    share: float | None
    low: float
    high: float
    method: str = "exact (Clopper-Pearson)"
    confidence: float = 0.95


def clopper_pearson(k: int, n: int, confidence: float = 0.95) -> Proportion:
    """The exact interval of a share (Clopper and Pearson 1934), from the quantiles of the beta distribution.

    >>> found = clopper_pearson(3, 5)
    >>> f"{found.low:.3f} to {found.high:.3f}"
    '0.147 to 0.947'
    """
    from scipy.special import betaincinv

    if not 0 <= k <= n:
        raise ValueError(f"{k} of {n}: expected 0 <= k <= n")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence}: expected a number between 0 and 1")
    tail = (1 - confidence) / 2
    low = float(betaincinv(k, n - k + 1, tail)) if k else 0.0
    high = float(betaincinv(k + 1, n - k, 1 - tail)) if k < n else 1.0
    return Proportion(k, n, k / n if n else None, low, high, confidence=confidence)
