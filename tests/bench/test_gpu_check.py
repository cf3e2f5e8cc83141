"""`make gpu-check`: parts that are taken up where they were, judged by what they came to."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_check.py"
spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
assert spec is not None
assert spec.loader is not None
gpu_check = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gpu_check)


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Three parts: one that passes, one that fails until a file is there, one that takes too long."""
    import torch

    mended = tmp_path / "mended"
    commands = {
        "good": (sys.executable, "-c", "print('once')"),
        "bad": (sys.executable, "-c", f"import sys, pathlib; sys.exit(not pathlib.Path({str(mended)!r}).exists())"),
        "slow": (sys.executable, "-c", "import time; time.sleep(60)"),
    }
    monkeypatch.setattr(gpu_check, "parts", lambda out, data: commands)
    monkeypatch.setattr(gpu_check, "LIMIT_SECONDS", 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return tmp_path / "out", mended


def started(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.split()[1] for line in capsys.readouterr().out.splitlines() if "..." in line]


def test_only_what_has_not_passed_is_run_again(three, capsys: pytest.CaptureFixture[str]):
    out, mended = three
    assert gpu_check.main(["--out", str(out)]) == 1
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines() if "..." in line] == [
        "good",
        "bad",
        "slow",
    ]
    assert "once" in (out / "good.log").read_text()
    summary = (out / "summary.md").read_text()
    assert "| good | passed |" in summary
    assert "| bad | failed (exit code 1) |" in summary
    assert "| slow | over time (2 s) |" in summary
    mended.touch()
    assert gpu_check.main(["--out", str(out), "--only", "bad"]) == 1
    assert started(capsys) == ["bad"]
    assert "| bad | passed |" in (out / "summary.md").read_text()


def test_what_a_part_started_ends_with_it(three, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Also where the part itself is told to end and does, and its own child would go on."""
    alive = tmp_path / "alive"
    child = f"import time, pathlib\nwhile True: pathlib.Path({str(alive)!r}).touch(); time.sleep(0.05)"
    parent = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)"
    commands = {"nested": (sys.executable, "-c", parent)}
    monkeypatch.setattr(gpu_check, "parts", lambda out, data: commands)
    assert gpu_check.main(["--out", str(tmp_path / "out")]) == 1
    assert "over time" in (tmp_path / "out" / "summary.md").read_text()
    alive.unlink()
    time.sleep(0.3)
    assert not alive.exists()


def test_after_the_minutes_no_part_is_started(three, capsys: pytest.CaptureFixture[str]):
    out, _ = three
    assert gpu_check.main(["--out", str(out), "--minutes", "0"]) == 1
    assert "goes on with good" in capsys.readouterr().out
    assert "| good | to do |" in (out / "summary.md").read_text()


def test_parts_run_from_a_checkout_that_is_not_installed(three, monkeypatch: pytest.MonkeyPatch):
    out, _ = three
    code = "import ampcompare, sys; sys.exit('/src/ampcompare' not in ampcompare.__file__)"
    monkeypatch.setattr(gpu_check, "parts", lambda out, data: {"import": (sys.executable, "-S", "-c", code)})
    assert gpu_check.main(["--out", str(out)]) == 0


def test_every_gpu_test_is_in_some_part():
    """The parts' selections, put together, leave no test with the gpu mark out."""

    def collect(*words: str) -> set[str]:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "gpu", *words]
        done = subprocess.run(command, cwd=SCRIPT.parents[1], capture_output=True, text=True, check=False)
        return {line for line in done.stdout.splitlines() if "::" in line}

    words = [
        command[len(gpu_check.PYTEST) :] for command in gpu_check.parts(Path("out")).values() if "pytest" in command
    ]
    # One collection for each would take a minute: those by keyword are joined.
    keywords = " or ".join(f"({w[w.index('-k') + 1]})" for w in words if "-k" in w)
    (rest,) = (w for w in words if "-k" not in w)
    found = collect(*rest) | collect("tests/test_fit.py", "tests/test_graph.py", "-k", keywords)
    assert collect("tests") == found
    assert len(found) > 40


def test_without_a_gpu_it_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert gpu_check.main(["--out", str(tmp_path / "new")]) == 2
    assert capsys.readouterr().err.startswith("error: gpu-check needs a CUDA device")
    assert not (tmp_path / "new").exists()
