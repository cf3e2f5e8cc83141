"""What only a GPU can show, what tells most first: no step waits, each execution trains alike, scales move.

`benchmarks/gpu.sh` runs these before it measures anything.
"""

import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from support.logs import logged
from support.outside import Outside
from support.properties import MECHANISMS
from support.quick import QUICK
from support.training import fit_of
from torch import Tensor, nn

from ampcompare import experiment, load_runs
from ampcompare.config.load import load_config
from ampcompare.precision import REGISTRY, build_precision
from ampcompare.precision.o1.patches import casts
from ampcompare.system.device import has_tf32, set_numerics
from ampcompare.training.completion import run_loop
from ampcompare.training.interval import StepResult
from ampcompare.training.loop import TrainingLoop
from ampcompare.training.resources import EnergyCounter
from ampcompare.training.step_log import StepLog
from ampcompare.training.timing import FIRST_STEPS, Timing

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")
HERE = [name for name, backend in REGISTRY.items() if not backend.uses_tf32 or has_tf32(CUDA)]
HALF, FLOAT = torch.float16, torch.float32
CAPTURED = ("execution=cuda_graph", "diagnostics.every=null")
# So slow a training that the order in which sums are taken does not move its losses: at ten times the rate it
# does, by 78 % after 40 steps in fp32.
RESNET = ("model.name=resnet18", "data.train_limit=660", "batch_size=64", "optimizer.lr=0.002", "log.every=1")


def fit(*words: str, **on: Any) -> tuple[TrainingLoop, list[dict[str, Any]]]:
    """A training loop on the GPU, and the list that its rows come to."""
    words = (*QUICK, "device=cuda", "recipe=reference", "optimizer.momentum=0.9", *words)
    return fit_of(load_config(None, words), torch.device("cuda"), **on)


def losses(rows: list[dict[str, Any]]) -> list[float]:
    return [row["train/loss"] for row in rows if "train/loss" in row]


def waits_of(*words: str, lag: bool = True) -> list[str]:
    """Train 100 steps; which waits were asked for in the steps 31 to 80.

    What PyTorch's debug mode sees itself (copies, what reads a value) is an error there. The device has done
    all in the middle of each log interval, and is behind when the interval ends.
    """
    seen: list[str] = []
    watched = False

    def noted(name: str, wait: Callable[..., None]) -> Callable[..., None]:
        def note(*args: Any) -> None:
            if watched:
                seen.append(name)
            wait(*args)

        return note

    def on_step(step: int) -> None:
        nonlocal watched
        if step % 10 == 5:
            watched = False
            torch.cuda.set_sync_debug_mode("default")
            torch.cuda.synchronize()
        elif step % 10 == 9:
            torch.cuda._sleep(20_000_000)  # 10 ms
        watched = 30 <= step < 80
        torch.cuda.set_sync_debug_mode("error" if watched else "default")

    made, rows = fit(
        *words, "epochs=1", "data.train_limit=3200", "batch_size=32", "log.every=10", on_step=on_step, lag=lag
    )
    with pytest.MonkeyPatch.context() as patch:
        for owner in (torch.cuda, torch.cuda.Event, torch.cuda.Stream):
            Outside(patch).replace(owner, "synchronize", noted(owner.__name__, owner.synchronize))
        try:
            made.run()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert (made.step, len(losses(rows))) == (100, 10)
    return seen


@pytest.mark.parametrize("backend", HERE)
def test_fifty_steps_wait_for_nothing(backend: str):
    """Logging, a look at the gradients where there is no graph, and the decision to skip a step included."""
    found = {}
    for execution in ("eager", "cuda_graph", "compile", "compile_graph"):
        looks = "null" if execution.endswith("_graph") else "2"
        words = (f"backend={backend}", f"execution={execution}", f"diagnostics.every={looks}")
        found[execution] = waits_of(*words)
    assert not {execution: seen for execution, seen in found.items() if seen}


def test_rows_that_are_read_at_once_wait():
    """The control of the test above: it sees a wait where there is one."""
    assert "Event" in waits_of("diagnostics.every=null", lag=False)


@pytest.mark.parametrize("backend", [name for name in (*MECHANISMS, "tf32") if name in HERE])
def test_every_execution_gives_the_losses_of_eager(backend: str):
    words = (
        *RESNET,
        f"backend={backend}",
        "precision.init_scale=1024",
        "diagnostics.every=10",
        "log.every=5",
    )
    found = {}
    for how in ("eager", "cuda_graph", "compile", "compile_graph"):
        made, rows = fit(*words, f"execution={how}", "diagnostics.every=10")
        made.run()
        found[how] = losses(rows)
    eager = found.pop("eager")
    assert len(eager) > 5
    assert not {how: rows for how, rows in found.items() if rows != pytest.approx(eager, rel=0.1)}, eager


@pytest.mark.parametrize("backend", [name for name in MECHANISMS if REGISTRY[name].scales])
def test_a_graph_moves_the_loss_scale_and_skips(backend: str):
    """A scale that overflows at first and then grows: nothing of it may be frozen at capture."""
    words = (*RESNET, f"backend={backend}", "precision.init_scale=16777216", "precision.growth_interval=4")
    found = []
    for how in ("eager", "cuda_graph"):
        made, rows = fit(*words, f"execution={how}", "diagnostics.every=null")
        made.run()
        found.append([row["amp/scale_factor"] for row in rows if "train/loss" in row])
        assert made.precision.skipped_steps().item() > 0
    assert len(set(found[1])) > 3
    assert max(found[1][10:]) > min(found[1])  # it grew again
    assert found[1][:4] == found[0][:4]


