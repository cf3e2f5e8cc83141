"""The form of a table that another program wrote: separator, header, comment lines, and its cells."""

import csv
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

SEPARATORS = (",", ";", "\t")
COMMENT = "#"
SEPARATOR_LINE = re.compile(r"sep=.", re.I)  # Excel's first line
DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+(?:e[-+]?\d+)?", re.I)
DURATION = re.compile(r"(?:(\d+) days?, )?(\d+):([0-5]?\d):([0-5]?\d(?:\.\d*)?)")
DATE = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d.*")


@dataclass(frozen=True)
class TableFormat:
    """The form of a table.

    Attributes:
        header: The number of the line with the names, from 0.
    """

    names: tuple[str, ...]
    separator: str = ","
    header: int = 0


def read_format(head: bytes) -> TableFormat | None:
    """Return the form of a table that begins with these bytes; None if it has no line with names.

    Lines that begin with `#` before the header are comments. If the first other line has numbers only, the
    last comment names the columns, as NumPy's `savetxt` writes them.

    Raises:
        csv.Error: The first line is not a row of a table.
    """
    lines = head.decode("utf-8-sig", "replace").splitlines()
    number = 0
    while number < len(lines) and _is_before_header(lines[number]):
        number += 1
    if number == len(lines):
        return None
    found = _split(lines[number], number)
    if number and all(map(_is_number, found.names)):
        comment = _split(lines[number - 1].lstrip(f"{COMMENT} "), number - 1)
        if len(comment.names) == len(found.names) and not any(map(_is_number, comment.names)):
            return comment
    return found


def _is_before_header(line: str) -> bool:
    text = line.strip()
    return not text or text.startswith(COMMENT) or SEPARATOR_LINE.fullmatch(text) is not None


def _split(line: str, number: int) -> TableFormat:
    """Return the names in a line, by the separator that gives most of them."""
    formats = []
    for separator in SEPARATORS:
        cells = next(csv.reader([line], skipinitialspace=True, delimiter=separator))
        formats.append(TableFormat(tuple(cell.strip() for cell in cells), separator, number))
    return max(formats, key=lambda one: len(one.names))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def has_header(names: tuple[str, ...]) -> bool:
    """Return whether a line names columns, and is no row of numbers."""
    return not (names and all(map(_is_number, names)))


def read_cell(text: str, separator: str) -> Any:
    """Return the value of a cell: a number, a truth value, None for an empty cell, else its text."""
    word = text.strip()
    if separator != "," and DECIMAL_COMMA.fullmatch(word):
        word = word.replace(",", ".")
    try:
        return float(word)
    except ValueError:
        return {"": None, "true": True, "false": False}.get(word.lower(), word)


def as_seconds(text: str) -> float | None:
    """Return a duration (`0:21:12`, `1 day, 2:03:04`) or a date with its time in seconds, None for others.

    A date counts from 1970, in UTC if it names no zone.
    """
    if match := DURATION.fullmatch(text):
        days, hours, minutes, seconds = match.groups()
        return 86400.0 * int(days or 0) + 3600 * int(hours) + 60 * int(minutes) + float(seconds)
    if DATE.fullmatch(text) is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
