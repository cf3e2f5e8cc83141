"""Claims are held against the figures of a GPU, within one file, and what was not measured does not hold."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_claims.py"
spec = importlib.util.spec_from_file_location("gpu_claims", SCRIPT)
assert spec is not None
assert spec.loader is not None
gpu_claims = importlib.util.module_from_spec(spec)
sys.modules["gpu_claims"] = gpu_claims  # dataclasses look their module up
spec.loader.exec_module(gpu_claims)


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


def test_a_combination_that_failed_is_not_measured(tmp_path: Path):
    failed = {"backend": "native", "execution": "plain", "refused": "out of memory"}
    write(tmp_path, "loops", [row("native", "eager", 400), failed])
    assert verdicts(tmp_path)["native, best execution: times the plain eager loop"] == (None, False)


def test_the_table_is_written_and_the_exit_code_says_whether_all_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert gpu_claims.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: expected one folder")
    write(tmp_path, "loops", [row("native", "eager", 400), row("native", "plain", 100)])
    assert gpu_claims.main([str(tmp_path)]) == 1
    assert (
        "| native, best execution: times the plain eager loop | at least 1.3 | 4 | holds |"
        in (tmp_path / "claims.md").read_text()
    )


def test_of_a_benchmark_that_went_on_the_newest_file_counts(tmp_path: Path):
    """Each holds the rounds of the one before."""
    (tmp_path / "throughput-compared").mkdir()
    for date, rate in (("zeta-20260101T000000", 1), ("alpha-20260102T000000", 2)):
        write(
            tmp_path / "throughput-compared", date, [row("native", "eager", rate), row("apex_o1", "eager", 2)]
        )
    (claim,) = (c for c in gpu_claims.judge(tmp_path) if c.words == "apex_o1 eager: times native eager")
    assert claim.found == 1
    assert claim.source == "throughput-compared/throughput-alpha-20260102T000000.json"
    assert gpu_claims.fastest_native(tmp_path) == (("execution=eager",), 2)
