"""What is taken home of a GPU check: records and figures, in one archive that is small enough."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from support.quick import QUICK, ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

from gpu import packing

from ampcompare.records import load_runs


def write(path: Path, content: bytes, written: int = 1_000_000) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (written, written))


def names(archive: Path) -> set[str]:
    with tarfile.open(archive) as tar:
        return set(tar.getnames())


def read(archive: Path, name: str) -> bytes:
    with tarfile.open(archive) as tar:
        file = tar.extractfile(name)
        assert file is not None
        return file.read()


def test_records_and_figures_are_packed_and_what_is_large_is_not(tmp_path: Path):
    out = tmp_path / "out"
    for name in (
        "summary.md",
        "tests.log",
        "throughput-x/rounds.jsonl",
        "runs/wandb/offline-run-1/run-1.wandb",
    ):
        write(out / name, b"x")
    for name in ("runs/checkpoints/1/step.pt", ".site/wandb.py", "runs/wandb/offline-run-1/tmp/code.py"):
        write(out / name, b"x")
    (out / "runs/wandb/latest-run").symlink_to("offline-run-1")
    assert packing.pack(out, tmp_path / "out.tar.xz") == []
    kept = ("summary.md", "tests.log", "throughput-x/rounds.jsonl", "runs/wandb/offline-run-1/run-1.wandb")
    assert names(tmp_path / "out.tar.xz") == {f"out/{name}" for name in kept}


def test_a_long_log_loses_its_middle_and_the_archive_says_so(tmp_path: Path):
    out, archive = tmp_path / "out", tmp_path / "out.tar.xz"
    write(out / "tests.log", b"first\n" + b"." * 600_000 + b"\nlast")
    (line,) = packing.pack(out, archive)
    text = read(archive, "out/tests.log")
    assert text.startswith(b"first\n")
    assert text.endswith(b"\nlast")
    assert b"bytes left out" in text
    assert len(text) < 300_000
    assert line.startswith("tests.log: its middle")
    assert line in read(archive, "out/left-out.txt").decode()


def test_what_is_too_large_stays_behind_and_so_do_the_oldest(tmp_path: Path):
    out, archive = tmp_path / "out", tmp_path / "out.tar.xz"
    draw = random.Random(0)
    write(out / "huge.wandb", draw.randbytes(400_000), written=2_000_000)
    for number in range(6):
        write(out / f"run-{number}.wandb", draw.randbytes(100_000), written=1_000_000 + number)
    archive.write_bytes(b"the last start's")
    lines = packing.pack(out, archive, limit=350_000)
    assert archive.stat().st_size <= 350_000
    assert names(archive) == {"out/run-3.wandb", "out/run-4.wandb", "out/run-5.wandb", "out/left-out.txt"}
    assert [line.partition(":")[0] for line in lines] == [
        "huge.wandb",
        "run-2.wandb",
        "run-1.wandb",
        "run-0.wandb",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.tar.xz"]


@pytest.mark.slow
def test_records_that_were_packed_are_read_elsewhere(tmp_path: Path):
    out, home = tmp_path / "gpu-check", tmp_path / "home"
    command = [sys.executable, "run_experiment.py", *QUICK, f"output_dir={out / 'runs-comparison'}"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    packing.pack(out, tmp_path / "gpu-check.tar.xz")
    with tarfile.open(tmp_path / "gpu-check.tar.xz") as tar:
        tar.extractall(home, filter="data")
    (there,), (here,) = load_runs([out]), load_runs([home / "gpu-check" / "runs-comparison"])
    assert here.state == "finished"
    assert here.history.equals(there.history)
    assert not list(home.rglob("*.pt"))
