"""Throughput: what is timed, the table and its files."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from ampcompare.bench.throughput import table as throughput_table
from ampcompare.bench.throughput.baselines import BASELINES
from ampcompare.bench.throughput.measure import run_throughput
from ampcompare.bench.throughput.table import bench_throughput, combinations
from ampcompare.errors import UserError

WORDS = ["model.name=tiny", "data.source=synthetic", "data.train_limit=100", "device=cpu", "batch_size=32"]


def test_only_full_batches_are_timed_and_all_of_them():
    found = run_throughput(WORDS, warmup=2, steps=5)  # three full batches and a short one an epoch
    assert len(found["step_ms"]) == 5
    assert found["images_per_second"] > 0
    assert 0 < found["host_ms"] <= sum(found["step_ms"])
    assert found["config"]["batch_size"] == 32


def test_fewer_images_than_a_step_takes_are_refused():
    """There would be no full batch, and no end of looking for one."""
    with pytest.raises(
        UserError, match=r"data.train_limit=100: no full step of batch_size=32 .*accumulate=4 to time"
    ):
        run_throughput([*WORDS, "training.accumulate=4"], warmup=1, steps=1)


@pytest.mark.slow
def test_each_combination_is_a_row_with_its_files(tmp_path: Path):
    text = io.StringIO()
    console = Console(file=text, width=200)
    bench_throughput(
        ["none", "native"], ["eager"], [16], 1, 5, "cpu", ["data.train_limit=64"], tmp_path, console
    )
    assert "small" in text.getvalue()
    (path,) = tmp_path.glob("throughput-*.json")
    stored = json.loads(path.read_text())
    assert [row["backend"] for row in stored["rows"]] == ["none", "native"]
    assert stored["rows"][0]["speed_up"] == 1.0
    assert stored["rows"][1]["rounds"][0]["config"]["backend"] == "native"
    assert stored["roofline"]["flop_per_second"]["float32"] > 1e9
    assert "| native | eager | 16 |" in path.with_suffix(".md").read_text()
    assert "<svg" in path.with_suffix(".svg").read_text()


def test_what_cannot_run_is_refused_before_anything_is_measured():
    with pytest.raises(UserError, match="backend='o1'"):
        combinations(["o1"], ["eager"], [16], [], "cpu")
    with pytest.raises(UserError, match="no such key"):
        combinations(["none"], ["eager"], [16], ["speed=1"], "cpu")
    with pytest.raises(UserError, match=r"--execution 'fast': expected some of eager, .*seed-style, plain"):
        combinations(["none"], ["fast"], [16], [], "cpu")


@pytest.mark.slow
def test_what_was_measured_before_an_interrupt_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    measure, calls = throughput_table.measure, []

    def interrupted(module: str, request: dict, what: str) -> dict:
        calls.append(what)
        if calls.count("native eager batch 16") == 1:
            raise KeyboardInterrupt
        return measure(module, request, what)

    monkeypatch.setattr(throughput_table, "measure", interrupted)
    console = Console(file=io.StringIO(), width=200)
    with pytest.raises(KeyboardInterrupt):
        bench_throughput(
            ["none", "native"], ["eager"], [16], 3, 5, "cpu", ["data.train_limit=64"], tmp_path, console
        )
    (path,) = tmp_path.glob("throughput-*.json")
    rows = json.loads(path.read_text())["rows"]
    assert rows[0]["images_per_second"]["n"] == 1
    assert "images_per_second" not in rows[1]
    assert "not measured" in path.with_suffix(".md").read_text()


@pytest.mark.parametrize("loop", list(BASELINES))
@pytest.mark.parametrize("backend", ["none", "native"])
def test_the_loops_written_by_hand_train_on_full_batches(loop: str, backend: str):
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    try:
        found = run_throughput([*WORDS, f"backend={backend}"], warmup=1, steps=4, loop=loop)
    finally:
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before
    assert len(found["step_ms"]) == 4
    assert found["loss"] > 0
    assert found["loop"] == loop
    assert not found["environment"]["fused"]


def test_the_table_knows_the_loops_and_gives_them_the_backends_that_they_have():
    assert set(throughput_table.BASELINES) == set(BASELINES)
    rows = combinations(["none", "apex_o1", "native"], ["eager", "plain"], [16], [], "cpu")
    pairs = [(row.backend, row.execution, row.config.execution) for row in rows]
    assert pairs == [
        ("none", "eager", "eager"),
        ("apex_o1", "eager", "eager"),
        ("native", "eager", "eager"),
        ("none", "plain", "eager"),
        ("native", "plain", "eager"),
    ]
    with pytest.raises(UserError, match="none and native"):
        combinations(["apex_o1"], ["plain"], [16], [], "cpu")
