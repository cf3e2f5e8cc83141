"""Rows and summaries of thousands of records at once, with what one record at a time would give.

Numbers are converted a batch at a time and put into their columns a column at a time; of a summary, which
the client writes again behind every row, only the last value of each key is looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from ampcompare.records.decimals import read_decimals
from ampcompare.records.table import Table, name_of
from ampcompare.records.tree import Path, Tree, path_of
from ampcompare.wandb_client.protocol import Item
from ampcompare.wandb_client.wire import HISTORY, SUMMARY, Batch, Items

IS_NUMBERS_FIRST = np.zeros(256, bool)
IS_NUMBERS_FIRST[list(b"-0123456789")] = True
DECODER = json.JSONDecoder(parse_int=float)  # as `float` reads them: -0, or 5,000 digits


class Part:
    """A batch of records, with the keys of its items decoded.

    What protobuf would not decode, and rows in which a key comes twice, are left to it one by one.
    """

    def __init__(self, payloads: list[bytes]) -> None:
        self.batch = batch = Batch(payloads)
        self.paths = [_decoded(path) for path in batch.items.paths]
        self._leave([n for n, path in enumerate(self.paths) if path is None], batch.items.path)
        bad = [n for n in batch.not_ascii().tolist() if not self._is_text(n)]
        self._leave(bad, np.arange(len(batch.items.record)))
        self.names = [name_of(path) if path else "" for path in self.paths]
        numbers = {name: n for n, name in enumerate(dict.fromkeys(self.names))}
        self._column_of_path = np.array([numbers[name] for name in self.names], dtype=np.int64)
        self._sort_rows()
        record = self._rows.record[self._order]
        again = (np.diff(self._columns) == 0) & (np.diff(record) == 0)
        if again.any():
            batch.leave(record[1:][again])
            self._sort_rows()

    def _leave(self, bad: list[int], of: np.ndarray) -> None:
        if bad:
            self.batch.leave(self.batch.items.record[np.isin(of, bad)])

    def _is_text(self, number: int) -> bool:
        try:
            self._text(self.batch.items, number)
        except UnicodeDecodeError:
            return False
        return True

    def _text(self, items: Items, number: int) -> str:
        return self.batch.data[items.begin[number] : items.end[number]].decode()

    def _of(self, kind: int) -> Items:
        items = self.batch.items
        return items.take(self.batch.kinds[items.record] == kind)

    def _sort_rows(self) -> None:
        """The items of rows, an order that sorts them by column and row, and their columns so sorted."""
        self._rows = self._of(HISTORY)
        columns = self._column_of_path[self._rows.path]
        few = (
            columns.astype(np.int16) if len(self.names) < 2**15 else columns
        )  # sorted by radix: 10 times faster
        self._order = np.argsort(few, kind="stable")
        self._columns = columns[self._order]

    def add_rows(self, table: Table, plain: Mapping[int, Any]) -> None:
        """Add the rows of all history records; `plain` has those that protobuf decoded, by number."""
        items = self._rows
        is_row = self.batch.kinds == HISTORY
        is_row[list(plain)] = True
        row_of = table.rows + np.cumsum(is_row) - 1
        self._add_columns(table, items, plain)
        numbers, is_number = self._numbers(items)
        kept = is_number[self._order]
        order, columns = self._order[kept], self._columns[kept]
        rows, numbers = row_of[items.record[order]], numbers[order]
        ends = np.flatnonzero(np.diff(columns, append=-1)) + 1
        for begin, end in pairwise([0, *ends.tolist()]):
            name = self.names[items.path[order[begin]]]
            table.columns[name].put_numbers(rows[begin:end], numbers[begin:end])
        for n in np.flatnonzero(~is_number).tolist():
            table.put(int(row_of[items.record[n]]), self.names[items.path[n]], self._text(items, n))
        for n, history in plain.items():
            table.put_row(int(row_of[n]), history.item)
        table.rows += int(is_row.sum())

    def _add_columns(self, table: Table, items: Items, plain: Mapping[int, Any]) -> None:
        """Add columns for new keys, in the order in which they come."""
        first = np.full(len(self.names), -1)
        first[items.path[::-1]] = np.arange(len(items.path))[::-1]
        found = [
            (int(items.record[n]), n, self.names[path]) for path, n in enumerate(first.tolist()) if n >= 0
        ]
        for record, history in plain.items():
            found += [(record, n, name_of(path_of(item))) for n, item in enumerate(history.item)]
        for _, _, name in sorted(found):
            table.column(name)

    def _numbers(self, items: Items) -> tuple[np.ndarray, np.ndarray]:
        """The values as float64, and which of them are bare numbers; the others hold anything."""
        numbers, is_number = read_decimals(self.batch.bytes, items.begin, items.end)
        left = np.flatnonzero(~is_number & IS_NUMBERS_FIRST[self.batch.bytes[items.begin]])
        others = self._as_list(items.take(left))
        if others is not None:
            numbers[left], is_number[left] = others, True
        return numbers, is_number

    def _as_list(self, items: Items) -> np.ndarray | None:
        """Values that begin with a digit or a minus, as numbers, if all of them are numbers.

        As a JSON list: if that has as many elements as values, all of them numbers, then none of them holds a
        comma, so that each is one number.
        """
        try:
            found = DECODER.decode(f"[{self.batch.joined(items).decode()}]")
            numbers = np.array(found, dtype=np.float64)
        except (ValueError, TypeError, RecursionError):  # each is looked at by itself
            return None
        return numbers if numbers.shape == items.record.shape else None

    def apply_summaries(self, tree: Tree, plain: Iterable[tuple[int, Any]]) -> None:
        """Apply all summary records in order; `plain` has those that protobuf decoded, with their numbers."""
        items = self._of(SUMMARY)
        begin = 0
        for number, record in plain:
            end = int(np.searchsorted(items.record, number))
            self._write(tree, items, begin, end)
            tree.apply(record)
            begin = end
        self._write(tree, items, begin, len(items.record))

    def _write(self, tree: Tree, items: Items, begin: int, end: int) -> None:
        """Write the last value of each key among these items, in the order of these last values."""
        last = np.full(len(self.paths), -1)
        last[items.path[begin:end]] = np.arange(begin, end)  # of places given twice the last one stays
        for n in np.sort(last[last >= 0]).tolist():
            path = self.paths[items.path[n]]
            assert path is not None
            tree.write(path, self._text(items, n))


def _decoded(path: bytes) -> Path | None:
    try:
        return path_of(Item.FromString(path))
    except DecodeError:
        return None
