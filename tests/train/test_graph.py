"""The step as one CUDA graph. On a CPU the capture is played: recorded, then run again at each launch."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.properties import backends
from torch.optim.lr_scheduler import LRScheduler

from ampcompare import experiment
from ampcompare.checkpoint.files import Store
from ampcompare.checkpoint.keeper import RunKeeper
from ampcompare.checkpoint.resume import Identity
from ampcompare.config.load import load_config
from ampcompare.data.dataset import build_dataset
from ampcompare.errors import UserError
from ampcompare.measure.memory import Memory
from ampcompare.precision import REGISTRY
from ampcompare.program.stopping import StopRequest
from ampcompare.tracking.tracker import NoRecord
from ampcompare.train import graph
from ampcompare.train.build import build_trainer, make_loader
from ampcompare.train.errors import TrainingError
from ampcompare.train.evaluation import Evaluation
from ampcompare.train.fit import Fit
from ampcompare.train.graph import capturing
from ampcompare.train.task import classification
from ampcompare.train.trainer import StepResult, Trainer

WORDS = ("optimizer.fused=true", "optimizer.momentum=0.9", "log.every=1", "data.train_limit=180", "epochs=3")
CPU = torch.device("cpu")
GPU = ("device=cuda", "model.name=resnet18", "data.train_limit=660", "epochs=2", "optimizer.lr=0.02")


FUSED = ("eager fuse", "cuda_graph fuse")


def how_words(how: str) -> tuple[str, str]:
    """The options of an execution, with `fuse` behind it or not."""
    execution, _, fuse = how.partition(" ")
    return f"execution={execution}", f"fuse={bool(fuse)}"


def fit(quick: tuple[str, ...], *words: str) -> tuple[Fit, list[dict[str, Any]]]:
    """A Fit as the words say, on the CPU even if they ask for a graph; and the list of its rows."""
    config = load_config(None, [*quick, *WORDS, *words])
    device = torch.device(config.device)
    data = build_dataset(
        source="synthetic", root=None, train_limit=config.data.train_limit, test_limit=config.data.test_limit
    )
    train, test = (
        make_loader(config, part, device, training=part is data.train) for part in (data.train, data.test)
    )
    rows: list[dict[str, Any]] = []
    return Fit(build_trainer(config, data, train, device), train, test, config, on_row=rows.append), rows


def timeless(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in r.items() if not k.startswith(("time/", "throughput/", "memory/"))} for r in rows
    ]


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Capture without a GPU: each launch runs the step and fills the tensors that the capture gave out."""
    calls: list[str] = []

    def capture(step: Callable[[], Any], device: torch.device) -> tuple[Callable[[], None], Any]:
        calls.append("capture")
        compute = weakref.WeakMethod(step)  # a real launch knows its graph alone, not the trainer
        if step.__name__ == "_add_captured":  # an evaluation, which adds to its sums in place
            answers = torch.zeros(16, dtype=torch.uint8)

            def evaluate() -> None:
                calls.append("launch")
                answers.copy_(compute()())  # type: ignore[misc]

            return evaluate, answers
        out = StepResult(torch.zeros(()), [(torch.zeros(32, 10), torch.zeros(32, dtype=torch.int64))], 0, {})

        def launch() -> None:
            calls.append("launch")
            result = compute()()  # type: ignore[misc]
            out.loss.copy_(result.loss)
            for kept, new in zip(out.outputs[0], result.outputs[0], strict=True):
                kept.copy_(new)
            for key, value in result.gradients.items():
                out.gradients.setdefault(key, torch.zeros_like(value)).copy_(value)

        return launch, out

    monkeypatch.setattr(graph, "capture", capture)
    return calls


