"""Images from a function of the user's: `data.source=./mine.py:build`."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from support.quick import QUICK

from ampcompare.config.load import load_config
from ampcompare.data.dataset import build_dataset
from ampcompare.errors import UserError
from ampcompare.experiment import run
from ampcompare.records import load_runs
from ampcompare.report import analyse_runs

SOURCE = """import numpy as np

def build(train):
    labels = np.arange({train} if train else 32, dtype=np.int64) % 4
    images = labels.astype(np.uint8)[:, None, None, None] * {step}
    return images.repeat(3, 1).repeat(8, 2).repeat(8, 3), labels
"""
MINE = "data.source=./mine.py:build"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(SOURCE.format(train=64, step=60))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(*words: str) -> None:
    config = load_config(
        None, [*QUICK, MINE, "data.train_limit=null", "data.test_limit=null", "epochs=1", *words]
    )
    assert run(config, Console(file=io.StringIO())).exit_code == 0


def test_a_function_gives_both_splits():
    data = build_dataset("./mine.py:build", train_limit=40)
    assert (len(data.train), len(data.test), len(data.classes)) == (40, 32, 4)


def test_a_view_that_runs_backwards_is_taken(here: Path):
    forwards = build_dataset("./mine.py:build").train.images
    (here / "mine.py").write_text(
        SOURCE.format(train=64, step=60).replace("3), labels", "3)[::-1], labels[::-1]")
    )
    assert build_dataset("./mine.py:build").train.images.equal(forwards.flip(0))


def test_runs_on_it_are_named_by_it_and_pooled_while_the_images_are_the_same(here: Path):
    train("seed=1")
    train("seed=2")
    (record, _) = load_runs(["runs"])
    assert record.name == "none_tiny_mine-py-build"
    analysis = analyse_runs(load_runs(["runs"]))
    assert analysis.setting.data == "mine.py:build"
    assert len(analysis.groups) == 1
    (here / "mine.py").write_text(SOURCE.format(train=64, step=50))
    train("seed=3")
    assert len(analyse_runs(load_runs(["runs"])).groups) == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("build = 3", "no data for train=True (TypeError: 'int' object is not callable)"),
        (
            "def build(train):\n    return 1",
            "train=True: returned an int; expected tensors, a map-style Dataset or a DataLoader",
        ),
        (
            "def build(train):\n    raise SystemExit(0)",
            "no data for train=True (line 2: SystemExit: 0)",
        ),
        (
            SOURCE.format(train=64, step=60).replace("3), labels", "3), labels + 10**12"),
            "label 1000000000003: expected the numbers of at most",
        ),
        ("def build(train):\n    1 / 0", "no data for train=True (line 2: ZeroDivisionError"),
        ("def build(train):\n    return [], []", "train=True: the data: empty; expected at least one sample"),
    ],
)
def test_what_is_no_data_is_one_line(here: Path, content: str, said: str):
    (here / "mine.py").write_text(content)
    with pytest.raises(UserError) as caught:
        build_dataset("./mine.py:build")
    (line,) = caught.value.lines
    assert line.startswith("data.source='./mine.py:build': ")
    assert said in line
