"""`make gpu-check`: parts within their minutes, taken up where they were, judged by what they came to."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import gpu_check
import gpu_claims
import pytest
from gpu import needs, packing, parts, runner
from gpu.parts import Part
from support.quick import ROOT

BENCHMARKS = ROOT / "benchmarks"
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


def test_a_part_that_is_cut_short_keeps_its_state_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It is told by a signal, on which it may save; the next start finds what it saved."""
    under_way, saved = tmp_path / "under-way", tmp_path / "saved"

    class OutOfTimeWhenUnderWay(subprocess.Popen):
        def wait(self, timeout: float | None = None) -> int:
            if timeout == 1000 and not saved.exists():
                while not under_way.exists():
                    time.sleep(0.02)
                raise subprocess.TimeoutExpired(self.args, timeout)
            return super().wait(timeout)

    monkeypatch.setattr(runner.subprocess, "Popen", OutOfTimeWhenUnderWay)
    code = (
        f"import pathlib, time, sys\nsaved = pathlib.Path({str(saved)!r})\nif saved.exists(): sys.exit(0)\n"
        f"try:\n    pathlib.Path({str(under_way)!r}).touch(); time.sleep(600)\n"
        "except KeyboardInterrupt:\n    saved.touch(); sys.exit(130)"
    )
    part, seconds = Part("training", python(code), least=1), 1000 + 2 * parts.GRACE_SECONDS
    assert runner.run_part(part, tmp_path, needs.environment(), seconds).startswith("cut short (after")
    assert runner.read_state("training", tmp_path)["state"].startswith("cut short (after")
    assert saved.exists()
    assert runner.run_part(part, tmp_path, needs.environment(), seconds) == "passed"


FAKE_TORCH = "class cuda:\n    is_available = staticmethod(lambda: True)\n"
MAIN = """
import sys
sys.path.insert(0, sys.argv[1])
import gpu_check
from gpu import parts
parts.GRACE_SECONDS = 2
code = "import pathlib, time; pathlib.Path('{here}').touch(); time.sleep(60)"
gpu_check.parts = lambda out, images: [parts.Part("one", (sys.executable, "-c", code))]
sys.exit(gpu_check.main(["--out", sys.argv[2]]))
"""


def test_told_to_end_it_packs_what_came_out(tmp_path: Path):
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    here, out = tmp_path / "here", tmp_path / "out"
    command = [*python(MAIN.replace("{here}", str(here))), str(BENCHMARKS), str(out)]
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while not here.exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    printed = process.communicate()[0]
    assert process.returncode == 130, printed
    assert "told to end (SIGTERM)" in printed
    assert printed.splitlines()[-1] == f"{out}.tar.xz"
    with tarfile.open(f"{out}.tar.xz") as tar:
        text = tar.extractfile("out/summary.md").read().decode()  # type: ignore[union-attr]
    assert "| one | interrupted (after" in text


def test_the_most_telling_parts_come_first_and_none_takes_more_than_eight_minutes(tmp_path: Path):
    every = parts.parts(tmp_path, SYNTHETIC)
    names = [part.name for part in every]
    order = ["tests", "throughput-compared", "train-comparison-223-none", "throughput-half", "recipe"]
    assert sorted(order, key=names.index) == order
    assert names.index("train-comparison-225-none") < names.index("train-comparison-223-fp16")
    assert names[-3:] == ["train-100-epochs-native", "comparison-report", "claims"]
    assert len(set(names)) == len(names)
    assert all(part.seconds <= 480 for part in every)
    drawn = [n.rpartition("-")[2] for n in names if n.startswith("train-comparison")][:9]
    assert all(set(drawn[i : i + 3]) == set(parts.COMPARED) for i in (0, 3, 6))
    assert len({tuple(drawn[i : i + 3]) for i in (0, 3, 6)}) > 1  # not one order for all


def keep(path: Path, content: bytes, written: int = 1_000_000) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (written, written))


def test_what_is_too_large_stays_behind_and_so_do_the_oldest(tmp_path: Path):
    out, archive = tmp_path / "out", tmp_path / "out.tar.xz"
    draw = random.Random(0)
    keep(out / "huge.wandb", draw.randbytes(400_000), written=2_000_000)
    for number in range(6):
        keep(out / f"run-{number}.wandb", draw.randbytes(100_000), written=1_000_000 + number)
    archive.write_bytes(b"the last start's")
    lines = packing.pack(out, archive, limit=350_000)
    assert archive.stat().st_size <= 350_000
    with tarfile.open(archive) as tar:
        names = set(tar.getnames())
    assert names == {"out/run-3.wandb", "out/run-4.wandb", "out/run-5.wandb", "out/left-out.txt"}
    assert [line.partition(":")[0] for line in lines] == [
        "huge.wandb",
        "run-2.wandb",
        "run-1.wandb",
        "run-0.wandb",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.tar.xz"]


def row(backend: str, execution: str, rate: float, busy: float | None = None) -> dict[str, Any]:
    rounds = [{"environment": {"tf32": False}}]
    limits = {"eager": 900.0, "merged": 1000.0, "ideal": 2000.0}
    found = {"backend": backend, "execution": execution, "busy": busy, "limits": limits, "rounds": rounds}
    return {**found, "images_per_second": {"median": rate}}


def write(folder: Path, name: str, rows: list[dict[str, Any]], device: str = "cuda") -> None:
    folder.joinpath(f"throughput-{name}.json").write_text(
        json.dumps({"environment": {"device_type": device}, "rows": rows})
    )


def verdicts(folder: Path) -> dict[str, tuple[float | None, bool]]:
    return {claim.words: (claim.found, claim.holds) for claim in gpu_claims.judge(folder)}


def test_the_best_execution_is_held_against_the_loops_beside_it(tmp_path: Path):
    rows = [
        row("native", "eager", 400),
        row("native", "cuda_graph", 700, 0.97),
        row("native", "compile_graph", 650, 0.9),
    ]
    rows += [row("native", "plain", 500), row("native", "seed-style", 350), row("none", "cuda_graph", 850)]
    write(tmp_path, "loops", rows)
    # Neither loop was measured beside these: no claim about the best execution is taken from them.
    write(tmp_path, "other", [row("native", "eager", 100), row("apex_o1", "eager", 94)])
    write(
        tmp_path,
        "cpu",
        [row("native", "eager", 1), row("apex_o1", "eager", 9), row("native", "plain", 1)],
        "cpu",
    )
    found = verdicts(tmp_path)
    assert found["native, best execution: share of the merged limit"] == (0.7, True)
    assert found["native, best execution: share of a step that the GPU is busy"] == (0.97, True)
    assert found["native, best execution: times the seed-style loop"] == (2.0, False)
    assert found["native, best execution: times the plain eager loop"] == (1.4, True)
    assert found["none without TF32, best execution: share of the merged limit"] == (0.85, True)
    assert found["apex_o1 eager: times native eager"] == (0.94, False)
    assert found["apex_o2 compile: times native compile"] == (None, False)
    assert not any(claim.startswith("fp16") for claim in found)
    assert found["native, 100 epochs with evaluation: minutes"] == (None, False)
