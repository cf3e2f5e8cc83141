"""Throughput: what is counted, the limit, the table and its files."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from ampcompare.bench.throughput import table as throughput_table
from ampcompare.bench.throughput.baselines import BASELINES, HandWritten
from ampcompare.bench.throughput.measure import count_traffic, run_throughput
from ampcompare.bench.throughput.table import bench_throughput, combinations, is_ceiling, limit
from ampcompare.bench.throughput.traffic import megabytes, per_image
from ampcompare.config.backend_choice import settle
from ampcompare.config.load import load_config
from ampcompare.errors import UserError
from ampcompare.measure.traffic import KINDS, Traffic
from ampcompare.models import build_model
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
    full, half = (per_image(backend, "resnet18", "cifar", batch_size=10**9) for backend in ("none", "native"))
    sizes = [[megabytes(ops[kind]) for kind in KINDS] for ops in (full, half)]
    for eager, merged, ideal in sizes:
        assert eager > merged > ideal > 0
    assert sizes[1][2] == pytest.approx(sizes[0][2] / 2, rel=0.02)


def test_weights_are_shared_out_over_the_batch():
    small, large = (megabytes(per_image("none", "tiny", "cifar", batch_size=n)["ideal"]) for n in (1, 10**9))
    weights = 4 * sum(p.numel() for p in build_model("tiny", "cifar", 10).parameters()) / 1e6
    # The optimizer alone moves them five times; forward and backward read and write those of convolutions,
    # too.
    assert 5 * weights < small - large < 10 * weights


def test_a_pointwise_op_costs_its_other_inputs_when_merged_and_a_batch_norm_its_second_look():
    x, y, weight, bias = torch.zeros(2, 3, 4, 4), torch.zeros(2, 3, 4, 4), torch.ones(3), torch.ones(3)
    with Traffic() as traffic:
        torch.relu(x)
        x + y
        torch.nn.functional.batch_norm(x, None, None, weight, bias, training=True)
    size, channel = 4 * 2 * 3 * 16, 4 * 3
    relu, add, norm = (op.sizes for op in traffic.ops)
    assert relu == (2 * size, 0, 0)
    assert add == (3 * size, size, 0)
    assert norm == (3 * size + 4 * channel, 3 * size + 4 * channel, 2 * size + 4 * channel)


def test_the_limit_takes_the_longer_of_arithmetic_and_traffic_of_each_op():
    rates = {"float32": 10.0, "float16": 100.0, "tf32": 50.0}
    roofline = {"flop_per_second": rates, "bytes_per_second": 4.0}
    ops = [[8.0, 10.0], [4.0, 30.0]]  # bytes, FLOP
    assert limit(ops, roofline, "float32") == pytest.approx(1 / (2 + 3))
    assert limit(ops, roofline, "float32", tf32=True) == pytest.approx(1 / (2 + 1))
    assert limit(ops, roofline, "float16") == pytest.approx(1 / (2 + 1))


@pytest.mark.parametrize(
    ("device", "dtype", "arithmetic", "expected"),
    [
        ("cuda", "float16", None, True),
        ("cpu", "float32", None, True),
        ("cpu", "bfloat16", {"bfloat16": "amx_bf16"}, True),
        ("cpu", "float16", {"bfloat16": "amx_bf16", "float16": "emulated"}, False),
        ("cpu", "bfloat16", {"bfloat16": "unknown"}, False),
        ("cpu", "bfloat16", None, False),  # measured before it was recorded
    ],
)
def test_products_that_a_cpu_emulates_are_no_ceiling(device: str, dtype: str, arithmetic, expected: bool):
    assert is_ceiling(dtype, {"device_type": device, "arithmetic": arithmetic}) is expected


@pytest.mark.parametrize(
    ("words", "dtype"),
    [
        ([], "float32"),
        (["backend=native"], "float16"),
        (["backend=native", "precision.dtype=bfloat16"], "bfloat16"),
        (["backend=native", "precision.enabled=false"], "float32"),
    ],
)
def test_products_are_counted_in_the_type_of_the_backend(words: list[str], dtype: str):
    assert count_traffic([*WORDS, *words])["dtype"] == dtype


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
def test_when_nothing_runs_it_says_so():
    text = io.StringIO()
    with pytest.raises(UserError, match="nothing could be measured"):
        bench_throughput(["none"], ["cuda_graph"], [16], 1, 5, "cpu", [], None, Console(file=text, width=200))
    assert "has no CUDA graphs" in text.getvalue()


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


def test_they_lower_the_loss_as_any_training_does():
    words = ["optimizer.lr=0.3", "optimizer.momentum=0.9", "backend=native"]
    config = settle(load_config(None, [*WORDS, *words]))
    made = HandWritten(config, 10, torch.device("cpu"), torch.contiguous_format)
    images, labels = torch.randn(16, 3, 32, 32), torch.arange(16) % 10
    losses = [made.forward_backward(images, labels)[1].item() for _ in range(30)]
    assert losses[-1] < losses[0] / 2


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
