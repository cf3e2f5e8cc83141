"""Plant faults in the package by hand, and see whether the quick tests find them.

    OMP_NUM_THREADS=1 python benchmarks/faults.py --folder training     # the faults of one folder
    OMP_NUM_THREADS=1 python benchmarks/faults.py --only ID --all       # one fault, if need be with all tests

`faults.yaml` describes each fault by its behaviour: what is wrong for whom. The program plants one fault at a
time in a temporary git worktree of the present commit, and runs the named tests up to the first failure,
without those marked `slow`. With `--all`, a fault that they do not find goes to all tests of the folder.
The checkout is never changed.
"""

import argparse
import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas  # noqa: F401: loaded once, for all tests
import pytest
import scipy.stats  # noqa: F401
import torch  # noqa: F401
import torchvision  # noqa: F401
import yaml

ROOT = Path(__file__).resolve().parents[1]
Fault = dict[str, Any]


@contextlib.contextmanager
def temporary_worktree() -> Iterator[Path]:
    """Yield a worktree of the present commit."""
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    tree = folder / "tree"
    subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, "HEAD"], cwd=ROOT, check=True)
    try:
        yield tree
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)
        shutil.rmtree(folder)


@contextlib.contextmanager
def planted(fault: Fault, tree: Path) -> Iterator[None]:
    """Replace the old text by the new one, which must be there exactly once, and restore it afterwards."""
    module = tree / "src/ampcompare" / fault["file"]
    original = module.read_text()
    count = original.count(fault["old"])
    if count != 1:
        raise SystemExit(f"{fault['id']}: the old text is {count} times in {fault['file']}, not once")
    try:
        _write(module, original.replace(fault["old"], fault["new"]))
        yield
    finally:
        _write(module, original)


def _write(module: Path, text: str) -> None:
    module.write_text(text)
    for compiled in module.parent.glob(f"__pycache__/{module.stem}.*.pyc"):
        compiled.unlink()  # Python compares whole seconds


class FirstFailure:
    """Pytest's plug-in that notes the first test, or the first module, that failed."""

    name = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test."""
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a module that cannot be imported."""
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid


def run_tests(tree: Path, paths: list[str]) -> str:
    """Return the first test that fails, or an empty string. A fork runs them: PyTorch is loaded already."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.chdir(tree)
        os.environ["PYTHONPATH"] = str(tree / "src")
        sys.path.insert(0, str(tree / "src"))
        first = FirstFailure()
        with contextlib.redirect_stdout(io.StringIO()):
            pytest.main(
                ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", *(f"tests/{path}" for path in paths)],
                plugins=[first],
            )
        os.write(writer, first.name.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        name = pipe.read()
    os.waitpid(child, 0)
    return name


def find(fault: Fault, tree: Path, *, all_tests: bool) -> str:
    """Return the test that finds a fault, or an empty string."""
    with planted(fault, tree):
        name = run_tests(tree, fault["tests"])
        whole_folder = fault["folder"]
        if name or not all_tests:
            return name
        return run_tests(tree, [whole_folder])


def main() -> None:
    """Plant the faults that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", metavar="ID", nargs="+", help="these faults")
    parser.add_argument("--folder", help="the faults of one folder of the package")
    parser.add_argument("--all", action="store_true", help="try all tests of the folder after the named ones")
    options = parser.parse_args()
    faults: list[Fault] = yaml.safe_load((ROOT / "benchmarks/faults.yaml").read_text())
    chosen = [
        fault
        for fault in faults
        if (not options.only or fault["id"] in options.only)
        and (not options.folder or fault["folder"] == options.folder)
    ]
    found = 0
    with temporary_worktree() as tree:
        for fault in chosen:
            start = time.monotonic()
            name = find(fault, tree, all_tests=options.all)
            found += bool(name)
            result = f"found by {name}" if name else "NOT FOUND"
            print(f"{fault['id']}: {result} ({time.monotonic() - start:.0f} s)", flush=True)
    print(f"{found} of {len(chosen)} faults found")


if __name__ == "__main__":
    main()
