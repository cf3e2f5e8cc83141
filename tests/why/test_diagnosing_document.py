"""docs/diagnosing.md: what it shows is what its commands say, and its scripts run."""

import re
import shlex
from pathlib import Path

import pytest
from support.quick import ROOT
from typer.testing import CliRunner

from ampcompare.cli import app

TEXT = (ROOT / "docs" / "diagnosing.md").read_text()
CONSOLE = re.findall(r"^```console\n\$ ampcompare why (.*?)\n(.*?)^```", TEXT, re.M | re.S)
SOURCES = TEXT + (ROOT / "README.md").read_text()  # its network and data are used, too
SCRIPTS = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", SOURCES, re.M | re.S))
QUESTIONS = 8
RUN = re.findall(r"^ampcompare run (.*)$", TEXT, re.M)  # the run that is replayed
FIGURE = re.compile(r"\d[\d.,]*(?:e[+-]?\d+)?")


# Lines whose content, not only their figures, depends on measured times.
MEASURED = re.compile(
    r"^(?: (?:convolution|other ops|casts between|matrix products|normalisation|optimizer step) .*"
    r"| no PyTorch op .*"
    r"|Largest change: .*|No PyTorch op runs during .*|This is no evidence .*"
    r"|There is no confidence interval: .*|This CPU computes .*)$",
    re.M,
)


def plain(text: str) -> str:
    """In one line, and without the figures, which are those of a machine."""
    text = " ".join(text.split())
    # A busy machine has too few rounds for an interval, and a quick one casts in no time.
    text = re.sub(r"(?<=as fast as none )\([^)]*\)|(?<=x as long as without )\([^)]*\)", "", text)
    text = re.sub(r" All casts of a step take \S+ of its time\.", "", text)
    text = re.sub(r"(?<=run )[0-9a-z]{8}\b", "ID", text)
    return FIGURE.sub("#", text)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    for name, script in SCRIPTS.items():
        (tmp_path / name).write_text(script)
    return tmp_path


# A search runs trials in processes of their own, and a compiler takes seconds.
SLOW = re.compile("guard|diff execution=")
BLOCKS = [
    pytest.param(*block, marks=[pytest.mark.slow] * bool(SLOW.match(block[0])), id=f"{i}-{block[0][:7]}")
    for i, block in enumerate(CONSOLE)
]


@pytest.mark.parametrize(("command", "shown"), BLOCKS)
def test_a_command_says_what_the_document_shows(folder: Path, command: str, shown: str):
    words = shlex.split(re.sub(r"(?<=--seconds )[1-9]", "0.2", command))  # fewer rounds
    if "--at" in words:
        (run,) = RUN
        done = CliRunner().invoke(app, ["run", *shlex.split(run)])
        assert done.exit_code == 0, done.output
    done = CliRunner().invoke(app, ["why", *words])
    assert done.exit_code == 0, done.output
    output, place = plain(done.output), 0
    for part in re.split(r"^\.\.\.$", MEASURED.sub("...", shown), flags=re.M):
        found = output.find(wanted := plain(part), place)
        assert found >= 0, f"not said, or not in this order: {wanted}\n{done.output}"
        place = found + len(wanted)


def test_each_question_is_answered_by_a_command():
    parts = re.split(r"^## ", TEXT, flags=re.M)[1:]
    questions = [part for part in parts if part.splitlines()[0].endswith("?")]
    assert len(questions) == QUESTIONS
    assert all("$ ampcompare why " in part for part in questions)
