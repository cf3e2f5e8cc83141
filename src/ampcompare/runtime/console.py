"""Prints lines and log messages on a command's terminal, also when nobody can read them any more.

In other programs the package's log messages are those of a library. They go where `logging` is configured to
send them; without a configuration only warnings are shown, on stderr.
"""

import contextlib
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from ampcompare.runtime.signals import discard_output

PACKAGE = logging.getLogger("ampcompare")


def clock(seconds: float) -> str:
    """Return seconds as `1:05` or `2:10:00`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def is_plain(console: Console) -> bool:
    """Return whether the console prints text only, without styles."""
    return not (console.is_terminal or console.is_jupyter or console.record)


def print_line(console: Console, line: str, *, plain: bool | None = None) -> None:
    """Print a line. If that fails (a full disk, a closed terminal), print nothing from then on.

    Args:
        console: The console.
        line: The line.
        plain: What `is_plain` returns for the console, for callers that print often; None: ask it.
    """
    try:
        if plain is None:
            plain = is_plain(console)
        # Rich needs 60 µs for such a line, in the training thread, and changes control characters and tabs.
        if plain and line.isprintable() and not console.quiet:
            console.file.write(f"{line}\n")
            console.file.flush()
            return
        console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)
    except OSError as problem:
        console.quiet = True
        with contextlib.suppress(OSError):  # stderr may be the same file
            sys.stderr.write(
                f"the output can no longer be written ({problem.strerror}); the command continues\n"
            )
        discard_output(console.file.fileno())  # a library's print, or the flush at exit, would fail as well


class ConsoleHandler(logging.Handler):
    """Prints each message as a line of a Rich console, above its progress bar if there is one.

    Rich's own handler breaks lines at the width of the terminal.
    """

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console, self._plain = console, is_plain(console)
        self._printed_once: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Print the message of the record.

        A record with the attribute `once` is printed only the first time, even if a command trains often.
        """
        line = self.format(record)
        if getattr(record, "once", False):
            if line in self._printed_once:
                return
            self._printed_once.add(line)
        print_line(self.console, line, plain=self._plain)


@contextmanager
def messages_on(console: Console, logger: logging.Logger = PACKAGE) -> Iterator[None]:
    """Print messages from INFO on this console, and nowhere else, while the body runs.

    A level that somebody has set for the logger stays.

    Args:
        console: The console.
        logger: Whose messages are printed, those of the loggers below it included.
    """
    handler, level, propagates = ConsoleHandler(console), logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(level or logging.INFO)
    logger.propagate = False  # the user's network may configure the root logger: no line twice
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates


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
