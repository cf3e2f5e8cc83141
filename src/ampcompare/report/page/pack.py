"""Chart rows in a sixth of their JSON: neighbours that share their words give them once."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from ampcompare.report.charts.series import Datum

Part = tuple[dict[str, str], dict[str, list[Any]]]


def pack(rows: Iterable[Datum]) -> list[Part]:
    """Parts of (texts that all its rows share, a list of values for each other field), in order."""
    parts = []
    for key, members in groupby(rows, _shape):
        alike = list(members)
        texts, names = dict(key[0]), key[1]
        parts.append((texts, {name: [row[name] for row in alike] for name in names}))
    return parts


def _shape(row: Datum) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    texts = tuple((name, value) for name, value in row.items() if isinstance(value, str))
    return texts, tuple(name for name, value in row.items() if not isinstance(value, str))
