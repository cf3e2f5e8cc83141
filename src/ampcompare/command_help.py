"""The parts of a command's `--help` that Typer does not format as we need: examples and exit codes."""

import re
from collections.abc import Mapping
from typing import Any

from typer.core import TyperCommand

from ampcompare.runtime.help_text import help_lines

_NO_WRAP = "\b\n"  # Typer does not wrap a paragraph that begins with this line


class Command(TyperCommand):
    """A command whose help lists the arguments without Typer's type names, such as `<list[str]>`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of the command line."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # Typer's parser leaves the context out of some usage errors; their message names its --help.
            if hasattr(error, "format_message") and getattr(error, "ctx", None) is None:
                setattr(error, "ctx", ctx)  # noqa: B010
            raise

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        """Write the usage line, with required arguments as their bare names."""
        pieces = (re.sub(r"^\{(.+)\}", r"\1", piece) for piece in self.collect_usage_pieces(ctx))
        formatter.write_usage(ctx.command_path, " ".join(pieces))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options."""
        arguments: list[tuple[str, str]] = []
        options: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            name, text = record
            if parameter.param_type_name == "argument":
                name_without_type = re.sub(r" <\S+>$", "", name)
                arguments.append((name_without_type, _readable_bounds(text)))
            else:
                options.append((name, _readable_bounds(text)))
        for title, rows in (("Arguments", arguments), ("Options", options)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _readable_bounds(text: str) -> str:
    """Return a help text whose bounds, such as `x>=1`, are in words.

    >>> _readable_bounds("Runs.  [default: 1; x>=1]"), _readable_bounds("Port.  [0<=x<=65535]")
    ('Runs.  [default: 1; at least 1]', 'Port.  [0 to 65535]')
    """
    text = re.sub(r"(?<=[\[ ])(\S+)<=x<=(\S+)\]$", r"\1 to \2]", text)
    return re.sub(r"(?<=[\[ ])x>=(\S+)\]$", r"at least \1]", text)


def epilog(examples: Mapping[str, str], exit_codes: Mapping[int | str, str] | None = None) -> str:
    """Return the end of a help text for Typer: commands to copy, and the exit codes.

    `help_lines` describes the arguments.
    """
    paragraphs = "\n".join(help_lines(examples, exit_codes)).split("\n\n")
    return "\n\n".join(_NO_WRAP + paragraph for paragraph in paragraphs)
