"""Tests replace nothing of the package: what they need it takes as an argument, or tells by its public API.

What is outside (the machine, Python, a library) is replaced by `support/outside.py` alone.
"""

import ast
from pathlib import Path

import pytest
from support.outside import Outside
from support.quick import ROOT

import ampcompare

TESTS = ROOT / "tests"
# `support/ddp_worker.py` is a program of its own: it replaces `os.fsync` for all its life.
ALLOWED = {TESTS / "support" / "outside.py", TESTS / "support" / "ddp_worker.py"}
METHODS = {"setattr", "delattr", "setitem", "delitem"}  # of MonkeyPatch, and Python's own
# Switches of libraries that are made to be set; a test puts back what it sets.
SWITCHES = ("os.environ", "sys.", "torch.backends.", "logging.")


def replaced(code: str) -> set[str]:
    """Return what a program assigns to attributes of what it imports, and its uses of mocks."""
    imported: dict[str, str] = {}
    changed = []
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or ""
            for alias in node.names:
                imported[alias.asname or alias.name.partition(".")[0]] = f"{module}.{alias.name}".strip(".")
        elif isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            changed.append(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            found |= {ast.unparse(node.func)} if node.func.attr in METHODS else set()
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in METHODS:
            changed.append(ast.Attribute(node.args[0], "setattr", ast.Store()))
    for target in changed:
        root: ast.expr = target
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        if isinstance(root, ast.Name) and root.id in imported:
            found.add(ast.unparse(target).replace(root.id, imported[root.id], 1))
    mocks = {name for name in imported.values() if "mock" in name.split(".")}
    return {name for name in found | mocks if not name.startswith(SWITCHES)}


def test_no_test_replaces_a_part_of_the_package():
    files = {*TESTS.rglob("*.py")} - ALLOWED - {Path(__file__)}
    found = {str(path): replaced(path.read_text(encoding="utf-8")) for path in files}
    assert not {path: parts for path, parts in found.items() if parts}


@pytest.mark.parametrize(
    "code",
    [
        "import ampcompare.sweeps.journal as journal\njournal.Journal.append = None",
        "from ampcompare.training.trainer import Trainer\nsetattr(Trainer, 'step', None)",
        "def test(monkeypatch):\n    monkeypatch.setattr('ampcompare.metrics.LOSS', 1)",
        "from unittest import mock",
    ],
)
def test_a_replaced_part_would_be_found(code: str):
    assert replaced(code)


def test_what_replaces_the_outside_refuses_the_package(outside: Outside):
    with pytest.raises(AssertionError, match="is the package's own"):
        outside.replace(ampcompare, "load_runs", None)