@backends(REGISTRY)
def test_a_graphed_run_logs_what_an_eager_one_does(
    quick_overrides: tuple[str, ...], backend: str, played: list[str]
):
    words = (
        f"backend={backend}",
        "precision.init_scale=65536",
        "training.clip_norm=5",
        "diagnostics.every=7",
    )
    eager, eager_rows = fit(quick_overrides, *words)
    eager.run()
    graphed, graphed_rows = fit(quick_overrides, *words, "execution=cuda_graph")
    graphed.run()
    assert timeless(graphed_rows) == timeless(eager_rows)
    # Three epochs of six batches, the last of each short. Not launched: three at first, short ones, looks (7,
    # 14).
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


def test_the_short_batch_is_never_the_one_captured(quick_overrides: tuple[str, ...], played: list[str]):
    # Four batches an epoch: the fourth step, after the warm-up, has the short one.
    made, _ = fit(
        quick_overrides, "execution=cuda_graph", "diagnostics.every=null", "data.train_limit=100", "epochs=2"
    )
    made.run()
    assert made.trainer._plan.shape == (4, 32)  # type: ignore[attr-defined]
    assert played.count("launch") == 3


def test_a_run_that_goes_on_at_a_short_batch_captures_the_full_one(
    quick_overrides: tuple[str, ...], played: list[str]
):
    made, _ = fit(
        quick_overrides, "execution=cuda_graph", "diagnostics.every=null"
    )  # six batches, the last short
    made.epoch, made.in_epoch, made.step = 0, 5, 5
    made.run()
    assert made.trainer._plan.shape == (4, 32)  # type: ignore[attr-defined]
    assert played.count("launch") == 2 * 5 - 3


@pytest.mark.parametrize("autocast", ["false", "true"])
@backends(REGISTRY)
def test_a_graphed_evaluation_gives_the_figures_of_an_eager_one(
    quick_overrides: tuple[str, ...], backend: str, autocast: str, played: list[str]
):
    words = (
        f"backend={backend}",
        f"eval.autocast={autocast}",
        "eval.batch_size=16",
        "diagnostics.every=null",
    )
    found = []
    for how in ("eager", "cuda_graph"):
        made, rows = fit(quick_overrides, *words, f"execution={how}", "data.test_limit=100", "max_steps=3")
        made.run()
        figures = [{k: v for k, v in row.items() if k.startswith("eval/")} for row in rows]
        last = made.evaluation.run()
        found.append([*figures, last, made.evaluation.answers.tolist()])
        right = (made.evaluation.answers == made.evaluation.loader.labels).double().mean()
        assert last["eval/accuracy"] == pytest.approx(right.item())
    assert found[0] == found[1]
    assert "eval/top5_accuracy" in found[1][-2]
    # Six full batches of 16 and a short one, twice: all but the first three and the short ones are launches.
    assert played == ["capture"] + ["launch"] * (2 * 6 - 3)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", list(REGISTRY))
def test_a_graphed_evaluation_gives_the_figures_of_an_eager_one_on_a_gpu(
    quick_overrides: tuple[str, ...], backend: str
):
    words = (
        *GPU,
        f"backend={backend}",
        "data.test_limit=330",
        "eval.batch_size=32",
        "diagnostics.every=null",
    )
    made, _ = fit(quick_overrides, *words, "execution=cuda_graph")
    made.run()  # ten full batches and a short one, twice: captured in the first evaluation
    graphed = made.evaluation.run()
    model, loader, precision = made.trainer.model, made.evaluation.loader, made.precision
    eager = Evaluation(model, loader, precision)
    assert graphed == pytest.approx(eager.run(), rel=1e-3, abs=2 / 330)
    assert (made.evaluation.answers == eager.answers).sum() >= 330 - 2  # type: ignore[union-attr]


@pytest.fixture
def collector() -> Iterator[None]:
    """Whatever a test does with the garbage collector, afterwards it is on."""
    yield
    gc.enable()


