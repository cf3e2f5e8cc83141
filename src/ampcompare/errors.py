"""The one exception for a user's mistake, and how it is shown."""

import re
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

EXIT_BAD_INPUT = 2
RELAYING_PACKAGES = {
    "ampcompare",
    "contextlib",
    "importlib",
    "pkgutil",
    "torch",
}  # what calls other people's code
MAX_EXCEPTION_CHARS = 300  # characters of what somebody else's exception says
MAX_LINE_CHARS = (
    2_000  # characters of a line; of a longer one the middle is left out, which a value of that size is
)
# How PyTorch begins what it raises anew of a DataLoader's worker; the worker's traceback is the message.
WORKER_ERROR = re.compile(r"Caught \w+ in DataLoader worker process \d+\.\n")


class UserError(Exception):
    """Something the user can mend. The message is one line: what, the bad value, what is allowed, what to do.

    Where several things are wrong at once, `details` holds a line for each, below a first that says of what.
    Where somebody else's code is at fault, `theirs` is what it raised. `exit_code` is another one where a run
    had begun.
    """

    cause: BaseException | None = None
    exit_code = EXIT_BAD_INPUT

    def __init__(self, message: object, details: Sequence[object] = ()) -> None:
        lines = map(one_line, (message, *details))
        half = MAX_LINE_CHARS // 2
        self.lines = [x if len(x) <= MAX_LINE_CHARS else f"{x[:half]} ... {x[-half:]}" for x in lines]
        super().__init__("\n  ".join(self.lines))

    def with_cause(self, problem: BaseException) -> Self:
        """The same, below what somebody else's code raised: its traceback from that one's own line on."""
        step = problem.__traceback__
        while step and step.tb_frame.f_globals.get("__name__", "").partition(".")[0] in RELAYING_PACKAGES:
            step = step.tb_next
        self.cause = problem.with_traceback(step)
        return self


def one_line(text: object) -> str:
    """The text as one printable line."""
    # Input can hold anything, line breaks and terminal escapes included; the promise is one printable line.
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(str(text).split()))


def reason(problem: BaseException) -> str:
    """Why, to be put into a sentence: the system's words for its errors, else the message's first line."""
    lines = (getattr(problem, "strerror", None) or str(problem)).splitlines()
    return next((line.strip().rstrip(".") for line in lines if line.strip()), type(problem).__name__)


def describe_exception(problem: BaseException, path: Path | None = None) -> str:
    """`line 3: ValueError: no such width`: what it is, and the last line of its author's file there."""
    if isinstance(problem, SyntaxError) and problem.filename == str(path):
        return f"line {problem.lineno}: {problem.msg}"
    said = f"{type(problem).__name__}: {str(problem).strip()}".splitlines()[0]
    own = [step.lineno for step in traceback.extract_tb(problem.__traceback__) if step.filename == str(path)]
    if WORKER_ERROR.match(str(problem)):
        own += re.findall(rf'File "{re.escape(str(path))}", line (\d+)', str(problem))
        lines = str(problem).rpartition("Traceback (most recent call last):\n")[2].splitlines()
        said = next((line for line in lines if line.strip() and not line.startswith(" ")), said)
    said = said[:MAX_EXCEPTION_CHARS].rstrip(": ")
    return f"line {own[-1]}: {said}" if own else said


def describe_type(value: object) -> str:
    """What a value is, with its article: `an int`, `a list`."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def did_you_mean(word: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """`did you mean X?` for the nearest of the known words, or nothing where none is near (1: the same)."""
    from difflib import get_close_matches

    near = get_close_matches(str(word), list(known), 1, cutoff)
    return f"did you mean {near[0]}?" if near else ""


def print_error(error: UserError) -> None:
    """Print the error on stderr, a line for each detail below it, and above it the traceback of `theirs`."""
    lines = [f"error: {error}\n"]
    if error.cause:
        lines = [*traceback.format_exception(error.cause), *lines]
    encoding = sys.stderr.encoding or "utf-8"
    sys.stderr.write("".join(lines).encode(encoding, "backslashreplace").decode(encoding))
