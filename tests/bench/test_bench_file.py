"""The file of `bench --json`: SciPy computes its figures again from its rounds."""

import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats
from support.bench_results import arm, failed, measured_result, result_of
from support.quick import ROOT

from ampcompare.analysis.bench_file import BenchFile
from ampcompare.bench.cli import build_arms, show_result
from ampcompare.bench.runner import BenchmarkArm, Schedule, run_benchmark

PUBLISHED = ROOT / "docs" / "results" / "2026-11-26-h200"


def by_scipy(starts: Sequence[dict[str, Any]], level: float) -> tuple[float, float, float]:
    """Return speed-up, lower and upper end from the rounds of the file."""
    rates = [(start["images_per_second"], start["baseline_images_per_second"]) for start in starts]
    ratios = [np.divide(own, base) for own, base in rates]
    if len(starts) < 3:
        rounds = np.concatenate(ratios)
        ends = stats.quantile_test(rounds, q=1, p=0.5).confidence_interval(level)
        return np.median(rounds), ends.low, ends.high
    logs = np.log([np.median(own) for own in ratios])
    low, high = stats.t.interval(level, len(logs) - 1, logs.mean(), stats.sem(logs))
    return np.exp(logs.mean()), np.exp(low), np.exp(high)


def write(result: BenchFile, arms: Sequence[BenchmarkArm], folder: Path) -> tuple[Path, str]:
    """Return the file of a result, and what the command prints."""
    console = Console(file=io.StringIO(), width=200)
    show_result(result, arms, console, json=folder / "bench.json")
    return folder / "bench.json", console.file.getvalue()


def check_figures(file: Path, printed: str) -> None:
    content = json.loads(file.read_text())
    rows = [line.split() for line in printed.splitlines()[1:]]
    for one, row in zip((*content["arms"], content["control"]), rows, strict=False):
        starts = one["measured"]
        if one is not content["arms"][0]:
            ratio, low, high = by_scipy(starts, content["level"])
            assert (one["ratio"], one["low"], one["high"]) == pytest.approx((ratio, low, high))
            decimals = len(row[-6].rpartition(".")[2]) - 1
            ends = f"{low:.{decimals}f} to {high:.{decimals}f}".split()
            assert row[-6:-2] == [f"{ratio:.{decimals}f}x", *ends]
        for key in ("images_per_second", "step_ms"):
            assert one[key] == pytest.approx(np.median([np.median(start[key]) for start in starts]))
        assert one["rounds"] == sum(len(start["step_ms"]) for start in starts)
        assert one["peak_mib"] == max(start["peak_mib"] for start in starts)


@pytest.mark.parametrize("starts", [1, 2, 3, 5])
def test_every_figure_follows_from_the_rounds_of_the_file(starts: int, tmp_path: Path):
    check_figures(*write(measured_result(starts), [], tmp_path))


def test_the_program_of_the_page_prints_the_intervals(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    result = measured_result(1)
    write(result, [], tmp_path)
    (program,) = re.findall(
        r"^```python\n(import json.*?)^```", (ROOT / "docs/bench.md").read_text(), re.M | re.S
    )
    exec(program, {})
    (native,) = result.arms[1:]
    label, *figures = capsys.readouterr().out.split()
    assert label == "native"
    assert [*map(float, figures)] == pytest.approx([native.ratio, native.low, native.high])


@pytest.mark.slow
def test_the_figures_of_a_real_benchmark_follow_from_the_rounds_of_its_file(tmp_path: Path):
    words = "model.name=tiny data.source=synthetic device=cpu backend=none,apex_o1 batch_size=8,16"
    arms, progress = build_arms(words.split()), []
    # The rounds end it, not the minutes, which a busy machine may need.
    result = run_benchmark(arms, Schedule(5, looks=(3, 6, 12), turn_seconds=0.02), progress.append)
    file, printed = write(result, arms, tmp_path)
    check_figures(file, printed)
    assert BenchFile.read(file) == result
    assert [one.label for one in result.arms] == [one.label for one in arms]
    assert result.level == 1 - 0.05 / 12
    for one in (*result.arms, result.control):
        samples = int(one.options["batch_size"])
        assert one.step_ms * one.images_per_second == pytest.approx(1e3 * samples, rel=0.3)
        assert (one.failed, one.rounds) == (None, 12)
        assert one.peak_mib > 100
    text = "\n".join(progress)
    assert "loading PyTorch, network and data of 5 trainings: " in text
    assert "first steps of training 5/5, apex_o1 batch_size=16: " in text


def test_a_failed_training_has_its_reason_and_no_figures(tmp_path: Path):
    result = result_of(arm("none"), failed("native", "out of luck"))
    file, printed = write(result, [], tmp_path)
    assert "native failed: out of luck" in printed
    assert BenchFile.read(file).arms[1] == result.arms[1]
    assert result.arms[1].ratio is None


@pytest.mark.parametrize(
    "name", ["backends", "compiled", "ladder", "ladder-compiled", "loops", "transformer"]
)
def test_files_of_earlier_versions_are_read_with_their_figures(name: str):
    content = json.loads((PUBLISHED / f"{name}.json").read_text())
    read = BenchFile.read(PUBLISHED / f"{name}.json").model_dump()
    for old, new in zip(
        (*content["arms"], content["control"]), (*read["arms"], read["control"]), strict=True
    ):
        assert {key: new[key] for key in old} == old
    assert {key: read[key] for key in content.keys() - {"arms", "control"}} == {
        key: value for key, value in content.items() if key not in ("arms", "control")
    }
