"""CSV files with a step column: Lightning's `metrics.csv`, timm's `summary.csv`, anybody's own."""

from __future__ import annotations

import csv
import io
import math
from array import array
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ampcompare import metrics
from ampcompare.errors import reason
from ampcompare.records.beside import settings_beside
from ampcompare.records.run import Fragment

STEPS = (metrics.STEP, "step", "_step", "iteration", "iter", "epoch")
KNOWN = (
    "metrics.csv",
    "summary.csv",
    "progress.csv",
)  # of the trainers; a folder with one of them is one run
MOST_COLUMNS = 10_000
MOST_CELLS = 50_000_000  # 400 MB
MOST_HEAD = 4_000_000  # bytes of the first line


class Unreadable(Exception):
    """Why a file is no run, as the end of a sentence."""


def is_csv_file(name: str) -> bool:
    return name.lower().endswith(".csv")


def has_steps(path: Path, step: str | None = None) -> bool:
    """Whether it is a table with a step column: a look at its first line."""
    try:
        return _step_column(_head(path), step) is not None
    except (Unreadable, OSError):
        return False


def read_csv_file(path: Path, step: str | None = None) -> Fragment:
    """One file as a run; what is wrong with it becomes a sentence in `problems`. `step` names the column."""
    is_alone = path.name in KNOWN and sum((path.parent / known).is_file() for known in KNOWN) < 2
    name = path.parent.as_posix() if is_alone else path.with_suffix("").as_posix()
    # Whether a run came to its end is not in the file.
    fragment = Fragment(path=path, id=name, name=name, state="finished", has_run_record=True)
    try:
        head = _head(path)
        column = _step_column(head, step)
        if column is None:
            expected = f"none is called {step!r}" if step else f"expected one of {', '.join(STEPS)}"
            raise Unreadable(f"has no step column ({expected})")
        fragment.last_write = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        _fill(fragment, path, head, column)
    except Unreadable as problem:
        fragment.problems.append(f"{path.name} {problem}.")
    except (OSError, csv.Error, ValueError, OverflowError) as problem:
        fragment.problems.append(f"Reading {path.name} stopped: {reason(problem)}.")
    fragment.config, problems = settings_beside(path.parent)
    fragment.problems += problems
    return fragment


def _head(path: Path) -> list[str]:
    """The names of the columns. Raises Unreadable."""
    if not path.is_file():
        raise Unreadable("is not a plain file")
    with path.open("rb") as file:
        line = file.readline(MOST_HEAD)
    if not line.strip():
        raise Unreadable("is empty" if not line else "begins with an empty line")
    if b"\0" in line:
        raise Unreadable("is not a text")
    if len(line) >= MOST_HEAD or line.count(b",") > MOST_COLUMNS:
        raise Unreadable(f"has more than {MOST_COLUMNS:,} columns")
    try:
        names = next(csv.reader([line.decode("utf-8-sig", errors="replace")], skipinitialspace=True))
    except (csv.Error, StopIteration) as problem:
        raise Unreadable(f"has no names of columns ({reason(problem)})") from None
    return [name.strip() for name in names]


def _step_column(head: Sequence[str], step: str | None) -> int | None:
    """Where the step is: the column of the name given, else of the first name of STEPS that is there."""
    if len(head) < 2:
        return None
    wanted = (step,) if step else STEPS
    small = [name if step else name.lower() for name in head]
    return next((small.index(name) for name in wanted if name in small), None)


def _fill(fragment: Fragment, path: Path, head: Sequence[str], step: int) -> None:
    columns = [_Column() for _ in head]
    odd = 0
    text, is_utf8 = _text(path)
    try:
        for row in _rows(text):
            odd += len(row) != len(head)
            for column, cell in zip(columns, row, strict=False):
                if cell:
                    column.put(fragment.rows, cell)
            fragment.rows += 1
            if fragment.rows * len(head) > MOST_CELLS:
                raise csv.Error(f"it has more than {MOST_CELLS:,} cells")
    except csv.Error as problem:
        fragment.problems.append(f"Reading {path.name} stopped at row {fragment.rows + 1:,}: {problem}.")
    for number, (name, column) in enumerate(zip(head, columns, strict=True), 1):
        if not name or name in fragment.columns:
            fragment.problems.append(f"Column {number} has {'no name' if not name else 'a name twice'}.")
            continue
        fragment.columns[name] = column.finish(fragment.rows)
        if column.lost:
            fragment.nan_rows[name] = np.array(column.lost, dtype=np.int64)
    if metrics.STEP not in fragment.columns and head[step] in fragment.columns:
        fragment.columns[metrics.STEP] = fragment.columns[head[step]]
    if odd:
        fragment.problems.append(f"{odd:,} rows have another number of cells than there are columns.")
    if not is_utf8:
        fragment.problems.append(
            f"{path.name} is not UTF-8; letters that cannot be read are shown as \ufffd."
        )
    if not fragment.rows:
        fragment.problems.append(f"{path.name} has no row.")


def _text(path: Path) -> tuple[str, bool]:
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig"), True
    except UnicodeDecodeError:
        return content.decode("utf-8", errors="replace"), False


def _rows(text: str) -> Iterator[list[str]]:
    """The rows below the names. Raises csv.Error for quotes that do not close, and what follows them."""
    if "\0" in text:
        raise csv.Error("a NUL character is in it")
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True)
    next(reader, None)
    yield from (row for row in reader if row)


class _Column:
    """One column: 8 bytes a row, texts beside them, and the rows in which NaN is written."""

    def __init__(self) -> None:
        self.numbers = array("d")
        self.texts: dict[int, Any] = {}
        self.lost = array("q")

    def put(self, row: int, cell: str) -> None:
        word = cell.strip()
        try:
            number = float(word)
        except ValueError:
            if word:
                self.texts[row] = {"true": True, "false": False}.get(word.lower(), word)
            return
        self.numbers.extend([math.nan] * (row - len(self.numbers)))
        self.numbers.append(number)
        if math.isnan(number):
            self.lost.append(row)

    def finish(self, rows: int) -> np.ndarray:
        """float64, NaN where there is nothing; objects, with None there, where one is no number."""
        self.numbers.extend([math.nan] * (rows - len(self.numbers)))
        numbers = np.array(self.numbers, dtype=np.float64)
        if not self.texts:
            return numbers
        objects = numbers.astype(object)
        objects[np.isnan(numbers)] = None
        objects[list(self.lost)] = math.nan
        for row, text in self.texts.items():
            objects[row] = text
        return objects
