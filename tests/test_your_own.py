"""docs/your-own.md: its three ways, from an empty folder to the verdict, as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.quick import ROOT

PAGE = (ROOT / "docs" / "your-own.md").read_text()
WAYS = dict(re.findall(r"^## (\d)\. [^\n]*\n(.*?)(?=^## |\Z)", PAGE, re.S | re.M))
MOST_LINES = 30


def blocks(way: str, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", WAYS[way], re.S)


def files(way: str, kind: str = "python") -> dict[str, str]:
    """The files of a way, by the name in their first line."""
    named = (re.match(r"# (\S+\.\w+)\n", text) for text in blocks(way, kind))
    return {found[1]: text for found, text in zip(named, blocks(way, kind), strict=True) if found is not None}


def do(folder: Path, script: str) -> str:
    """What a shell says in the folder, where the programs are those of this environment."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name, call in {"python": "", "ampcompare": "-m ampcompare"}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {call} "$@"\n')
        (programs / name).chmod(0o755)
    own = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}
    own |= {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "WANDB_MODE": "offline"}
    done = subprocess.run(
        ["bash", "-ec", script],
        cwd=folder,
        env=os.environ | own,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("way", ["1", "2", "3"])
def test_a_way_is_short(way: str):
    (text,) = files(way).values()
    assert len((text + blocks(way, "sh")[0]).splitlines()) < MOST_LINES


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "told"),
    [
        ("1", ("eval MSE", "native_bf16", "Of eval MSE lower is better")),
        ("2", ("accuracy", "native", "samples/s")),
        ("3", ("val acc", "bf16", "Took precision as what is compared, 32 as the baseline and val_acc")),
    ],
)
def test_a_way_comes_to_its_verdict(tmp_path: Path, way: str, told: tuple[str, ...]):
    for name, text in files(way).items():
        (tmp_path / name).write_text(text)
    said = [" ".join(do(tmp_path, script).split()) for script in blocks(way, "sh")]
    assert [words for words in told if words not in said[0]] == [], said[0]
    assert all("paired by seed" in text and text.endswith("page: report/index.html") for text in said), said
    assert (tmp_path / "report" / "index.html").is_file()


@pytest.mark.slow
def test_the_sweep_of_the_page_drives_the_program_of_the_page_as_w_and_b_would(tmp_path: Path):
    (name,) = files("2")
    words = "backend, seed = (word.partition('=')[2] for word in sys.argv[1:])\nseed = int(seed)"
    program = files("2")[name].replace("backend, seed = sys.argv[1], int(sys.argv[2])", words)
    (tmp_path / name).write_text(program.replace("range(4)", "range(1)"))
    (sweep,) = files("2", "yaml").values()
    (tmp_path / "sweep.yaml").write_text(sweep.replace("[1, 2, 3]", "[1]"))
    said = do(tmp_path, "ampcompare sweep sweep.yaml")
    assert "native" in said
    assert (tmp_path / "runs" / "sweep" / "report" / "index.html").is_file(), said[-2000:]
