"""Join tables that each have some metrics of one run, step by step."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ampcompare import metrics
from ampcompare.runs.run_record import Column, RunRecord, concatenate_columns


def join_rows(parts: Sequence[RunRecord]) -> RunRecord:
    """Return the parts of one run with all rows. Rows of one step become one row.

    Where the steps of a part go back, its rows follow those of the part before.
    """
    first = parts[0]
    pieces: dict[str, list[Column]] = {}
    numbers, count = _row_numbers(parts)
    for part, new in zip(parts, numbers, strict=True):
        for key, (rows, values) in part.logged.items():
            pieces.setdefault(key, []).append((new[rows], values))
    logged: dict[str, Column] = {}
    for key, columns in pieces.items():
        rows, values = concatenate_columns(columns)
        unique, index = np.unique(rows, return_index=True)
        logged[key] = unique, values[index]
    config: dict[str, object] = {}
    for part in reversed(parts):
        config |= part.config
    return replace(
        first,
        rows=count,
        logged=logged,
        config=config,
        problems=list(dict.fromkeys(problem for part in parts for problem in part.problems)),
        units={key: unit for part in parts for key, unit in part.units.items()},
        paths=tuple(path for part in parts for path in part.paths),
        last_write=max((part.last_write for part in parts if part.last_write), default=None),
        started_at=min((part.started_at for part in parts if part.started_at), default=None),
    )


def _row_numbers(parts: Sequence[RunRecord]) -> tuple[list[np.ndarray], int]:
    """Return for each part the new numbers of its rows, and the number of all rows."""
    steps = [part.numbers(metrics.STEP) for part in parts]
    is_ordered = all(np.isfinite(column).all() and (np.diff(column) >= 0).all() for column in steps)
    if not is_ordered:
        ends = np.cumsum([part.rows for part in parts])
        return [np.arange(end - part.rows, end) for part, end in zip(parts, ends, strict=True)], int(ends[-1])
    # A step that stands in several rows of one part keeps its rows apart.
    repeats = [np.arange(len(column)) - np.searchsorted(column, column) for column in steps]
    pairs = np.stack([np.concatenate(steps), np.concatenate(repeats)], axis=1)
    unique, inverse = np.unique(pairs, axis=0, return_inverse=True)
    ends = np.cumsum([len(column) for column in steps])[:-1]
    return np.split(inverse.reshape(-1), ends), len(unique)
