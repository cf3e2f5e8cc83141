"""`make setup` says what pip does (.ci/install.py); a stand-in prints what pip would."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
from support.quick import HANG, ROOT

PROGRAM = ROOT / ".ci" / "install.py"
LINES = """Collecting torch>=2.11 (from -c constraints.txt (line 95))
  Downloading torch-2.14.1-cp311-cp311-manylinux_2_28_x86_64.whl.metadata (30 kB)
  Downloading torch-2.14.1-cp311-cp311-manylinux_2_28_x86_64.whl (532.6 MB)
  Using cached nvidia_cublas-13.1.0.3-py3-none-manylinux_2_27_x86_64.whl (1.5 GB)
WARNING: something of the index
Processing /shelf/rich-14.1.0-py3-none-any.whl
Installing collected packages: nvidia-cublas, torch, rich
Successfully installed nvidia-cublas-13.1.0.3 torch-2.14.1"""


@pytest.fixture(scope="module")
def install():
    spec = importlib.util.spec_from_file_location("install", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def progress(install, lines: int):
    found = install.Progress()
    for line in LINES.splitlines()[:lines]:
        found.add(line)
    return found


def test_the_line_tells_time_amount_and_what_goes_on(install):
    assert progress(install, 0).at(5) == "0:05  looking for packages"
    assert progress(install, 2).at(9) == "0:09  looking for torch"
    assert progress(install, 3).at(65) == "1:05  0.5 GB, 1 package, fetching torch (532.6 MB)"
    assert progress(install, 4).at(65) == "1:05  2.0 GB, 2 packages, fetching nvidia_cublas (1.5 GB)"
    assert progress(install, 7).at(190) == "3:10  2.0 GB, 3 packages, unpacking 3 packages"


def test_of_many_warnings_the_first_are_passed_on(install):
    found = install.Progress()
    for number in range(9):
        found.add(f"WARNING: {number}")
    assert found.warnings() == ["WARNING: 0", "WARNING: 1", "WARNING: 2", "(and 6 more of pip's warnings)"]


def run(code: int) -> subprocess.CompletedProcess[str]:
    pip = [sys.executable, "-c", f"print({LINES!r}); raise SystemExit({code})"]
    command = [sys.executable, str(PROGRAM), "installing", "much", "--", *pip]
    environment = os.environ | {"CI": "true"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG, check=False)


def test_in_ci_it_says_what_comes_and_that_it_is_there_and_passes_warnings_on():
    done = run(0)
    first, *between, last = done.stdout.splitlines()
    assert (done.returncode, first, between) == (0, "installing much", ["WARNING: something of the index"])
    assert last.startswith("installed in 0:")


def test_a_failure_shows_pips_last_lines_and_keeps_its_exit_code():
    done = run(3)
    assert done.returncode == 3
    assert LINES in done.stdout
    assert "exit code 3" in done.stdout