@pytest.mark.parametrize("execution", ["eager", "cuda_graph"])
@backends(REGISTRY, few=("apex_o1",))
def test_a_training_is_freed_without_the_garbage_collector(
    quick_overrides: tuple[str, ...],
    backend: str,
    execution: str,
    played: list[str],
    collector: None,
    tmp_path: Path,
):
    words = ("training.clip_norm=5", "diagnostics.every=4", "epochs=2", "eval.batch_size=16")
    made, _ = fit(quick_overrides, f"backend={backend}", f"execution={execution}", *words)
    made.keeper = RunKeeper(NoRecord(), Store(tmp_path), Identity(made.config, "", "cpu"), {}, print)
    gc.collect()
    gc.disable()
    made.run()
    trainer = made.trainer
    parts = [
        trainer,
        trainer.model,
        *trainer.model.parameters(),
        trainer.optimizer,
        trainer.scheduler,
        made.rows,
        made.evaluation,
    ]
    alive = [weakref.ref(part) for part in (made, *parts)]
    del made, trainer, parts
    assert [type(ref()).__name__ for ref in alive if ref() is not None] == []


class Stream:
    device = torch.device("cpu")

    def wait_stream(self, other: Stream) -> None: ...


class Cuda:
    """The parts of torch.cuda that a capture uses: which stream is the current one, and what it was at each
    step.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.default = self.now = Stream()
        self.end: BaseException | None = None  # what the end of a capture raises
        self.on: list[bool] = []  # whether the garbage collector was, when a capture began and ended
        self.captured_on: list[Stream] = []
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: self)
        for name in ("graph", "stream"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.now)
        monkeypatch.setattr(torch.cuda, "device", nullcontext)

    def replay(self) -> None: ...

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.now = self.now, stream
        try:
            yield
        finally:
            self.now = before

    @contextmanager
    def graph(self, made: Any, stream: Stream) -> Iterator[None]:
        """As PyTorch's: an end that fails leaves the stream of the capture as the current one."""
        before, self.now = self.now, stream
        self.captured_on.append(stream)
        self.on.append(gc.isenabled())
        try:
            yield
        finally:
            self.on.append(gc.isenabled())
            if self.end:
                raise self.end
            self.now = before


class Cycle:
    """What only the garbage collector frees."""

    def __init__(self) -> None:
        self.me = self


