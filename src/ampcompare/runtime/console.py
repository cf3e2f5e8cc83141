"""Prints lines of long-running programs, also when nobody can read them any more."""

import contextlib
import sys

from rich.console import Console

from ampcompare.runtime.signals import discard_output


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
            sys.stderr.write(f"what is said cannot be written any more ({problem.strerror}): going on\n")
        discard_output(console.file.fileno())  # a library's print, or the flush at exit, would fail as well
