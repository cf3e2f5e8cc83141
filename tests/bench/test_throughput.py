"""Throughput: what is counted, the limit, the table and its files."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from ampcompare.bench.throughput import run_throughput
from ampcompare.bench.throughput_table import bench_throughput, combinations, limit
from ampcompare.bench.traffic import KINDS, per_image
from ampcompare.config import load_config
from ampcompare.errors import UserError
from ampcompare.precision import REGISTRY

WORDS = ["model.name=tiny", "data.source=synthetic", "data.train_limit=100", "device=cpu", "batch_size=32"]


@pytest.mark.parametrize("backend", list(REGISTRY))
def test_the_arithmetic_of_an_image_is_that_of_its_layers_whatever_the_backend(backend: str):
    counted = per_image(backend, "tiny", "cifar")
    conv1, conv2, linear = 2 * 16 * 16 * 27 * 16, 2 * 8 * 8 * 9 * 16 * 32, 2 * 32 * 10
    # Forward, gradient of the weights, and of the inputs except of the first layer's.
    expected = 2 * conv1 + 3 * conv2 + 3 * linear
    for kind in KINDS:
        assert sum(flop for _, flop in counted[kind]) == pytest.approx(expected)


def test_fewer_ops_count_where_more_are_merged_and_half_moves_about_half():
    full, half = per_image("none", "resnet18", "cifar"), per_image("native", "resnet18", "cifar")
    sizes = [[sum(size for size, _ in ops[kind]) for kind in KINDS] for ops in (full, half)]
    for eager, merged, ideal in sizes:
        assert eager > merged > ideal > 0
    assert sizes[1][2] == pytest.approx(sizes[0][2] / 2, rel=0.02)


def test_the_limit_takes_the_longer_of_arithmetic_and_traffic_of_each_op():
    rates = {"float32": 10.0, "float16": 100.0, "tf32": 50.0}
    roofline = {"flop_per_second": rates, "bytes_per_second": 4.0}
    ops = [[8.0, 10.0], [4.0, 30.0]]  # bytes, FLOP
    assert limit(ops, roofline, load_config(None, [])) == pytest.approx(1 / (2 + 3))
    assert limit(ops, roofline, load_config(None, ["tf32=true"])) == pytest.approx(1 / (2 + 1))
    assert limit(ops, roofline, load_config(None, ["backend=native"])) == pytest.approx(1 / (2 + 1))
    disabled = load_config(None, ["backend=native", "precision.enabled=false"])
    assert limit(ops, roofline, disabled) == pytest.approx(1 / (2 + 3))


def test_only_full_batches_are_timed_and_all_of_them():
    found = run_throughput(WORDS, warmup=2, steps=5)  # three full batches and a short one an epoch
    assert len(found["step_ms"]) == 5
    assert found["images_per_second"] == pytest.approx(5 * 32 / sum(found["step_ms"]) * 1e3, rel=0.2)
    assert 0 < found["host_ms"] <= sum(found["step_ms"])
    assert found["config"]["batch_size"] == 32


def test_each_combination_is_a_row_with_its_files(tmp_path: Path):
    text = io.StringIO()
    console = Console(file=text, width=200)
    bench_throughput(["none", "native"], ["eager"], [16], 1, 5, "cpu", ["data.train_limit=64"], tmp_path, console)
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


def test_when_nothing_runs_it_says_so():
    text = io.StringIO()
    with pytest.raises(UserError, match="nothing could be measured"):
        bench_throughput(["none"], ["cuda_graph"], [16], 1, 5, "cpu", [], None, Console(file=text, width=200))
    assert "has no CUDA graphs" in text.getvalue()
