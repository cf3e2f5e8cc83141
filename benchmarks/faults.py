"""Plant faults in the package by hand, and see whether the quick tests find them.

    OMP_NUM_THREADS=1 python benchmarks/faults.py --folder training   # the faults of one folder
    OMP_NUM_THREADS=1 python benchmarks/faults.py --only ID --all     # one fault, if need be with more tests

`faults.yaml` describes each fault by its behaviour: what is wrong for whom. The program plants one fault at a
time in a temporary git worktree of the present commit, and runs the named tests up to the first failure,
without those marked `slow`. With `--all`, a fault that they do not find goes to all tests of the folder. The
checkout is never changed. The exit code is 1 if a fault is not found that the file does not call a gap.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
LOADED_ONCE = ("torchvision", "pandas", "scipy.stats")  # before the tests of all faults
QUICK = ("-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "--timeout=300")
Fault = dict[str, Any]


@contextmanager
def temporary_worktree() -> Iterator[Path]:
    """Yield a worktree of the present commit."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, "HEAD"], cwd=ROOT, check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)


@contextmanager
def planted(fault: Fault, tree: Path) -> Iterator[None]:
    """Replace the old text, which must be there exactly once, and put it back afterwards."""
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
        compiled.unlink()  # Python would compare its time in whole seconds


class FirstFailure:
    """A plug-in of pytest that notes the first test, or the first module, that fails."""

    name = ""

    def note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """Note a result."""
        if report.failed and not self.name:
            self.name = report.nodeid

    pytest_runtest_logreport = pytest_collectreport = note


def run_tests(tree: Path, tests: list[str], left_out: Sequence[str] = ()) -> str:
    """Return the first test that fails, or an empty text. They run in a fork, which has loaded PyTorch."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.chdir(tree)
        os.environ["PYTHONPATH"] = str(tree / "src")
        sys.path.insert(0, str(tree / "src"))
        first = FirstFailure()
        with redirect_stdout(StringIO()):
            code = pytest.main([*QUICK, *tests, *(f"--deselect={name}" for name in left_out)], [first])
        os.write(writer, first.name.encode())
        os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        name = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not name and code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise SystemExit(f"{' '.join(tests)}: pytest ended with exit code {code}")
    return name


def find(fault: Fault, tree: Path, tests: list[str]) -> str:
    """Return the test that finds a fault, or an empty text. A test that fails without it finds nothing."""
    broken: list[str] = []
    while True:
        with planted(fault, tree):
            name = run_tests(tree, tests, broken)
        if not name or not run_tests(tree, [name]):
            return name
        print(f"fails without a fault, too: {name}", flush=True)
        broken.append(name)


def main() -> int:
    """Plant the faults that the command line chooses, and print what finds each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", metavar="ID", nargs="+", help="these faults")
    parser.add_argument("--folder", help="the faults of one folder of the package; . for its own modules")
    parser.add_argument("--all", action="store_true", help="try all tests of the folder after the named ones")
    options = parser.parse_args()
    faults: list[Fault] = yaml.safe_load((ROOT / "benchmarks/faults.yaml").read_text())
    chosen = [fault for fault in faults if options.folder in (None, fault["folder"])]
    chosen = [fault for fault in chosen if options.only is None or fault["id"] in options.only]
    for library in LOADED_ONCE:
        import_module(library)
    found = missed = 0
    with temporary_worktree() as tree:
        for fault in chosen:
            start = time.monotonic()
            name = find(fault, tree, [f"tests/{path}" for path in fault["tests"]])
            if not name and options.all:
                name = find(fault, tree, [f"tests/{fault['folder']}"])
            gap = fault.get("gap", "")
            found += bool(name)
            missed += not name and not gap
            result = f"found by {name}" if name else f"NOT FOUND {gap}".strip()
            print(f"{fault['id']:32} {result} ({time.monotonic() - start:.0f} s)", flush=True)
    print(f"{found} of {len(chosen)} faults found")
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