@pytest.mark.parametrize("was_on", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_garbage_is_collected_before_a_capture_and_not_within(
    monkeypatch: pytest.MonkeyPatch, was_on: bool, fails: bool, collector: None
):
    cuda = Cuda(monkeypatch)
    old = weakref.ref(Cycle())
    found: list[Any] = []

    def step() -> Any:
        found.append((old(), gc.isenabled()))
        if fails:
            raise KeyError
        return found

    (gc.enable if was_on else gc.disable)()
    with pytest.raises(KeyError) if fails else nullcontext():
        graph.Captures(CPU, Memory(CPU)).capture(step)
    assert found == [(None, False)]
    assert cuda.on == [False, False]
    assert gc.isenabled() == was_on


def test_one_side_stream_serves_the_capture_and_all_steps_without_it(
    quick_overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    made, _ = fit(quick_overrides, "execution=cuda_graph", "diagnostics.every=null")
    cuda = Cuda(monkeypatch)
    trainer: Any = made.trainer
    side = trainer.captures.stream = Stream()
    seen: list[Stream] = []
    compute = Trainer.compute

    def look(self: Trainer, *args: Any, **kwargs: Any) -> StepResult:
        seen.append(cuda.now)
        return compute(self, *args, **kwargs)

    monkeypatch.setattr(Trainer, "compute", look)
    for plan in made.train.plans(0):  # type: ignore[attr-defined]
        trainer.step([plan])
    for _ in range(4):
        made.evaluation.run()
    # Three steps, the capture, and the short batch of the epoch behind it.
    assert seen == [side] * 5
    assert cuda.captured_on == [side] * 2  # the evaluation's too
    assert cuda.now is cuda.default


@pytest.mark.parametrize("hidden", [False, True])
def test_no_memory_left_within_a_capture_is_one_line_and_leaves_nothing_behind(
    quick_overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, hidden: bool
):
    made, rows = fit(quick_overrides, "execution=cuda_graph", "diagnostics.every=null")
    cuda = Cuda(monkeypatch)
    trainer: Any = made.trainer
    trainer.captures.stream = Stream()
    cuda.end = (
        RuntimeError("CUDA error: operation failed due to a previous error during capture")
        if hidden
        else None
    )
    compute = Trainer.compute

    def fails(self: Trainer, *args: Any, **kwargs: Any) -> StepResult:
        if cuda.captured_on:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return compute(self, *args, **kwargs)

    monkeypatch.setattr(Trainer, "compute", fails)
    said: list[str] = []
    assert experiment._train(made, StopRequest(), said.append) == 1
    assert len(said) == 1
    assert "error: out of memory on cpu with batch_size=32; try a smaller batch_size" in said[0]
    assert [row["global_step"] for row in rows if "train/loss" in row] == [1, 2, 3]
    assert cuda.now is cuda.default
    assert gc.isenabled()
    assert isinstance(made.trainer.optimizer.param_groups[0]["lr"], float)


@pytest.mark.parametrize("name", ["adam", "adamw"])
@pytest.mark.parametrize("resumed", [False, True])
def test_adam_says_nothing_in_the_steps_before_a_capture(
    quick_overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, name: str, resumed: bool
):
    """PyTorch warns where `capturable=True` is used without a graph; not after the optimizer's own
    constructor.
    """
    words = ("execution=cuda_graph", f"optimizer.name={name}", "optimizer.momentum=0")
    (made, _), (other, _) = (fit(quick_overrides, *words) for _ in range(2))
    trainer: Any = made.trainer
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("cuda"))
    monkeypatch.setattr(
        torch.accelerator, "current_stream", lambda: SimpleNamespace(is_capturing=lambda: False)
    )
    plans = made.train.plans(0)  # type: ignore[attr-defined]
    if resumed:
        trainer.optimizer.load_state_dict(other.trainer.optimizer.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.step([next(plans)])
    trainer.optimizer._warned_capturable_if_run_uncaptured = False
    with pytest.warns(UserWarning, match="capturable=True"):  # the check is there and sees this step
        trainer.step([next(plans)])


def test_a_graph_needs_a_fused_optimizer():
    with pytest.raises(UserError, match=r"execution='cuda_graph': needs optimizer.fused=true"):
        load_config(None, ["execution=cuda_graph", "optimizer.fused=false"])


@pytest.mark.gpu
@pytest.mark.parametrize("execution", ["compile", "cuda_graph", "compile_graph", *FUSED])
@pytest.mark.parametrize("backend", list(REGISTRY))
def test_every_execution_gives_the_losses_of_eager_on_a_gpu(
    quick_overrides: tuple[str, ...], backend: str, execution: str
):
    words = (*GPU, f"backend={backend}", "precision.init_scale=1024", "diagnostics.every=10", "log.every=5")
    found = []
    for how in ("eager", execution):
        made, rows = fit(quick_overrides, *words, *how_words(how))
        made.run()
        found.append([row["train/loss"] for row in rows if "train/loss" in row])
    assert len(found[0]) > 5
    # The first interval alone is comparable closely: cuDNN adds up in other orders, and training magnifies
    # it.
    assert found[1][0] == pytest.approx(found[0][0], rel=2e-2)
    assert found[1] == pytest.approx(found[0], rel=0.25, abs=0.1)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", [name for name in REGISTRY if name != "none"])
def test_a_graph_moves_the_loss_scale_and_skips_on_a_gpu(quick_overrides: tuple[str, ...], backend: str):
    """A scale that overflows at first and then grows: nothing of it may be frozen at capture."""
    words = (
        *GPU,
        f"backend={backend}",
        "precision.init_scale=16777216",
        "precision.growth_interval=4",
        "log.every=1",
    )
    found = []
    for how in ("eager", "cuda_graph"):
        made, rows = fit(quick_overrides, *words, f"execution={how}", "diagnostics.every=null")
        made.run()
        found.append([r["amp/scale_factor"] for r in rows if "train/loss" in r])
        assert made.precision.skipped_steps().item() > 0
    assert len(set(found[1])) > 3
    assert max(found[1][10:]) > min(found[1])  # it grew again
    assert found[1][:4] == found[0][:4]


def streams() -> set[int]:
    """Those that memory is held for."""
    return {segment["stream"] for segment in torch.cuda.memory_snapshot()}


@pytest.mark.gpu
def test_a_graph_reports_the_memory_that_it_holds_on_a_gpu(quick_overrides: tuple[str, ...]):
    peaks = []
    for how in ("eager", "cuda_graph"):
        torch.cuda.empty_cache()
        before = streams()
        made, rows = fit(
            quick_overrides, *GPU, f"execution={how}", "batch_size=128", "diagnostics.every=null"
        )
        made.run()
        peak, reserved = [
            (r["memory/peak_mib"], r["memory/reserved_mib"]) for r in rows if "memory/peak_mib" in r
        ][-1]
        assert peak <= reserved
        peaks.append(peak)
        assert len(streams() - before) <= (
            how == "cuda_graph"
        )  # the side stream, where no earlier test had it
        del made
    # The short batch of an epoch has its activations beside those of the graph.
    assert 1 < peaks[1] / peaks[0] < 2


@pytest.mark.gpu
def test_what_is_allocated_beside_a_graph_adds_to_the_peak_on_a_gpu(quick_overrides: tuple[str, ...]):
    made, _ = fit(quick_overrides, *GPU, "execution=cuda_graph", "diagnostics.every=null")
    made.run()
    before = made.trainer.memory.peak_mib()
    big = torch.empty(2**26, dtype=torch.float32, device="cuda")  # 256 MiB
    assert made.trainer.memory.peak_mib() - before > 0.5 * big.nbytes / 2**20


@pytest.mark.gpu
def test_no_memory_left_within_a_capture_is_one_line_on_a_gpu(quick_overrides: tuple[str, ...]):
    made, _ = fit(quick_overrides, *GPU, "execution=cuda_graph", "batch_size=128", "diagnostics.every=null")
    cuda = torch.device("cuda", torch.cuda.current_device())
    here = torch.cuda.current_stream()

    def leave_nothing(step: int) -> None:
        if step == graph.WARM_UP_STEPS:
            torch.cuda.empty_cache()
            held = torch.cuda.memory_reserved() + 8 * 2**20
            torch.cuda.set_per_process_memory_fraction(
                held / torch.cuda.get_device_properties(cuda).total_memory
            )

    made.on_step = leave_nothing
    said: list[str] = []
    try:
        assert experiment._train(made, StopRequest(), said.append) == 1
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert made.step == graph.WARM_UP_STEPS + 1
    assert len(said) == 1
    assert said[0].startswith("error: out of memory on cuda")
    assert torch.cuda.current_stream() == here
    assert torch.ones(4, device="cuda").sum().item() == 4


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_adam_trains_by_a_graph_as_without_and_says_nothing_on_a_gpu(
    quick_overrides: tuple[str, ...], name: str
):
    words = (
        *GPU,
        f"optimizer.name={name}",
        "optimizer.momentum=0",
        "optimizer.lr=0.001",
        "diagnostics.every=null",
    )
    found = []
    for how in ("eager", "cuda_graph"):
        made, rows = fit(quick_overrides, *words, "log.every=5", f"execution={how}")
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*capturable")
            made.run()
        found.append([row["train/loss"] for row in rows if "train/loss" in row])
    assert found[1][0] == pytest.approx(found[0][0], rel=2e-2)
    assert found[1] == pytest.approx(found[0], rel=0.25, abs=0.1)


def test_a_capture_that_fails_names_a_loss_from_outside_and_nothing_of_ours():
    own = replace(classification(), sources={"task_r2_source": "0"})
    with (
        pytest.raises(TrainingError, match=r"what task\.\* names \(r2\) wait for the device"),
        capturing(own),
    ):
        raise RuntimeError("operation not permitted when stream is capturing")
    with pytest.raises(RuntimeError, match="not permitted"), capturing(classification()):
        raise RuntimeError("operation not permitted when stream is capturing")
