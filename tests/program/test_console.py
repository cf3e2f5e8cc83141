"""Lines for the user: the same letters whichever way they go."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from ampcompare.program.console import print_line


class Full(io.StringIO):
    """A file on a full disk."""

    def flush(self) -> None:
        raise OSError(28, "No space left on device")

    def fileno(self) -> int:
        return self.copy


@pytest.mark.parametrize(
    "line",
    [
        "[bold]no markup[/bold] :smile: 1,234.5 samples/s",
        "Größe 好 🙂 " + "long " * 60,
        "a\tb\x07c\rd\x1b[31me\nf",
        "",
    ],
)
def test_a_line_off_a_terminal_is_what_rich_would_print(line: str):
    plain, rich = io.StringIO(), io.StringIO()
    print_line(Console(file=plain, width=40), line)
    how = {"markup": False, "highlight": False, "emoji": False, "soft_wrap": True}
    Console(file=rich, width=40).print(line, **how)
    assert plain.getvalue() == rich.getvalue()


def test_a_line_that_cannot_be_written_is_said_once(capsys: pytest.CaptureFixture[str], tmp_path):
    with (tmp_path / "out").open("wb") as out:
        file = Full()
        file.copy = out.fileno()
        console = Console(file=file)
        print_line(console, "first")
        print_line(console, "second")
    assert console.quiet
    assert sys.stderr is not None
    assert capsys.readouterr().err.count("No space left on device") == 1
