"""Values of a metric that mean "no evaluation": 0, -1 or NaN."""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from ampcompare.runs import RunRecord
from ampcompare.runs.nested import is_number

PLACEHOLDERS = (0.0, -1.0)  # what programs write for a metric that was not evaluated, besides NaN
FAR_FROM_ZERO = 0.05  # of the largest result: a metric that falls to 0 comes closer before


def negative_placeholder(values: Iterable[float]) -> float | None:
    """Return the value of a percentage or fraction that means "no evaluation", None if there is none.

    It is the one negative value (-1) of a metric with other values that can all be percentages or fractions.
    """
    distinct = {*values}
    negative = {value for value in distinct if value < 0}
    return negative.pop() if len(negative) == 1 and max(distinct) >= 0 else None


def interleaved_placeholder(values: np.ndarray) -> float | None:
    """Return the value (0, -1 or NaN) of the rows in which a metric was not evaluated, None if there is none.

    Every second row, or more of them, must have this value between at least two results.
    """
    for placeholder in (*PLACEHOLDERS, math.nan):
        results = np.flatnonzero(~_is_value(values, placeholder))
        gaps = np.diff(results, prepend=-1)
        if 2 <= len(results) < len(values) and np.median(gaps) >= 2:
            return placeholder
    return None


def final_placeholder(values: np.ndarray) -> float | None:
    """Return the last value if it is exactly 0 or -1 and may mean "not evaluated", None otherwise.

    It may if the results before are far from 0, or for -1, if none of them is negative.
    """
    for placeholder in PLACEHOLDERS:
        results = values[values != placeholder]
        if not len(results) or values[-1] != placeholder:
            continue
        if placeholder == 0 and abs(results[-1]) >= FAR_FROM_ZERO * np.abs(results).max():
            return placeholder
        if placeholder < 0 and results.min() >= 0:
            return placeholder
    return None


def _is_value(values: np.ndarray, value: float) -> np.ndarray:
    return np.isnan(values) if math.isnan(value) else values == value


def without_value(run: RunRecord, key: str, value: float) -> RunRecord:
    """Return the run without one value of a key, in its rows and its summary."""
    rows, values = run.logged_numbers(key)
    is_kept = ~_is_value(values, value)
    logged = {name: column for name, column in run.logged.items() if name != key}
    if is_kept.any():
        logged[key] = (rows[is_kept], values[is_kept])
    summary = dict(run.summary)
    last: Any = summary.get(key)
    if is_number(last) and _is_value(np.array(float(last)), value):
        del summary[key]
    return replace(run, summary=summary, logged=logged)
