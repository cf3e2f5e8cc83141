"""docs/bench.md: its commands run, and their output looks as the page shows it."""

import re
import shlex
from pathlib import Path

import pytest
from support.quick import ROOT
from typer.testing import CliRunner

from ampcompare.cli import app

TEXT = (ROOT / "docs" / "bench.md").read_text()
CONSOLE = dict(re.findall(r"^```console\n\$ ampcompare (.*?)\n(.*?)^```", TEXT, re.M | re.S))
FILES = re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
FIGURE = re.compile(r"\d[\d.,]*")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    for name, text in FILES:
        (tmp_path / name).write_text(text)


def run(command: str, *options: str) -> list[str]:
    done = CliRunner().invoke(app, [*shlex.split(command), *options])
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def starts(lines: list[str], words: int) -> list[str]:
    """Return the first words of each line, without figures."""
    return [" ".join(FIGURE.sub("#", line).split()[:words]) for line in lines]


@pytest.mark.slow
def test_bench_prints_the_table_and_the_sentences_of_the_page():
    (command,) = (command for command in CONSOLE if command.startswith("bench "))
    shown = CONSOLE[command].splitlines()
    output = run(command, "--minutes", "0.1")
    plan, recipe, head, *rows = shown[:6]
    assert starts(output[:1], 99) == starts([plan.replace("1 minute:", "0.1 minutes:")], 99)
    assert output[1] == recipe
    assert output[2].split() == head.split()
    assert starts(output[3:6], 1) == starts(rows, 1)
    # A busy machine has too few rounds for intervals in six seconds, so only what is always said.
    for line in (shown[6].partition(";")[0], shown[7], shown[9].partition(":")[0]):
        assert any(FIGURE.sub("#", line) in FIGURE.sub("#", said) for said in output), line
