"""The report's rules for many experiments at once, in NumPy. `test_rules.py` holds each to the real function.

An array's first axis is the experiments, its last the runs. Sides have the same number of runs.
"""

from __future__ import annotations

import numpy as np
from scipy.special import stdtr, stdtrit


def paired(differences: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Mean, standard error and degrees of freedom of paired differences."""
    n = differences.shape[-1]
    return differences.mean(-1), differences.std(-1, ddof=1) / np.sqrt(n), n - 1


def welch(ours: np.ndarray, theirs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same of two means that nothing pairs."""
    parts = [side.var(-1, ddof=1) / side.shape[-1] for side in (ours, theirs)]
    squares = sum(p**2 / (side.shape[-1] - 1) for p, side in zip(parts, (ours, theirs), strict=True))
    return ours.mean(-1) - theirs.mean(-1), np.sqrt(parts[0] + parts[1]), (parts[0] + parts[1]) ** 2 / squares


def partly_paired(
    ours: np.ndarray, theirs: np.ndarray, pairs: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same where the first `pairs` runs of both sides have a partner (Derrick 2017)."""
    value, error, gamma = welch(ours, theirs)
    if pairs < 3:
        return value, error, gamma
    a, b = (side[:, :pairs] - side[:, :pairs].mean(-1, keepdims=True) for side in (ours, theirs))
    r = (a * b).sum(-1) / np.sqrt((a**2).sum(-1) * (b**2).sum(-1))
    n, m = ours.shape[-1], theirs.shape[-1]
    shared = 2 * r * ours.std(-1, ddof=1) * theirs.std(-1, ddof=1) * pairs / (n * m)
    alone = n + m - 2 * pairs
    return value, np.sqrt(error**2 - shared), pairs - 1 + (gamma - pairs + 1) / (alone + 2 * pairs) * alone


def p_two_sided(value: np.ndarray, error: np.ndarray, df: np.ndarray | int) -> np.ndarray:
    """Of the test that the truth is 0."""
    return 2 * stdtr(df, -np.abs(value) / error)


def p_equivalent(value: np.ndarray, error: np.ndarray, df: np.ndarray | int, margin: float) -> np.ndarray:
    """Of the two one-sided tests that the truth lies within the margin."""
    return stdtr(df, -(margin - np.abs(value)) / error)


def half_width(error: np.ndarray, df: np.ndarray | int, level: np.ndarray | float = 0.05) -> np.ndarray:
    """Of the interval at 1 - `level`."""
    return stdtrit(df, 1 - np.asarray(level) / 2) * error


def holm(p: np.ndarray, alpha: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    """For each experiment (first axis) and claim: the level at which it was tested, and whether rejected."""
    k = p.shape[-1]
    order = np.argsort(p, axis=-1, kind="stable")
    steps = alpha / (k - np.arange(k))
    failed = np.logical_or.accumulate(np.take_along_axis(p, order, -1) >= steps, axis=-1)
    first = np.where(failed.any(-1), failed.argmax(-1), k - 1)
    levels = np.where(failed, steps[first][:, None], steps[None, :])
    found = np.empty_like(p), np.empty(p.shape, dtype=bool)
    np.put_along_axis(found[0], order, levels, -1)
    np.put_along_axis(found[1], order, ~failed, -1)
    return found
