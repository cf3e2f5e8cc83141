"""Chart rows in a sixth of their JSON: rows in a row that share their words give them once, numbers go in
columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from ampcompare.report.charts.series import Datum

Part = tuple[dict[str, str], dict[str, list[Any]]]


def pack(rows: Iterable[Datum]) -> list[Part]:
    """Parts of (texts that all its rows share, a list of values for each other field), in the order of the
    rows.
    """
    parts = []
    for key, members in groupby(rows, _shape):
        alike = list(members)
        texts, names = dict(key[0]), key[1]
        parts.append((texts, {name: [row[name] for row in alike] for name in names}))
    return parts


def unpack(parts: Iterable[Part]) -> list[Datum]:
    """The rows again; the page does the same in its script."""
    rows = []
    for texts, columns in parts:
        for values in zip(*columns.values(), strict=True):
            rows.append({**texts, **dict(zip(columns, values, strict=True))})
    return rows


def _shape(row: Datum) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    texts = tuple((name, value) for name, value in row.items() if isinstance(value, str))
    return texts, tuple(name for name, value in row.items() if not isinstance(value, str))
