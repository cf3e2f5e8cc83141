"""The one exception for a user's mistake, and how a program ends on it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

EXIT_BAD_INPUT = 2
SECONDS_TO_PRINT = 5.0  # torchrun's signal ends the wait


class UserError(Exception):
    """Something the user can mend. The message is one line: what, the bad value, what is allowed, what to do.

    Where several things are wrong at once, `details` holds a line for each, below a first that says of what.
    """

    def __init__(self, message: object, details: Sequence[object] = ()) -> None:
        self.lines = [one_line(text) for text in (message, *details)]
        super().__init__("\n  ".join(self.lines))


def one_line(text: object) -> str:
    """The text as one printable line."""
    # Input can hold anything, line breaks and terminal escapes included; the promise is one printable line.
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(str(text).split()))


def reason(problem: BaseException) -> str:
    """Why, in a line: the system's words where it is the system's error, else the first of the message."""
    words = getattr(problem, "strerror", None) or str(problem)
    return next((line.strip() for line in words.splitlines() if line.strip()), type(problem).__name__)


def exit_with(error: UserError) -> NoReturn:
    """Print the error on stderr, as one line or with a line for each detail, and exit with code 2.

    Of the processes that torchrun starts on a machine, which all have the error, the first one prints it.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1" and os.environ.get("LOCAL_RANK", "0") != "0":
        # torchrun ends all processes when one has ended: not before the first one has printed.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(EXIT_BAD_INPUT))
        time.sleep(SECONDS_TO_PRINT)
        raise SystemExit(EXIT_BAD_INPUT)
    line = f"error: {error}\n"
    encoding = sys.stderr.encoding or "utf-8"
    sys.stderr.write(line.encode(encoding, "backslashreplace").decode(encoding))
    raise SystemExit(EXIT_BAD_INPUT)
