"""The step as one CUDA graph. On a CPU the capture is played: recorded, then run again at each launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LRScheduler

from ampcompare import graph
from ampcompare.config import load_config
from ampcompare.data import build_dataset
from ampcompare.engine import StepResult, Trainer
from ampcompare.errors import UserError
from ampcompare.evaluation import Evaluation
from ampcompare.experiment import build_trainer, make_loader
from ampcompare.fit import Fit
from ampcompare.precision import REGISTRY

WORDS = ("optimizer.fused=true", "optimizer.momentum=0.9", "log.every=1", "data.train_limit=180", "epochs=3")
GPU = ("device=cuda", "model.name=resnet18", "data.train_limit=660", "epochs=2", "optimizer.lr=0.02")


def fit(quick: tuple[str, ...], *words: str) -> tuple[Fit, list[dict[str, Any]]]:
    """A Fit as the words say, on the CPU even if they ask for a graph; and the list of its rows."""
    config = load_config(None, [*quick, *WORDS, *words])
    device = torch.device(config.device)
    data = build_dataset(
        source="synthetic", root=None, train_limit=config.data.train_limit, test_limit=config.data.test_limit
    )
    train, test = (make_loader(config, part, device, training=part is data.train) for part in (data.train, data.test))
    rows: list[dict[str, Any]] = []
    return Fit(build_trainer(config, data, train, device), train, test, config, on_row=rows.append), rows


def timeless(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in r.items() if not k.startswith(("time/", "throughput/", "memory/"))} for r in rows]


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Capture without a GPU: each launch runs the step and fills the tensors that the capture gave out."""
    calls: list[str] = []

    def capture(step: Callable[[], Any], device: torch.device) -> tuple[Callable[[], None], StepResult]:
        calls.append("capture")
        out = StepResult(torch.zeros(()), [(torch.zeros(32, 10), torch.zeros(32, dtype=torch.int64))], 0, {})

        def launch() -> None:
            calls.append("launch")
            result = step()
            if result is None:  # an evaluation, which adds to its sums in place
                return
            out.loss.copy_(result.loss)
            for kept, new in zip(out.outputs[0], result.outputs[0], strict=True):
                kept.copy_(new)
            for key, value in result.gradients.items():
                out.gradients.setdefault(key, torch.zeros_like(value)).copy_(value)

        return launch, out

    monkeypatch.setattr(graph, "capture", capture)
    return calls


@pytest.mark.parametrize("backend", list(REGISTRY))
def test_a_graphed_run_logs_what_an_eager_one_does(quick_overrides: tuple[str, ...], backend: str, played: list[str]):
    words = (f"backend={backend}", "precision.init_scale=65536", "training.clip_norm=5", "diagnostics.every=7")
    eager, eager_rows = fit(quick_overrides, *words)
    eager.run()
    graphed, graphed_rows = fit(quick_overrides, *words, "execution=cuda_graph")
    graphed.run()
    assert timeless(graphed_rows) == timeless(eager_rows)
    # Three epochs of six batches, the last of each short. Not launched: three at first, short ones, looks (7, 14).
    assert played.count("capture") == 1
    assert played.count("launch") == 18 - 3 - 3 - 2


def test_the_learning_rate_of_a_launch_is_a_tensor_that_follows_the_schedule(
    quick_overrides: tuple[str, ...], played: list[str], monkeypatch: pytest.MonkeyPatch
):
    seen: list[Any] = []
    compute = Trainer.compute

    def look(self: Trainer, *args: Any, **kwargs: Any) -> StepResult:
        rate = self.optimizer.param_groups[0]["lr"]
        seen.append((rate.clone() if isinstance(rate, torch.Tensor) else rate, len(played) and played[-1]))
        return compute(self, *args, **kwargs)

    monkeypatch.setattr(Trainer, "compute", look)
    made, rows = fit(quick_overrides, "execution=cuda_graph", "diagnostics.every=null")
    made.run()
    assert [float(rate) for rate, _ in seen] == pytest.approx(
        [r["train/learning_rate"] for r in rows if "train/loss" in r]
    )
    kinds = [type(rate) for rate, _ in seen]
    assert kinds[:3] == [float] * 3
    assert kinds[3:5] == [torch.Tensor] * 2
    assert len({float(rate) for rate, _ in seen}) == 18
    assert isinstance(made.trainer.scheduler, LRScheduler)


def test_the_capture_is_no_step_to_time(quick_overrides: tuple[str, ...], played: list[str]):
    made, _ = fit(quick_overrides, "execution=cuda_graph", "diagnostics.every=null")
    loader = made.train
    results = [made.trainer.step([plan]) for plan in loader.plans(0)]  # type: ignore[attr-defined]
    assert [r.cold for r in results] == [False, False, False, True, False, False]
    assert [r.images for r in results] == [32] * 5 + [20]
    assert made.trainer.holds_peak


