"""The one exception for a user's mistake, and how a program ends on it."""

from __future__ import annotations

import sys
from typing import NoReturn

EXIT_BAD_INPUT = 2


class UserError(Exception):
    """Something the user can mend. The message is one line: what, the bad value, what is allowed, what to do."""

    def __init__(self, message: object) -> None:
        # Input can hold anything, line breaks and terminal escapes included; the promise is one printable line.
        text = " ".join(str(message).split())
        super().__init__("".join(c if c.isprintable() else repr(c)[1:-1] for c in text))


def exit_with(error: UserError) -> NoReturn:
    """Print the error as one line on stderr and exit with code 2."""
    line = f"error: {error}\n"
    encoding = sys.stderr.encoding or "utf-8"
    sys.stderr.write(line.encode(encoding, "backslashreplace").decode(encoding))
    raise SystemExit(EXIT_BAD_INPUT)
