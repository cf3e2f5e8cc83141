"""What the pages and the docstrings show to others runs as it stands."""

from __future__ import annotations

import doctest
import io
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from support.quick import QUICK, ROOT

from ampcompare.config.load import load_config
from ampcompare.experiment import run
from ampcompare.precision import build_precision
from ampcompare.precision.apex import amp
from ampcompare.records import RunRecord, load_runs
from ampcompare.report import analyse_runs

PAGE = (ROOT / "docs" / "extending.md").read_text()
FILES = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.S))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the page, and with runs of two backends in `runs`."""
    folder = tmp_path_factory.mktemp("extending")
    for name, content in FILES.items():
        (folder / name).write_text(content)
    for backend in ("none", "native"):
        train(folder / "runs", f"backend={backend}")
    return folder


def train(out: Path, *words: str) -> RunRecord:
    config = load_config(None, [*QUICK, "epochs=1", f"output_dir={out}", *words])
    assert run(config, Console(file=io.StringIO())).exit_code == 0
    return load_runs([out])[-1]


@pytest.fixture
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def test_the_pages_backend_and_network_train(inside: None):
    words = ("backend=./bf16_forward.py:Bf16Forward", "model.name=./wide.py:build")
    assert train(Path("mine"), *words).name == "bf16_forward_wide-py-build_synthetic"


@pytest.mark.parametrize(
    ("name", "option", "least"), [("stripes", "data.augment=false", 0.9), ("table", "data.workers=1", 0.6)]
)
def test_the_pages_data_are_learnt(inside: None, name: str, option: str, least: float):
    words = (f"data.source=./{name}.py:build", "data.train_limit=null", "data.test_limit=null", option)
    record = train(Path(name), *words, "optimizer.momentum=0.9")
    assert record.summary_number("eval/accuracy") > least


def test_the_pages_metric_is_computed_and_drawn(folder: Path):
    done = subprocess.run(
        [sys.executable, "gap.py", "runs", "gap.html"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        check=False,
    )
    assert not done.returncode, done.stderr
    assert re.fullmatch(r"none seed 223: gap \S+ points\nnative seed 223: gap \S+ points\n", done.stdout)
    assert "training minus test accuracy" in (folder / "gap.html").read_text()


@pytest.mark.slow
def test_the_example_of_a_trace_has_the_steps_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["", *QUICK, "backend=native_bf16"])
    runpy.run_path(str(ROOT / "docs" / "examples" / "trace_steps.py"))
    names = [event.get("name", "") for event in json.loads(Path("trace.json").read_bytes())["traceEvents"]]
    assert sum(name.startswith("Optimizer.step") for name in names) == 3


@pytest.mark.parametrize("function", [load_runs, analyse_runs, build_precision, amp.initialize])
def test_the_example_of_a_public_function_runs(inside: None, function):
    (example,) = doctest.DocTestFinder(recurse=False).find(function, globs={})
    assert len(example.examples) > 1
    said = io.StringIO()
    results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=said.write)
    amp.reset()
    assert not results.failed, said.getvalue()
