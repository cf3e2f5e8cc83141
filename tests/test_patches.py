"""Tests replace nothing of the package: what they need it takes as an argument, or tells by its public API.

What is outside (the machine, Python, a library) is replaced by `support/outside.py` alone.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.outside import Outside
from support.quick import ROOT

import ampcompare
from ampcompare.config import schema

TESTS = ROOT / "tests"
# `support/ddp_worker.py` is a program of its own: it replaces `os.fsync` for all its life.
SCRIPTS = {TESTS / "support" / "ddp_worker.py": {"os.fsync"}}
METHODS = ("setattr", "delattr", "setitem", "delitem")  # of MonkeyPatch


def trees(path: Path) -> Iterator[ast.AST]:
    """Yield the code of a file, and of each program of the package that it has as a text."""
    module = ast.parse(path.read_text(encoding="utf-8"))
    yield module
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "ampcompare" in node.value:
            try:
                yield ast.parse(node.value)
            except (SyntaxError, ValueError):
                continue


def imported_names(tree: ast.AST) -> dict[str, str]:
    """Return what the names of a program's imports stand for, by name."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        module = getattr(node, "module", None)
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            name = alias.asname or alias.name.partition(".")[0]
            names[name] = f"{module}.{alias.name}" if module else alias.name
    return names


def replaced(tree: ast.AST) -> set[str]:
    """Return the attributes of modules and classes that a program assigns to, and its uses of MonkeyPatch."""
    names, found = imported_names(tree), set[str]()
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
            targets = [ast.Attribute(node.args[0], "setattr")]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in METHODS:
                found.add(ast.unparse(node.func))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            modules = {getattr(node, "module", None) or "", *(alias.name for alias in node.names)}
            found |= {module for module in modules if module.startswith("unittest.mock") or module == "mock"}
        for target in targets:
            root = target
            while isinstance(root, ast.Attribute | ast.Subscript):
                root = root.value
            if root is not target and isinstance(root, ast.Name) and root.id in names:
                text = ast.unparse(target)
                found.add(text.replace(root.id, names[root.id], 1))
    return found


def test_no_test_replaces_a_part_of_the_package():
    found: dict[str, set[str]] = {}
    for path in sorted(TESTS.rglob("*.py")):
        if path in (TESTS / "support" / "outside.py", Path(__file__)):
            continue
        parts = {part for tree in trees(path) for part in replaced(tree)} - SCRIPTS.get(path, set())
        # Switches of libraries that are made to be set; a test puts back what it sets.
        kept = {
            part
            for part in parts
            if not part.startswith(("os.environ", "sys.", "torch.backends.", "logging."))
        }
        if kept:
            found[str(path.relative_to(TESTS))] = kept
    assert not found


@pytest.mark.parametrize(
    "code",
    [
        "from ampcompare.sweeps import local\nlocal.STOP_SECONDS = 1",
        "import ampcompare.sweeps.journal as journal\njournal.Journal.append = None",
        "from ampcompare.training.trainer import Trainer\nsetattr(Trainer, 'step', None)",
        "from ampcompare.config import schema\nschema.OPTIONS['x'] = 1",
        "from ampcompare import metrics\ndel metrics.LOSS",
        "def test(monkeypatch):\n    monkeypatch.setattr('ampcompare.metrics.LOSS', 1)",
        "from unittest import mock",
        "from unittest.mock import patch",
        "import unittest.mock",
    ],
)
def test_a_replaced_part_would_be_found(code: str):
    assert replaced(ast.parse(code))


@pytest.mark.parametrize(("owner", "name"), [(ampcompare, "load_runs"), (schema.LogConfig, "every")])
def test_what_replaces_the_outside_refuses_the_package(outside: Outside, owner: object, name: str):
    with pytest.raises(AssertionError, match="is the package's own"):
        outside.replace(owner, name, None)
