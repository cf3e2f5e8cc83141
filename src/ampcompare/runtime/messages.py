"""Shows the package's log messages as lines in a command's terminal.

In other programs the messages are those of a library. They go where `logging` is configured to send them;
without a configuration only warnings are shown, on stderr.
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
        """Print the message of the record."""
        print_line(self.console, self.format(record), plain=self._plain)


@contextmanager
def messages_on(console: Console) -> Iterator[None]:
    """Print messages from INFO on this console, and nowhere else, while the body runs.

    A level that somebody has set for the logger `ampcompare` stays.
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
    """Show no message of the package while the body runs."""
    level = PACKAGE.level
    PACKAGE.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        PACKAGE.setLevel(level)


@contextmanager
def silent(console: Console) -> Iterator[None]:
    """Let the console print nothing while the body runs."""
    before, console.quiet = console.quiet, True
    try:
        yield
    finally:
        console.quiet = before
