"""`make gpu-check`: parts within their minutes, taken up where they were, judged by what they came to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from support.quick import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import gpu_check
from gpu import needs, parts, runner
from gpu.parts import Part

BENCHMARKS = ROOT / "benchmarks"
INF = float("inf")
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


def test_what_a_part_started_ends_with_it(on_gpu, tmp_path: Path):
    """Also where the part itself is told to end and does, and its own child would go on."""
    alive = tmp_path / "alive"
    child = f"import time, pathlib\nwhile True: pathlib.Path({str(alive)!r}).touch(); time.sleep(0.05)"
    parent = (
        f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)"
    )
    on_gpu(Part("nested", python(parent), seconds=5))
    assert gpu_check.main(["--out", str(tmp_path / "out")]) == 1
    assert "over time" in (tmp_path / "out" / "summary.md").read_text()
    alive.unlink()
    time.sleep(0.3)
    assert not alive.exists()


def test_after_the_minutes_no_part_is_started(on_gpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    on_gpu(Part("good", python("")), Part("cut", python(""), least=1))
    assert gpu_check.main(["--out", str(tmp_path / "out"), "--minutes", "0"]) == 1
    assert "goes on with good" in capsys.readouterr().out
    assert "| good | to do |" in (tmp_path / "out" / "summary.md").read_text()


def test_no_part_is_started_that_cannot_end_in_time(
    on_gpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """A shorter one behind it is."""
    on_gpu(Part("long", python("")), Part("short", python(""), seconds=60))
    assert gpu_check.main(["--out", str(tmp_path / "out"), "--minutes", "5"]) == 1
    printed = capsys.readouterr().out
    assert "short ..." in printed
    assert "long ..." not in printed
    assert "5 minutes do not hold long; started again it goes on with long" in printed


@pytest.mark.parametrize(
    ("left", "seconds", "least", "expected"),
    [
        (INF, 480, None, 480),
        (480, 480, None, 480),
        (479, 480, None, None),
        (INF, 480, 120, 480),
        (200, 480, 120, 200),
        (119, 480, 120, None),
        (INF, 480, 481, None),
    ],
)
def test_a_part_gets_what_is_left_if_it_can_be_cut_else_all_or_nothing(
    left: float, seconds: int, least: int | None, expected: float | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(runner.Budget, "left", lambda self: left)
    assert runner.Budget(1, 0).of(Part("x", (), seconds, least)) == expected


def test_a_part_that_can_be_cut_is_started_with_less_than_it_may_take():
    seconds = runner.Budget(5, time.monotonic()).of(Part("x", (), 480, least=1))
    assert seconds is not None
    assert 1 < seconds <= 5 * 60 - runner.PACKING_SECONDS


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


def test_parts_run_from_a_checkout_that_is_not_installed(on_gpu, tmp_path: Path):
    code = "import ampcompare, sys; sys.exit('/src/ampcompare' not in ampcompare.__file__)"
    on_gpu(Part("import", (sys.executable, "-S", "-c", code)))
    assert gpu_check.main(["--out", str(tmp_path / "out")]) == 0


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_told_to_end_it_packs_what_came_out(number: signal.Signals, tmp_path: Path):
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    here, out = tmp_path / "here", tmp_path / "out"
    command = [*python(MAIN.replace("{here}", str(here))), str(BENCHMARKS), str(out)]
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while not here.exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    process.send_signal(number)
    printed = process.communicate()[0]
    assert process.returncode == 130, printed
    assert f"told to end ({number.name})" in printed
    assert printed.splitlines()[-1] == f"{out}.tar.xz"
    with tarfile.open(f"{out}.tar.xz") as tar:
        text = tar.extractfile("out/summary.md").read().decode()  # type: ignore[union-attr]
    assert "| one | interrupted (after" in text


def test_each_start_ends_by_packing_also_when_a_part_fails(
    on_gpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    on_gpu(Part("bad", python("print('why'); raise SystemExit(3)")))
    archive = tmp_path / "elsewhere" / "home.tar.xz"
    assert gpu_check.main(["--out", str(tmp_path / "out"), "--archive", str(archive)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == str(archive)
    with tarfile.open(archive) as tar:
        assert set(tar.getnames()) == {"out/summary.md", "out/bad.log", "out/states/bad.json"}


@pytest.mark.slow
def test_every_gpu_test_is_in_some_part():
    """The parts' selections, put together, leave no test with the gpu mark out."""

    def collect(*words: str) -> set[str]:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "gpu", *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        return {line for line in done.stdout.splitlines() if "::" in line}

    commands = [part.command for part in parts.parts(Path("out"), SYNTHETIC)]
    words = [command[len(parts.PYTEST) :] for command in commands if "pytest" in command]
    # One collection for each would take a minute: those by keyword are joined.
    keywords = " or ".join(f"({w[w.index('-k') + 1]})" for w in words if "-k" in w)
    (rest,) = (w for w in words if "-k" not in w)
    found = collect(*rest) | collect("tests/train/test_fit.py", "tests/train/test_graph.py", "-k", keywords)
    assert collect("tests") == found
    assert len(found) > 40


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


def test_the_long_training_waits_for_a_rate_at_which_it_fits(tmp_path: Path):
    def measured(rate: float, where: str = "throughput-compared") -> Part:
        folder = tmp_path / where
        folder.mkdir(exist_ok=True)
        row = {"backend": "native", "execution": "compile_graph", "images_per_second": {"median": rate}}
        content = {"environment": {"device_type": "cuda"}, "rows": [row]}
        (folder / "throughput-gpu-20260101T000000.json").write_text(json.dumps(content))
        return next(p for p in parts.parts(tmp_path, SYNTHETIC) if "100-epochs" in p.name)

    unknown = next(p for p in parts.parts(tmp_path, SYNTHETIC) if "100-epochs" in p.name)
    assert unknown.waits == "for native's throughput"
    assert measured(5000).waits == "for a faster GPU: 1060 s at 5,000 images/s, a part has 450 s"
    fast = measured(20_000)
    assert fast.waits == ""
    assert fast.least == 250 + 60 + 30
    assert "execution=compile_graph" in fast.command
    assert "fuse=true" not in measured(30_000, "throughput-bf16").command  # bf16's rate is none of fp16's
    assert fast.least == measured(30_000, "throughput-bf16").least
    assert "fuse=true" in measured(25_000, "throughput-fused").command


def test_without_a_gpu_it_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert gpu_check.main(["--out", str(tmp_path / "new")]) == 2
    assert capsys.readouterr().err.startswith("error: gpu-check needs a CUDA device")
    assert not (tmp_path / "new").exists()
