"""The package's log messages as lines of a command's terminal. In other programs they are a library's: they
go where `logging` is told to, and without that only warnings are shown, on stderr.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from ampcompare.runtime.console import is_plain, print_line

PACKAGE = logging.getLogger("ampcompare")


class ConsoleHandler(logging.Handler):
    """Prints each message as a line of a Rich console, above its progress bar if there is one.

    Rich's own handler breaks lines at the width of the terminal.
    """

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console, self._plain = console, is_plain(console)

    def emit(self, record: logging.LogRecord) -> None:
        """As `logging.Handler.emit`."""
        print_line(self.console, self.format(record), plain=self._plain)


@contextmanager
def messages_on(console: Console) -> Iterator[None]:
    """While entered, messages from INFO on are lines of this console, and nowhere else.

    A level that somebody has given the logger `ampcompare` stays.
    """
    handler, level, propagates = ConsoleHandler(console), PACKAGE.level, PACKAGE.propagate
    PACKAGE.addHandler(handler)
    PACKAGE.setLevel(level or logging.INFO)
    PACKAGE.propagate = False  # the user's network may configure the root logger: no line twice
    try:
        yield
    finally:
        PACKAGE.removeHandler(handler)
        PACKAGE.setLevel(level)
        PACKAGE.propagate = propagates


@contextmanager
def hidden_messages() -> Iterator[None]:
    """While entered, no message of the package is shown anywhere."""
    level = PACKAGE.level
    PACKAGE.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        PACKAGE.setLevel(level)


@contextmanager
def silent(console: Console) -> Iterator[None]:
    """While entered, the console prints nothing."""
    before, console.quiet = console.quiet, True
    try:
        yield
    finally:
        console.quiet = before
