"""Lines for the user, from programs that go on for hours, also when nobody can read them any more."""

import contextlib
import sys

from rich.console import Console

from ampcompare.runtime.signals import discard_output


def clock(seconds: float) -> str:
    """1:05 or 2:10:00."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def is_plain(console: Console) -> bool:
    """Whether a line there is its letters and no more."""
    return not (console.is_terminal or console.is_jupyter or console.record)


def print_line(console: Console, line: str, *, plain: bool | None = None) -> None:
    """Print a line. Where that fails (a full disk, a terminal that has gone) all goes on in silence.

    `plain` is what `is_plain` says of the console, for who prints a line again and again.
    """
    try:
        if plain is None:
            plain = is_plain(console)
        # Rich takes 60 µs over such a line, of the training thread; control characters and tabs it changes.
        if plain and line.isprintable() and not console.quiet:
            console.file.write(f"{line}\n")
            console.file.flush()
            return
        console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)
    except OSError as problem:
        console.quiet = True
        with contextlib.suppress(OSError):  # it may be the same file
            sys.stderr.write(f"what is said cannot be written any more ({problem.strerror}): going on\n")
        discard_output(console.file.fileno())  # a library's print, or the flush at exit, would fail as well
