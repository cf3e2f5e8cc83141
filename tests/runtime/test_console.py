"""Messages: those of a library in a program of one's own, lines of the terminal under our commands."""

import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import warm_python
from support.quick import QUICK

from ampcompare.entrypoint import main

PACKAGE = logging.getLogger("ampcompare")
# Four rows of two steps, each of which has a loss that is not finite from the second on.
DIVERGES = (*QUICK, "backend=none", "optimizer.lr=1e12", "training.on_nan=continue", "max_steps=6")
READS = "from ampcompare import load_runs; print(len(load_runs(['.'])))"
LOGS = "import logging; logging.{}; "
RECORDS = """
import logging, math
from ampcompare import Recorder

def loop():
    with Recorder(backend="none", seed=1, batch_size=8, every=1) as record:
        record.step(loss=math.nan, samples=8)

loop()
logging.getLogger("ampcompare").setLevel(logging.ERROR)
loop()
"""


def python(code: str, folder: Path) -> tuple[str, list[str]]:
    """Return what a program prints on stdout, and its lines on stderr without those of W&B's client."""
    done = subprocess.run(
        [warm_python.python(), "-c", code], capture_output=True, text=True, check=True, cwd=folder
    )
    return done.stdout, [line for line in done.stderr.splitlines() if not line.startswith("wandb: ")]


@pytest.fixture
def _package() -> Iterator[None]:
    """Restore the package's logger and the root's handlers after the test."""
    level, handlers = PACKAGE.level, [*logging.root.handlers]
    yield
    PACKAGE.setLevel(level)
    logging.root.handlers[:] = handlers


@pytest.mark.parametrize(
    ("configured", "shown"),
    [
        (LOGS.format("getLogger('ampcompare').setLevel(logging.ERROR)"), []),
        (LOGS.format("basicConfig(level=logging.INFO)"), ["left out", "read 1 run"]),
    ],
    ids=["errors alone", "all"],
)
def test_a_program_sees_warnings_unless_it_configures_otherwise(
    tmp_path: Path, configured: str, shown: list[str]
):
    (tmp_path / "good.csv").write_text("step,loss\n1,0.5\n2,0.25\n")
    (tmp_path / "bad.csv").write_text("step,loss\n")
    said, lines = python(configured + READS, tmp_path)
    assert said == "1\n"
    assert len(lines) == len(shown)
    assert all(words in line for words, line in zip(shown, lines, strict=True))


@pytest.mark.usefixtures("_package")
def test_a_command_prints_each_line_once_whatever_logging_is_set_to(tmp_path: Path, capsys):
    logging.root.addHandler(logging.StreamHandler(sys.stderr))  # as a user's network may
    assert main([*DIVERGES, f"output_dir={tmp_path}"]) == 0
    shown = capsys.readouterr()
    for step in (3, 5):
        assert len(re.findall(rf"^step {step}: the training loss is (?:NaN|infinite)", shown.out, re.M)) == 1
    assert shown.out.count("\nrecord: ") == 1
    assert "training loss" not in shown.err
    assert not PACKAGE.handlers


def test_a_quiet_recorder_shows_nothing_and_leaves_the_logger_unchanged(tmp_path: Path):
    quiet = RECORDS.replace("every=1)", "every=1, quiet=True)")
    level = "print(logging.getLogger('ampcompare').level == logging.ERROR)"
    assert python(quiet + level, tmp_path) == ("True\n", [])
    failing = (
        "from ampcompare import Recorder\nimport logging\n"
        "try:\n    with Recorder(backend='none', quiet=True) as r: raise ValueError\n"
        "except ValueError: pass\nprint(logging.getLogger('ampcompare').level)"
    )
    assert python(failing, tmp_path) == ("0\n", [])
