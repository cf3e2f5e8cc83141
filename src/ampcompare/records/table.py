"""History rows gathered column by column, so that a run of millions of rows stays a few arrays."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np

NON_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
NAN = float("nan")
Path = tuple[str, ...]


def parse_json(text: str) -> Any:
    """A `value_json` as a Python value; W&B's texts for NaN and infinity become floats, nested ones too.

    Raises ValueError for what is no JSON, or is nested deeper than can be read.
    """
    try:
        return with_floats(json.loads(text))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def with_floats(value: Any) -> Any:
    """The value with W&B's texts for NaN and infinity as floats, at any depth."""
    if isinstance(value, str):
        return NON_FINITE.get(value, value)
    if isinstance(value, dict):
        return {key: with_floats(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_floats(inner) for inner in value]
    return value


def path_of(item: Any) -> Path:
    """The key of a protobuf item: its parts, of which most keys have one."""
    nested = item.nested_key
    # tuple() of a repeated protobuf field takes five times as long as its first element.
    return ((nested[0],) if len(nested) == 1 else tuple(nested)) if nested else (item.key,)


def name_of(path: Path) -> str:
    """The name of a column, with the parts of its key between dots."""
    return path[0] if len(path) == 1 else ".".join(path)


class Column:
    """One metric: 8 bytes a row while its values are numbers, Python objects from the first other on."""

    __slots__ = ("nan_rows", "values")

    def __init__(self) -> None:
        self.values: array[float] | list[Any] = array("d")
        self.nan_rows = array("q")  # rows in which NaN was logged, as against rows without a value

    def put(self, row: int, text: str) -> None:
        """Store the JSON text of a value. Raises ValueError where it is no JSON."""
        value: Any
        try:
            value = float(text)
        except ValueError:  # not a bare number: text, true, null, a list, "NaN" in quotes
            value = parse_json(text)
        values = self.values
        short = row - len(values)
        if short < 0 and self.nan_rows and self.nan_rows[-1] == row:
            self.nan_rows.pop()  # the same key twice in one row: the later value counts
        if isinstance(values, array) and not isinstance(value, float) and value is not None:
            values = self.values = [None if v != v else v for v in values]  # v != v: NaN, no value
            for logged in self.nan_rows:
                values[logged] = NAN
        is_number_column = isinstance(values, array)
        if short > 0:
            nothing: Any = NAN if is_number_column else None
            values.extend([nothing] * short)
        if value is None and is_number_column:
            value = NAN
        elif value != value:
            self.nan_rows.append(row)
        if short < 0:
            values[row] = value
        else:
            values.append(value)

    def put_numbers(self, rows: np.ndarray, numbers: np.ndarray) -> None:
        """Store numbers, none of them NaN, in rows behind all that have been put: ascending, each once."""
        begin, values = len(self.values), self.values
        if isinstance(values, array):
            block = np.full(int(rows[-1]) + 1 - begin, NAN)
            block[rows - begin] = numbers
            values.frombytes(block.tobytes())
            return
        values.extend([None] * (int(rows[-1]) + 1 - begin))
        for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
            values[row] = number

    def finish(self, rows: int) -> np.ndarray:
        """The column, `rows` values: float64 with NaN, or objects with None, where there is none."""
        if isinstance(self.values, array):
            self.values.extend([NAN] * (rows - len(self.values)))
            return np.frombuffer(self.values, dtype=np.float64) if rows else np.empty(0)
        cells = np.full(rows, None, dtype=object)
        for row, value in enumerate(self.values):
            cells[row] = value
        return cells


class Table:
    """Rows of named values, each row given as (name, JSON text) pairs."""

    def __init__(self) -> None:
        self.columns: dict[str, Column] = {}
        self.rows = 0
        self.bad_values = 0

    def add_row(self, items: Any) -> None:
        """Add one row from protobuf HistoryItems."""
        self.put_row(self.rows, items)
        self.rows += 1

    def add_texts(self, texts: Iterable[tuple[str, str]]) -> None:
        """Add one row from names and JSON texts."""
        for name, text in texts:
            self.put(self.rows, name, text)
        self.rows += 1

    def add_values(self, values: Iterable[tuple[str, Any]]) -> None:
        """Add one row from names and Python values, by way of their JSON, so that both ways give the same."""
        for name, value in values:
            self.put(self.rows, name, json.dumps(value))
        self.rows += 1

    def put_row(self, row: int, items: Any) -> None:
        """Put what protobuf HistoryItems say into a row."""
        for item in items:
            self.put(row, name_of(path_of(item)), item.value_json)

    def put(self, row: int, name: str, text: str) -> None:
        """Put the JSON text of a value into a row; one that is no JSON is counted."""
        try:
            self.column(name).put(row, text)
        except ValueError:
            self.bad_values += 1

    def column(self, name: str) -> Column:
        """The column of a key, empty if it is new."""
        column = self.columns.get(name)
        if column is None:
            column = self.columns[name] = Column()
        return column

    def arrays(self) -> dict[str, np.ndarray]:
        """Every column as an array of one value a row."""
        return {name: column.finish(self.rows) for name, column in self.columns.items()}

    def nan_rows(self) -> dict[str, np.ndarray]:
        """For each column with logged NaNs, the numbers of their rows, ascending."""
        found = {
            name: np.unique(np.array(column.nan_rows, np.int64)) for name, column in self.columns.items()
        }
        return {name: rows for name, rows in found.items() if len(rows)}
