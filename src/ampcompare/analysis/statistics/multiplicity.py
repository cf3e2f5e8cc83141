"""Confidence levels for several comparisons and looks, and intervals of proportions."""

from dataclasses import dataclass

from scipy.special import betaincinv

from ampcompare.analysis.statistics.estimate import ALPHA


def joint_level(groups: int, share: float = 1.0) -> float:
    """Return the level of each interval at which all intervals hold together in 95% (Bonferroni).

    Args:
        groups: Number of distinct groups that are compared with the baseline.
        share: The fraction of the error that is spent on this look, 0..1.

    >>> f"{joint_level(3):.4f} {joint_level(2, share=0.8):.4f}"
    '0.9833 0.9800'
    """
    return 1 - ALPHA * share / max(1, groups)


def highest_failure_rate(good_runs: int) -> float:
    """Return the highest rate of failure that so many good runs in a row do not exclude, at 95%.

    >>> f"{highest_failure_rate(5):.2f}"
    '0.45'
    """
    return 1 - ALPHA ** (1 / good_runs)


@dataclass(frozen=True)
class Proportion:
    """A proportion `k` of `n` with its exact 95% interval (Clopper and Pearson 1934), as fractions 0..1."""

    k: int
    n: int
    low: float
    high: float


def estimate_proportion(k: int, n: int) -> Proportion:
    """Return the proportion `k` of `n` with its exact 95% interval.

    >>> found = estimate_proportion(3, 5)
    >>> f"{found.low:.3f} to {found.high:.3f}"
    '0.147 to 0.947'
    """
    low = float(betaincinv(k, n - k + 1, ALPHA / 2)) if k else 0.0
    high = float(betaincinv(k + 1, n - k, 1 - ALPHA / 2)) if k < n else 1.0
    return Proportion(k, n, low, high)
