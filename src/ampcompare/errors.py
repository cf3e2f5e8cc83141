"""The one exception for a user's mistake, and how a program ends on it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

EXIT_BAD_INPUT = 2


class UserError(Exception):
    """Something the user can mend. The message is one line: what, the bad value, what is allowed, what to do.

    Where several things are wrong at once, `details` holds a line for each, below a first that says of what.
    """

    def __init__(self, message: object, details: Sequence[object] = ()) -> None:
        super().__init__("\n  ".join(one_line(text) for text in (message, *details)))


def one_line(text: object) -> str:
    """The text as one printable line."""
    # Input can hold anything, line breaks and terminal escapes included; the promise is one printable line.
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(str(text).split()))


def exit_with(error: UserError) -> NoReturn:
    """Print the error on stderr, as one line or with a line for each detail, and exit with code 2."""
    line = f"error: {error}\n"
    encoding = sys.stderr.encoding or "utf-8"
    sys.stderr.write(line.encode(encoding, "backslashreplace").decode(encoding))
    raise SystemExit(EXIT_BAD_INPUT)
