"""Who may import whom, read from the source: the rules of the architecture."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "ampcompare"
REPORT_LIBRARIES = {"altair", "jinja2", "optuna", "pandas", "scipy", "typer", "vl_convert"}


def imports(path: Path) -> set[str]:
    """Every module that a file imports anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def modules(*parts: str) -> list[Path]:
    """The source files of some parts of the package, by name without `.py`."""
    found = [p for part in parts for p in (SOURCE / part).rglob("*.py")]
    return found + [SOURCE / f"{part}.py" for part in parts if (SOURCE / f"{part}.py").is_file()]


def test_precision_imports_nothing_of_ours_but_itself():
    for path in modules("precision"):
        ours = {name for name in imports(path) if name.startswith("ampcompare")}
        assert all(name.startswith("ampcompare.precision") for name in ours), path


def test_reading_and_reporting_import_no_torch():
    for path in modules("records", "report", "sweeps", "cli"):
        assert not {name.partition(".")[0] for name in imports(path)} & {"torch", "torchvision"}, path


def test_training_imports_none_of_the_reports_libraries():
    parts = "experiment execution engine fit graph tracking progress models device config schema options precision data"
    parts += " agent arguments stopping service checkpoint resume sender record_file"
    for path in modules("measure", *parts.split()):
        names = imports(path)
        assert not {name.partition(".")[0] for name in names} & REPORT_LIBRARIES, path
        assert not any(name.startswith(("ampcompare.report", "ampcompare.records")) for name in names), path


def test_nothing_imports_the_command_line():
    for path in SOURCE.rglob("*.py"):
        assert "ampcompare.cli" not in imports(path), path


def test_the_loop_names_no_backend():
    for path in modules("engine", "execution", "graph", "fit", "experiment", "data", "measure", "progress", "tracking"):
        strings = {n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)}
        assert not strings & {"none", "native", "apex_o1", "apex_o2", "fp16"}, path


def test_the_entrypoint_is_short():
    assert len((ROOT / "run_experiment.py").read_text().splitlines()) <= 80


@pytest.mark.parametrize("name", ["Makefile", "README.md", "pyproject.toml", "constraints.txt", ".ci/run"])
def test_installing_is_left_to_the_machines_own_package_index(name: str):
    text = (ROOT / name).read_text()
    assert "://" not in text
    assert "index-url" not in text
