"""Print the answer of `explain` or `diff`, and write it as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ampcompare.config.load import Config
from ampcompare.config.recipes import describe_recipe
from ampcompare.runtime.atomic_files import write_json
from ampcompare.runtime.console import print_line


@dataclass(frozen=True)
class Answer:
    """The answer to a question about a step.

    Attributes:
        heading: What was compared.
        config: The options of the run.
        parts: Tables and lines, in their order.
        content: The whole result as plain values.
    """

    heading: str
    config: Config
    parts: Sequence[Table | str]
    content: Mapping[str, Any]


def show(answer: Answer, console: Console, file: Path | None) -> None:
    """Print an answer, and write its content where a file is named.

    Raises:
        UserError: The file cannot be written.
    """
    for line in (answer.heading, describe_recipe(answer.config), *answer.parts):
        if isinstance(line, Table):
            console.print(line)
        else:
            print_line(console, line)
    if file is not None:
        write_json(file, answer.content)
        print_line(console, f"Written: {file}")


def make_table(title: str, *columns: str, left: int) -> Table:
    """Return a table without rows, of whose columns the first `left` are words and the others numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", header_style="dim", box=None)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < left else "right", overflow="fold")
    return table
