"""The form of a table that another program wrote: separator, header and comment lines."""

import csv
import re
from dataclasses import dataclass

SEPARATORS = (",", ";", "\t")
COMMENT = "#"
UNNAMED = "Unnamed: "  # what pandas calls a column without a name, with its number from 0
SEPARATOR_LINE = re.compile(r"sep=.", re.I)  # Excel's first line


@dataclass(frozen=True)
class TableFormat:
    """The form of a table.

    Attributes:
        names: The names of the columns; `Unnamed: 0` for one without a name, as pandas calls it.
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
    if number and all(map(is_number_text, found.names)):
        comment = _split(lines[number - 1].lstrip(f"{COMMENT} "), number - 1)
        if len(comment.names) == len(found.names) and not any(map(is_number_text, comment.names)):
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
        names = tuple(cell.strip() or f"{UNNAMED}{index}" for index, cell in enumerate(cells))
        formats.append(TableFormat(names, separator, number))
    return max(formats, key=lambda one: len(one.names))


def is_number_text(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def has_header(names: tuple[str, ...]) -> bool:
    """Return whether a line names columns, and is no row of numbers."""
    return not (names and all(map(is_number_text, names)))