def test_a_run_that_stopped_goes_on_to_the_same_losses_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    found = {}
    for name, parts in {"whole": ("max_steps=20",), "parts": ("max_steps=11", "max_steps=20")}.items():
        monkeypatch.setenv("WANDB_RUN_ID", name)
        for steps in parts:
            words = (*QUICK, *RESNET, *CAPTURED, "device=cuda", "deterministic=true", "backend=native", steps)
            told = (f"output_dir={tmp_path / name}", "resume=auto")
            config = load_config(None, [*words, "data.test_limit=64", "epochs=4", *told])
            assert experiment.run(config, Console(file=io.StringIO())).exit_code == 0
        (record,) = load_runs([tmp_path / name])
        found[name] = record.history.set_index("global_step")["train/loss"].dropna().to_dict()
    assert len(found["whole"]) == 20
    assert found["parts"] == found["whole"]


def test_skipped_steps_leave_the_weights():
    for backend in ("native", "apex_o1"):
        for how in ({"fused": False}, {"fused": True}, {"fused": True, "momentum": 0.9}):
            precision = build_precision(backend, "cuda")
            weight = nn.Parameter(torch.ones(1000, device="cuda"))
            optimizer = torch.optim.SGD([weight], lr=0.5, **how)
            precision.prepare(nn.Module(), optimizer)
            for slope, expected in ((math.inf, 1.0), (1.0, 0.5), (math.nan, 0.5)):
                precision.backward((weight * slope).sum())
                precision.step(optimizer)
                optimizer.zero_grad()
                assert torch.equal(weight, torch.full_like(weight, expected)), (backend, how, slope)
            assert precision.skipped_steps().item() == 2
            assert precision.skipped_steps().device.type == precision.scale_factor().device.type == "cuda"


@pytest.mark.skipif(not has_tf32(CUDA), reason="the GPU has no TF32")
def test_tf32_rounds_products_by_more_than_fp32_and_by_less_than_a_hundredth():
    """TF32 has 11 significant bits: the relative error of a product, by norm, is about 4e-4."""
    random = torch.Generator().manual_seed(0)
    images, kernels = (torch.randn(32, 64, n, n, generator=random, dtype=torch.float64) for n in (16, 3))
    left, right = (torch.randn(512, 512, generator=random, dtype=torch.float64) for _ in range(2))
    products = {
        "convolution": (lambda x, w: nn.functional.conv2d(x, w), images, kernels),
        "matrix product": (torch.matmul, left, right),
    }

    def errors(backend: str, product: Callable[..., Tensor], x: Tensor, w: Tensor) -> list[float]:
        """Of the product and of both gradients."""
        found = []
        for device, dtype in (("cpu", torch.float64), ("cuda", FLOAT)):
            inputs = [t.to(device, dtype, copy=True).requires_grad_() for t in (x, w)]
            precision = build_precision(backend, "cuda")
            with precision.training_context(), precision.forward_context():
                y = product(*inputs)
                y.square().sum().backward()
            found.append([t.detach().double().cpu() for t in (y, *(t.grad for t in inputs))])
        return [float((a - b).norm() / b.norm()) for b, a in zip(*found, strict=True)]

    set_numerics(tf32=False, cudnn_benchmark=False, deterministic=False)
    for name, (product, x, w) in products.items():
        assert max(errors("none", product, x, w)) < 5e-5, name
        assert all(5e-5 < error < 1e-2 for error in errors("tf32", product, x, w)), name
        assert max(errors("none", product, x, w)) < 5e-5, name  # the switches are as they were


def test_no_memory_left_within_a_capture_is_one_line():
    here = torch.cuda.current_stream()

    def leave_nothing(step: int) -> None:
        if step == FIRST_STEPS:
            torch.cuda.empty_cache()
            held = torch.cuda.memory_reserved() + 8 * 2**20
            torch.cuda.set_per_process_memory_fraction(held / torch.cuda.mem_get_info()[1])

    made, _ = fit(*RESNET, *CAPTURED, "batch_size=128", on_step=leave_nothing)
    try:
        with logged() as said:
            assert run_loop(made) == 1
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert made.step == FIRST_STEPS + 1
    assert len(said) == 1
    assert said[0].startswith("error: out of memory on cuda")
    assert torch.cuda.current_stream() == here
    assert torch.ones(4, device="cuda").sum().item() == 4


def test_o1_casts_what_lies_on_the_device_alone():
    here, there = torch.eye(2), torch.eye(2, device="cuda")
    with casts():
        assert torch.mm(here, here).dtype is FLOAT
        assert torch.mm(there, there).dtype is HALF
        assert torch.exp(here.half()).dtype is HALF
        assert torch.exp(there.half()).dtype is FLOAT
        assert (there.half() + torch.tensor(1.0)).dtype is FLOAT
        assert there.half().cpu().dtype is FLOAT


def test_timing_and_energy_measure_the_device_not_the_queue():
    """A step that is queued in microseconds takes as long as the device sleeps: 0.1 s at 3 GHz."""
    device = torch.device("cuda")
    rows: list[dict[str, Any]] = []
    loss_scale = build_precision("none", device)
    timing = Timing(device, warmup_steps=1, energy=EnergyCounter(device))
    logger = StepLog(loss_scale, timing, rows.append, every=4)
    logger.resume()
    for step in range(1, 5):
        torch.cuda._sleep(300_000_000)
        logger.add(step, None, StepResult(torch.ones((), device=device), 1), None)
    logger.flush()
    logger.pause()
    assert rows[0]["throughput/step_time_ms"] > 90
    assert all(row["energy/joules_per_image"] > 0 for row in rows[1:])
