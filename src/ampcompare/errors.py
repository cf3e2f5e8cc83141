"""UserError, the exception for a user's mistake, and functions that word error messages."""

import os
import re
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

EXIT_BAD_INPUT = 2
# A run ends with it if its machine cannot train all runs of the sweep: EX_UNAVAILABLE of sysexits.h.
EXIT_UNSUITABLE = 69
DEBUG_FLAG, DEBUG_VARIABLE = "--debug", "AMPCOMPARE_DEBUG"
# Packages that call plug-ins. Their frames are left out at the top of a plug-in's traceback.
RELAYING_PACKAGES = {"ampcompare", "contextlib", "importlib", "pkgutil", "torch"}
MAX_EXCEPTION_CHARS = 300  # of another package's exception message
MAX_LINE_CHARS = 2_000  # the middle of a longer line is left out
# PyTorch raises a DataLoader worker's exception again, with a message that begins like this. The worker's
# traceback follows in the message.
WORKER_ERROR = re.compile(r"Caught \w+ in DataLoader worker process \d+\.\n")


class UserError(Exception):
    """A mistake that the user can correct.

    The message is one line: what is wrong, the value, what is allowed, what to do.

    Args:
        message: The first line.
        details: A further line for each problem, where there are several at once.

    Attributes:
        lines: The message and the details.
        cause: The exception of a plug-in that caused the error.
        exit_code: The exit code of the command; another one if a run had begun.
    """

    cause: BaseException | None = None
    exit_code = EXIT_BAD_INPUT

    def __init__(self, message: object, details: Sequence[object] = ()) -> None:
        lines = map(one_line, (message, *details))
        half = MAX_LINE_CHARS // 2
        self.lines = [x if len(x) <= MAX_LINE_CHARS else f"{x[:half]} ... {x[-half:]}" for x in lines]
        super().__init__("\n  ".join(self.lines))

    def with_cause(self, problem: BaseException) -> Self:
        """Return this error with the exception of a plug-in as its cause.

        The cause's traceback begins at the first frame of the plug-in's own code.
        """
        step = problem.__traceback__
        while step and step.tb_frame.f_globals.get("__name__", "").partition(".")[0] in RELAYING_PACKAGES:
            step = step.tb_next
        self.cause = problem.with_traceback(step)
        return self


class TrainingError(Exception):
    """The training cannot continue. One line names the reason and what to try; exit code 1."""


def one_line(text: object) -> str:
    """Return the text as one printable line, without line breaks and terminal escapes."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(str(text).split()))


def reason(problem: BaseException) -> str:
    """Return the reason of an exception for use in a sentence.

    The operating system's text for an OSError, otherwise the first line of the message.
    """
    lines = (getattr(problem, "strerror", None) or str(problem)).splitlines()
    return next((line.strip().rstrip(".") for line in lines if line.strip()), type(problem).__name__)


def describe_exception(problem: BaseException, path: Path | None = None) -> str:
    """Return an exception in one line, such as `line 3: ValueError: no such width`.

    Args:
        path: The plug-in's file. The line number is the last one of this file in the traceback.
    """
    if isinstance(problem, SyntaxError) and problem.filename == str(path):
        return f"line {problem.lineno}: {problem.msg}"
    message = f"{type(problem).__name__}: {str(problem).strip()}".splitlines()[0]
    own = [step.lineno for step in traceback.extract_tb(problem.__traceback__) if step.filename == str(path)]
    if WORKER_ERROR.match(str(problem)):
        own += re.findall(rf'File "{re.escape(str(path))}", line (\d+)', str(problem))
        lines = str(problem).rpartition("Traceback (most recent call last):\n")[2].splitlines()
        message = next((line for line in lines if line.strip() and not line.startswith(" ")), message)
    message = message[:MAX_EXCEPTION_CHARS].rstrip(": ")
    return f"line {own[-1]}: {message}" if own else message


def describe_type(value: object) -> str:
    """Return the type of a value with its article: `an int`, `a list`, or `None`."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def did_you_mean(
    word: object, known: Iterable[str], cutoff: float = 0.6, *, count: int = 1, end: str = ""
) -> str:
    """Return `did you mean X?` for the known words that are most similar, "" if none is similar enough.

    Args:
        word: The word that is not known.
        known: The known words.
        cutoff: The least similarity, from 0 to 1 (identical).
        count: The largest number of words to name, the most similar one first.
        end: What follows the question in a longer message; left out without a question.
    """
    from difflib import get_close_matches

    near = get_close_matches(str(word), list(known), count, cutoff)
    return f"did you mean {' or '.join(near)}?{end}" if near else ""


def take_debug_flag(arguments: Sequence[str]) -> list[str]:
    """Return the words of a command line without `--debug`, which lets errors show their traceback.

    Processes that the command starts, such as the runs of a sweep, show it, too.
    """
    if DEBUG_FLAG in arguments:
        os.environ[DEBUG_VARIABLE] = "1"
    return [word for word in arguments if word != DEBUG_FLAG]


def print_error(error: UserError) -> None:
    """Print the error and its details on stderr, with `--debug` also the traceback of its cause."""
    lines = [f"error: {error}\n"]
    if error.cause and os.environ.get(DEBUG_VARIABLE):
        lines += traceback.format_exception(error.cause)
    elif error.cause:
        lines = [f"error: {error}; {DEBUG_FLAG} shows the traceback\n"]
    encoding = sys.stderr.encoding or "utf-8"
    sys.stderr.write("".join(lines).encode(encoding, "backslashreplace").decode(encoding))
