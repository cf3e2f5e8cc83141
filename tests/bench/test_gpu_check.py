"""`make gpu-check`: parts within their minutes, taken up where they were, judged by what they came to."""

from __future__ import annotations

import sys
from pathlib import Path

import gpu_check
import pytest
from gpu import needs, parts
from gpu.parts import Part

SYNTHETIC = needs.Images(("data.source=synthetic",))


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch):
    """A function that has gpu_check run these parts, as if there were a GPU."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(parts, "GRACE_SECONDS", 0.5)

    def run_these(*given: Part) -> None:
        monkeypatch.setattr(gpu_check, "parts", lambda out, images: list(given))

    return run_these


def started(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.endswith("...")]


def test_only_what_has_not_passed_is_run_again(on_gpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out, mended = tmp_path / "out", tmp_path / "mended"
    on_gpu(
        Part("good", python("print('once')")),
        Part("bad", python(f"import sys, pathlib; sys.exit(not pathlib.Path({str(mended)!r}).exists())")),
        Part("slow", python("import time; time.sleep(60)"), seconds=2),
        Part("judging", python(""), again=True),
    )
    assert gpu_check.main(["--out", str(out)]) == 1
    assert started(capsys) == ["good", "bad", "slow", "judging"]
    assert "once" in (out / "good.log").read_text()
    summary = (out / "summary.md").read_text()
    assert "| good | passed |" in summary
    assert "| bad | failed (exit code 1) |" in summary
    assert "| slow | over time (2 s) |" in summary
    mended.touch()
    assert gpu_check.main(["--out", str(out), "--only", "bad"]) == 1
    assert started(capsys) == ["bad"]
    assert "| bad | passed |" in (out / "summary.md").read_text()
    assert gpu_check.main(["--out", str(out), "--only", "d"]) == 1  # slow is not among them
    assert started(capsys) == ["judging"]


def test_the_most_telling_parts_come_first_and_none_takes_more_than_eight_minutes(tmp_path: Path):
    every = parts.parts(tmp_path, SYNTHETIC)
    names = [part.name for part in every]
    order = ["tests", "throughput-compared", "train-comparison-223-none", "throughput-half"]
    assert sorted(order, key=names.index) == order
    assert names.index("train-comparison-225-none") < names.index("train-comparison-223-fp16")
    assert names[-3:] == ["train-100-epochs-native", "comparison-report", "claims"]
    assert len(set(names)) == len(names)
    assert all(part.seconds <= 480 for part in every)
    drawn = [n.rpartition("-")[2] for n in names if n.startswith("train-comparison")][:9]
    assert all(set(drawn[i : i + 3]) == set(parts.COMPARED) for i in (0, 3, 6))
    assert len({tuple(drawn[i : i + 3]) for i in (0, 3, 6)}) > 1  # not one order for all