def test_the_short_batch_is_never_the_one_captured(quick_overrides: tuple[str, ...], played: list[str]):
    # Four batches an epoch: the fourth step, after the warm-up, has the short one.
    made, _ = fit(quick_overrides, "execution=cuda_graph", "diagnostics.every=null", "data.train_limit=100", "epochs=2")
    made.run()
    assert made.trainer._plan.shape == (4, 32)  # type: ignore[attr-defined]
    assert played.count("launch") == 3


def test_a_run_that_goes_on_at_a_short_batch_captures_the_full_one(quick_overrides: tuple[str, ...], played: list[str]):
    made, _ = fit(quick_overrides, "execution=cuda_graph", "diagnostics.every=null")  # six batches, the last short
    made.epoch, made.in_epoch, made.step = 0, 5, 5
    made.run()
    assert made.trainer._plan.shape == (4, 32)  # type: ignore[attr-defined]
    assert played.count("launch") == 2 * 5 - 3


@pytest.mark.parametrize("autocast", ["false", "true"])
@pytest.mark.parametrize("backend", list(REGISTRY))
def test_a_graphed_evaluation_gives_the_figures_of_an_eager_one(
    quick_overrides: tuple[str, ...], backend: str, autocast: str, played: list[str]
):
    words = (f"backend={backend}", f"eval.autocast={autocast}", "eval.batch_size=16", "diagnostics.every=null")
    found = []
    for how in ("eager", "cuda_graph"):
        made, rows = fit(quick_overrides, *words, f"execution={how}", "data.test_limit=100", "max_steps=3")
        made.run()
        figures = [{k: v for k, v in row.items() if k.startswith("eval/")} for row in rows]
        found.append([*figures, made.evaluation.run()])
    assert found[0] == found[1]
    assert "eval/top5_accuracy" in found[1][-1]
    # Six full batches of 16 and a short one, twice: all but the first three and the short ones are launches.
    assert played == ["capture"] + ["launch"] * (2 * 6 - 3)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", list(REGISTRY))
def test_a_graphed_evaluation_gives_the_figures_of_an_eager_one_on_a_gpu(
    quick_overrides: tuple[str, ...], backend: str
):
    words = (*GPU, f"backend={backend}", "data.test_limit=330", "eval.batch_size=32", "diagnostics.every=null")
    made, _ = fit(quick_overrides, *words, "execution=cuda_graph")
    made.run()  # ten full batches and a short one, twice: captured in the first evaluation
    graphed = made.evaluation.run()
    model, loader, precision = made.trainer.model, made.evaluation.loader, made.precision
    assert graphed == pytest.approx(Evaluation(model, loader, precision).run(), rel=1e-3, abs=2 / 330)


def test_a_graph_needs_a_fused_optimizer():
    with pytest.raises(UserError, match=r"execution='cuda_graph': needs optimizer.fused=true"):
        load_config(None, ["execution=cuda_graph", "optimizer.fused=false"])


@pytest.mark.gpu
@pytest.mark.parametrize("execution", ["compile", "cuda_graph", "compile_graph"])
@pytest.mark.parametrize("backend", list(REGISTRY))
def test_every_execution_gives_the_losses_of_eager_on_a_gpu(
    quick_overrides: tuple[str, ...], backend: str, execution: str
):
    words = (*GPU, f"backend={backend}", "precision.init_scale=1024", "diagnostics.every=10", "log.every=5")
    found = []
    for how in ("eager", execution):
        made, rows = fit(quick_overrides, *words, f"execution={how}")
        made.run()
        found.append([row["train/loss"] for row in rows if "train/loss" in row])
    assert len(found[0]) > 5
    # The first interval alone is comparable closely: cuDNN adds up in other orders, and training magnifies it.
    assert found[1][0] == pytest.approx(found[0][0], rel=2e-2)
    assert found[1] == pytest.approx(found[0], rel=0.25, abs=0.1)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", [name for name in REGISTRY if name != "none"])
def test_a_graph_moves_the_loss_scale_and_skips_on_a_gpu(quick_overrides: tuple[str, ...], backend: str):
    """A scale that overflows at first and then grows: nothing of it may be frozen at capture."""
    words = (*GPU, f"backend={backend}", "precision.init_scale=16777216", "precision.growth_interval=4", "log.every=1")
    found = []
    for how in ("eager", "cuda_graph"):
        made, rows = fit(quick_overrides, *words, f"execution={how}", "diagnostics.every=null")
        made.run()
        found.append([r["amp/scale_factor"] for r in rows if "train/loss" in r])
        assert made.precision.skipped_steps().item() > 0
    assert len(set(found[1])) > 3
    assert max(found[1][10:]) > min(found[1])  # it grew again
    assert found[1][:4] == found[0][:4]


@pytest.mark.gpu
def test_a_graph_reports_the_memory_that_it_holds_on_a_gpu(quick_overrides: tuple[str, ...]):
    peaks = []
    for how in ("eager", "cuda_graph"):
        torch.cuda.empty_cache()
        made, rows = fit(quick_overrides, *GPU, f"execution={how}", "batch_size=128", "diagnostics.every=null")
        made.run()
        peaks.append([row["memory/peak_mib"] for row in rows if "memory/peak_mib" in row][-1])
        del made
    assert 0.7 < peaks[1] / peaks[0] < 2
