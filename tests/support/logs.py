"""What the package logs."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

PACKAGE = logging.getLogger("ampcompare")


class _Listener(logging.Handler):
    def __init__(self, messages: list[str]) -> None:
        super().__init__()
        self.messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextmanager
def logged() -> Iterator[list[str]]:
    """While entered, every message from INFO on, as a user's own handler gets it."""
    listener, level = _Listener([]), PACKAGE.level
    PACKAGE.addHandler(listener)
    PACKAGE.setLevel(logging.INFO)
    try:
        yield listener.messages
    finally:
        PACKAGE.removeHandler(listener)
        PACKAGE.setLevel(level)
