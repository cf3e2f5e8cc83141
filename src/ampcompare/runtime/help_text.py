"""Examples and exit codes in a help text, as lines. Imports nothing, so that `run --help` begins quickly."""

import textwrap
from collections.abc import Mapping

WIDTH = 80  # columns of a terminal that every help text fits
BAD_INPUT: dict[int | str, str] = {2: "an option or an input is wrong; the message names it"}
STOPPED: dict[int | str, str] = {130: "stopped by Ctrl-C"}


def help_lines(examples: Mapping[str, str], exit_codes: Mapping[int | str, str] | None = None) -> list[str]:
    """Return the lines of the examples and of the exit codes.

    Args:
        examples: Commands, by what they do. A long command is continued with a backslash.
        exit_codes: Meanings of exit codes, each in one or more lines; None to leave them out.
    """
    lines = ["Examples:"]
    for purpose, command in examples.items():
        lines += [f"  # {purpose}", *_command_lines(command)]
    if exit_codes:
        lines += ["", "Exit codes:"]
        for code, meaning in exit_codes.items():
            first, *rest = meaning.split("\n")
            lines += [f"  {code:<4}  {first}", *(f"{'':<8}{line}" for line in rest)]
    return lines


def _command_lines(command: str) -> list[str]:
    """Return a command as indented lines that can be copied into a shell."""
    width = WIDTH - 2 - len(" \\")  # the help is indented by two columns
    lines = textwrap.wrap(
        command,
        width,
        initial_indent="  ",
        subsequent_indent="      ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]
