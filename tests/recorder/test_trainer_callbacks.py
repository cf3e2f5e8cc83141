"""The trainers of Lightning, Hugging Face and accelerate, recorded. No callback ends or changes a training.

Expected values are computed with plain PyTorch on the same batches.
"""

import runpy
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.outside import Outside
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

from ampcompare import analyse_runs, load_runs, metrics
from ampcompare.errors import UserError
from ampcompare.runs import RunRecord

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
ROOT = Path(__file__).resolve().parents[2]
EVERY_STEP: dict[str, Any] = {"every": 1, "warmup_steps": 0}
QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "logger": False,
    "max_epochs": 1,
}
SAMPLES, BATCH = 40, 16  # two full batches and one of 8


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)


def samples_by_step(run: RunRecord) -> dict[int, int]:
    """Compute the samples of each timed step from throughput and step time."""
    rates, times = by_step(run, metrics.THROUGHPUT), by_step(run, metrics.STEP_TIME)
    return {step: round(rate * times[step] / 1e3) for step, rate in rates.items()}


def by_step(run: RunRecord, key: str) -> dict[int, float]:
    rows = run.history[run.history[key].notna()] if key in run.history else run.history[:0]
    return dict(zip(rows[metrics.STEP].astype(int), rows[key], strict=True)) if len(rows) else {}


def read(folder: Path, exit_code: int = 0) -> RunRecord:
    (run,) = load_runs([folder])
    assert run.exit_code == exit_code
    return run


# Lightning


class Rows(Dataset):
    """Inputs and targets by index."""

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(1)
        self.x = torch.randn(SAMPLES, 4, generator=random)
        self.y = self.x.sum(1, keepdim=True)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


class Stream(IterableDataset):
    """The same rows, one after another."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        rows = Rows()
        return (rows[index] for index in range(SAMPLES))


class Batches:
    """Yields batches, and is no DataLoader."""

    batch_size = 3  # of something else

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return (stack([Rows()[start + i] for i in range(8)]) for start in (0, 8))


class Holder:
    """A batch of a library's own class, which nothing is known of."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y


def stack(rows: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    x, y = zip(*rows, strict=True)
    return torch.stack(x), torch.stack(y)


def build_net(library: Any, *, manual: int = 0, value: Any = "loss") -> Any:
    """Return a module, which with `manual` optimizes itself after so many batches, and returns a value.

    It then has two optimizers, each of which Lightning counts as a step of its own.
    """

    class Net(library.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(4, 1)
            self.automatic_optimization = not manual
            self.losses: list[float] = []  # of each batch
            self.norms: list[float] = []  # that the optimizer reads
            self.rates: list[float] = []

        def training_step(self, batch: Any, number: int) -> Any:
            x, y = (batch.x, batch.y) if isinstance(batch, Holder) else batch
            loss = (self.layer(x) - y).square().mean()
            self.losses.append(float(loss))
            self.log("train_loss", 0.5)
            if not manual:
                return loss
            self.manual_backward(loss)
            if (number + 1) % manual == 0:
                for optimizer in self.optimizers():
                    optimizer.step()
                    optimizer.zero_grad()
            return loss.detach() if value == "loss" else value

        def validation_step(self, batch: Any, number: int) -> None:
            self.log_dict({"val_loss": 0.5, "val_acc": 0.25, "f1": 0.75})

        def configure_gradient_clipping(self, optimizer: Any, *given: Any, **named: Any) -> None:
            super().configure_gradient_clipping(optimizer, *given, **named)
            gradients = [p.grad.double().flatten() for p in self.parameters()]
            self.norms.append(float(torch.cat(gradients).norm()))
            self.rates.append(optimizer.param_groups[0]["lr"])

        def configure_optimizers(self) -> Any:
            if manual:
                return [torch.optim.SGD([parameter], lr=0.05) for parameter in self.parameters()]
            optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
            }

    return Net()


def fit(
    folder: Path,
    net: Any,
    loader: Any,
    callback: Any = None,
    *,
    others: Any = (),
    saved: Any = None,
    **how: Any,
) -> Any:
    """Train, and return the trainer."""
    import lightning.pytorch as library

    from ampcompare.recorder.lightning import RecorderCallback

    callback = callback or RecorderCallback(output_dir=folder, **EVERY_STEP, diagnostics=1)
    trainer = library.Trainer(default_root_dir=folder, callbacks=[callback, *others], **QUIET | how)
    trainer.fit(net, loader, DataLoader(Rows(), 40), ckpt_path=saved)
    return trainer


@pytest.mark.parametrize(
    ("accumulate", "precision", "clip"), [(1, "32-true", None), (2, "32-true", 0.5), (2, "bf16-mixed", None)]
)
def test_lightnings_gradient_norms_losses_and_rates_are_those_of_the_updates(
    tmp_path: Path, accumulate: int, precision: str, clip: float | None
):
    """Three batches: with two a step, the last step has one, whose loss Lightning divides all the same."""
    import lightning.pytorch as library

    net = build_net(library)
    how = {"precision": precision, "accumulate_grad_batches": accumulate, "gradient_clip_val": clip}
    fit(tmp_path, net, DataLoader(Rows(), BATCH), max_epochs=2, **how)
    run = read(tmp_path)
    steps = range(1, 7 if accumulate == 1 else 5)
    means, samples = net.losses, [16, 16, 8] * 2
    if accumulate == 2:
        first, second = net.losses[:3], net.losses[3:]
        means, samples = [sum(first[:2]) / 2, first[2], sum(second[:2]) / 2, second[2]], [32, 8] * 2
    expected = {
        metrics.GRADIENT_NORM_AT_UPDATE: net.norms,
        metrics.LEARNING_RATE: net.rates,
        metrics.LOSS: means,
    }
    for key, values in expected.items():
        assert by_step(run, key) == pytest.approx(dict(zip(steps, values, strict=True)), rel=1e-6)
    assert samples_by_step(run) == dict(zip(steps, samples, strict=True))
    evaluated = {key: run.values(key)[-1] for key in run.history if key.startswith("eval/")}
    assert evaluated == {metrics.EVAL_LOSS: 0.5, metrics.EVAL_ACCURACY: 0.25, "eval/f1": 0.75}


def test_lightning_runs_are_compared_by_their_precision(tmp_path: Path):
    import lightning.pytorch as library
    from lightning.pytorch.plugins.precision import MixedPrecision

    library.seed_everything(3, verbose=False)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    for how in ({"precision": "32-true"}, {"plugins": [MixedPrecision("16-mixed", "cpu", scaler)]}):
        fit(tmp_path, build_net(library), DataLoader(Rows(), BATCH), max_epochs=3, **how)
    runs = load_runs([tmp_path])
    analysis = analyse_runs(runs, metric=metrics.EVAL_ACCURACY)
    by_name = {group.label: group.records[0] for group in analysis.groups}
    assert {*by_name} == {"32-true", "16-mixed"}
    assert analysis.baseline_value == "32-true"  # which we take for fp32
    for name, run in by_name.items():
        scales, skipped = run.values(metrics.SCALE), run.values(metrics.SKIPPED)
        assert (run.exit_code, run.problems, run.config["seed"]) == (0, [], 3)
        assert run.config["batch_size"] == BATCH
        assert scales[-1] == (scaler.get_scale() if name == "16-mixed" else 1)
        # Each overflow halves the scale, and it never grows here.
        assert skipped[-1] == (127 - np.log2(scales[-1]) if name == "16-mixed" else 0)
    assert by_name["16-mixed"].values(metrics.SKIPPED)[-1] > 0


def test_a_lightning_run_that_resumes_from_its_checkpoint_is_one_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import lightning.pytorch as library

    monkeypatch.setenv("WANDB_RUN_ID", "again")
    saved = tmp_path / "saved.ckpt"
    net = build_net(library, manual=1)
    fit(tmp_path, net, DataLoader(Rows(), BATCH)).save_checkpoint(saved)
    fit(tmp_path, net, DataLoader(Rows(), BATCH), max_epochs=2, saved=saved)
    assert [*by_step(read(tmp_path), metrics.LOSS)] == [1, 2, 3, 4, 5, 6]


OLD_NAME = """
import sys, torch, pytorch_lightning as library
from torch.utils.data import DataLoader, TensorDataset
from ampcompare.recorder.lightning import RecorderCallback

class Net(library.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, number):
        return self.layer(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)

callback = RecorderCallback(output_dir=".", every=1)
trainer = library.Trainer(accelerator="cpu", logger=False, max_epochs=1, callbacks=[callback])
trainer.fit(Net(), DataLoader(TensorDataset(torch.randn(40, 4)), 16))
assert "lightning.pytorch" not in sys.modules
"""


def test_pytorch_lightning_under_its_old_name_is_recorded_too(tmp_path: Path):
    pytest.importorskip("pytorch_lightning")
    subprocess.run([sys.executable, "-c", OLD_NAME], check=True, capture_output=True)
    assert len(by_step(read(tmp_path), metrics.LOSS)) == 3


def test_a_failing_lightning_module_ends_its_record_as_failed(tmp_path: Path):
    import lightning.pytorch as library

    broken = library.Callback()
    broken.on_train_batch_end = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path, build_net(library), DataLoader(Rows(), BATCH), others=[broken])
    assert [*by_step(read(tmp_path, exit_code=1), metrics.LOSS)] == [1]


class OwnSampler(BatchSampler):
    """A batch sampler of the user's own, whose batches have other sizes than its attribute says."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1], [2, 3, 4]])


def batches_of(kind: Any) -> DataLoader:
    return DataLoader(Rows(), batch_sampler=kind(SequentialSampler(range(SAMPLES)), 10, drop_last=False))


LOADERS: dict[str, tuple[Any, list[int]]] = {  # and the samples of each batch, if it tells them
    "a class of its own": (
        lambda: DataLoader(Rows(), BATCH, collate_fn=lambda rows: Holder(*stack(rows))),
        [16, 16, 8],
    ),
    "without the last": (lambda: DataLoader(Rows(), BATCH, drop_last=True), [16, 16]),
    "a batch sampler": (lambda: batches_of(BatchSampler), [10] * 4),
    "a batch sampler of one's own": (lambda: batches_of(OwnSampler), []),
    "an iterable data set": (lambda: DataLoader(Stream(), BATCH), []),
    "not PyTorch's": (Batches, []),
}


@pytest.mark.parametrize("loader", LOADERS)
def test_lightnings_samples_come_from_the_data_loader_or_there_is_no_throughput(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, loader: str
):
    import lightning.pytorch as library

    make, samples = LOADERS[loader]
    fit(tmp_path, build_net(library), make(), limit_val_batches=0)
    run = read(tmp_path)
    assert samples_by_step(run) == dict(enumerate(samples, 1))
    lines = [line for line in caplog.messages if "throughput is not recorded" in line]
    assert len(lines) == (not samples)
    assert len(by_step(run, metrics.LOSS)) == run.history[metrics.STEP].max() > 1
    assert (metrics.EPOCH in run.history) == (loader not in ("an iterable data set", "not PyTorch's"))


@pytest.mark.parametrize(
    ("counted", "samples"),
    [(lambda batch: len(batch[0]) + 1, {1: 17, 2: 17, 3: 9}), (lambda batch: batch["nothing"], {})],
)
def test_samples_are_those_of_the_users_function_or_one_line_says_why_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, counted: Any, samples: dict[int, int]
):
    import lightning.pytorch as library

    from ampcompare.recorder.lightning import RecorderCallback

    callback = RecorderCallback(samples=counted, output_dir=tmp_path, **EVERY_STEP)
    fit(tmp_path, build_net(library), DataLoader(Rows(), BATCH), callback)
    run = read(tmp_path)
    assert samples_by_step(run) == samples
    assert len(by_step(run, metrics.LOSS)) == 3
    assert len([line for line in caplog.messages if "throughput is not recorded" in line]) == (not samples)


@pytest.mark.parametrize(
    ("batches", "value"),
    [(1, "loss"), (2, "loss"), (1, torch.ones(3)), (1, {"loss": torch.ones(2)})],
    ids=repr,
)
def test_a_loss_of_manual_optimization_is_recorded_if_it_is_one_number_of_one_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, batches: int, value: Any
):
    import lightning.pytorch as library

    net = build_net(library, manual=batches, value=value)
    fit(tmp_path, net, DataLoader(Rows(), 10), max_epochs=2)
    run = read(tmp_path)
    expected = dict(enumerate(net.losses, 1)) if batches == 1 and isinstance(value, str) else {}
    assert by_step(run, metrics.LOSS) == pytest.approx(expected)
    assert len([line for line in caplog.messages if "without its loss" in line]) == (batches > 1)
    assert samples_by_step(run) == dict.fromkeys(range(1, 8 // batches + 1), 10 * batches)


@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_validation_end"])
def test_a_failure_of_the_record_ends_the_record_and_not_lightnings_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, outside: Outside, hook: str
):
    """The clock is broken only while the callback of the record runs, between two others."""
    import lightning.pytorch as library

    from ampcompare.recorder.lightning import RecorderCallback

    clock = outside.break_clock()
    breaks, mends = library.Callback(), library.Callback()
    setattr(breaks, hook, lambda *_: setattr(clock, "is_broken", True))
    setattr(mends, hook, lambda *_: setattr(clock, "is_broken", False))
    net = build_net(library)
    others = [RecorderCallback(output_dir=tmp_path, **EVERY_STEP), mends]
    fit(tmp_path, net, DataLoader(Rows(), BATCH), breaks, others=others, max_epochs=2, num_sanity_val_steps=0)
    assert len(net.losses) == 6
    (line,) = [line for line in caplog.messages if "the record ends here" in line]
    assert "the clock is broken" in line
    read(tmp_path, exit_code=1)


def test_settings_of_a_trainer_that_contradict_the_open_run_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    import lightning.pytorch as library
    import wandb

    from ampcompare.recorder.lightning import RecorderCallback
    from ampcompare.wandb_client.client import end_service

    settings = wandb.Settings(console="off", quiet=True)
    config = {"batch_size": 999, "seed": 5, "precision": "mine"}
    monkeypatch.setenv("PL_GLOBAL_SEED", "3")  # as Lightning's `seed_everything` sets it
    with wandb.init(dir=tmp_path, config=config, settings=settings):
        fit(tmp_path, build_net(library), DataLoader(Rows(), BATCH), RecorderCallback(**EVERY_STEP))
    end_service()
    run = read(tmp_path)
    assert (run.config["batch_size"], run.config["seed"]) == (999, 5)
    assert len(by_step(run, metrics.LOSS)) == 3
    assert len([line for line in caplog.messages if "is not recorded" in line]) == 2


# Hugging Face


class Classifier(torch.nn.Module):
    """A network with the interface that the Trainer expects, called once or twice for a batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x: Any = None, labels: Any = None, position_ids: Any = None) -> dict[str, Tensor]:
        logits = self.layer(x).reshape(-1, 2)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels.reshape(-1)), "logits": logits}


ITEMS = [{"x": torch.randn(4), "labels": number % 2} for number in range(SAMPLES)]


def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    return {
        "x": torch.stack([row["x"] for row in rows]),
        "labels": torch.tensor([row["labels"] for row in rows]),
    }


def collate_without_padding(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Return all samples in one row, as collators for FlashAttention do."""
    return {name: tensor[None] for name, tensor in collate(rows).items()}


class Endless(IterableDataset):
    """A data set without a length."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(ITEMS[:23])


class Large(Classifier):
    """A network that needs much memory."""

    def forward(self, x: Any = None, labels: Any = None, position_ids: Any = None) -> dict[str, Tensor]:
        if len(x) > 14:
            raise RuntimeError("CUDA out of memory. Tried to allocate")
        return super().forward(x, labels)


def train(
    folder: Path,
    *,
    trainer: Any = None,
    model: Any = Classifier,
    data: Any = ITEMS,
    collator: Any = collate,
    scores: Any = None,
    callback: Any = None,
    **how: Any,
) -> RunRecord:
    from transformers import Trainer, TrainingArguments

    from ampcompare.recorder.transformers import RecorderCallback

    options = {
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "per_device_train_batch_size": BATCH,
        "num_train_epochs": 1,
        "learning_rate": 0.05,
    }
    if scores is not None:
        options["eval_strategy"] = "epoch"
    made = (trainer or Trainer)(
        model=model(),
        args=TrainingArguments(output_dir=str(folder / "out"), **options | how),
        train_dataset=data,
        eval_dataset=ITEMS[:8],
        data_collator=collator,
        compute_metrics=scores,
        callbacks=[callback or RecorderCallback(output_dir=folder, **EVERY_STEP, diagnostics=1)],
    )
    made.train()
    return read(folder)


@pytest.mark.parametrize(("accumulate", "collator"), [(1, collate_without_padding), (2, collate)])
def test_hugging_faces_trainer_is_recorded(tmp_path: Path, collator: Any, accumulate: int):
    """With two batches a step, it also names the metric of its best model. Its saved state is read, too."""
    how = {"gradient_accumulation_steps": accumulate, "num_train_epochs": 2, "save_strategy": "epoch"}
    if accumulate == 2:
        how |= {"bf16": True, "metric_for_best_model": "eval_f1", "greater_is_better": True}
    run = train(tmp_path, collator=collator, logging_steps=3, seed=7, **how)
    samples = [16, 16, 8] * 2 if accumulate == 1 else [32, 8] * 2
    assert samples_by_step(run) == dict(enumerate(samples, 1))
    assert (run.config["backend"], run.config["seed"]) == ("32-true" if accumulate == 1 else "bf16-mixed", 7)
    assert [*by_step(run, metrics.LOSS)] == ([3, 6] if accumulate == 1 else [3])
    for key in (metrics.GRADIENT_NORM_AT_UPDATE, metrics.LEARNING_RATE, metrics.EPOCH):
        assert len(by_step(run, key)) >= len(samples)
    task = run.environment.get("task", {"metric": None, "metrics": {}})
    assert task["metric"] == (None if accumulate == 1 else "eval/f1")
    assert accumulate == 1 or task["metrics"]["eval/f1"]["better"] == "higher"
    (saved,) = load_runs([tmp_path / "out"])  # trainer_state.json of each checkpoint
    assert by_step(saved, "loss") == pytest.approx(by_step(run, metrics.LOSS))


@pytest.mark.parametrize("count", [None, lambda batch: len(batch["labels"])])
def test_samples_that_hugging_faces_data_loader_does_not_tell_are_counted_by_the_users_function(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, count: Any
):
    """The last step is short, which is not known beforehand. Nor is there a length in epochs."""
    from ampcompare.recorder.transformers import RecorderCallback

    callback = RecorderCallback(count, output_dir=tmp_path, **EVERY_STEP)
    run = train(tmp_path, data=Endless(), callback=callback, max_steps=2)
    assert samples_by_step(run) == ({} if count is None else {1: 16, 2: 7})
    assert metrics.EPOCH not in run.history
    assert len([line for line in caplog.messages if "throughput is not recorded" in line]) == (count is None)


def test_an_attempt_at_a_batch_size_is_no_run(tmp_path: Path):
    run = train(tmp_path, model=Large, auto_find_batch_size=True)
    assert 0 < max(samples_by_step(run).values()) <= 14


def test_a_model_that_is_called_twice_counts_a_batch_once(tmp_path: Path):
    from transformers import Trainer

    from ampcompare.recorder.transformers import RecorderCallback

    class Twice(Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
            loss = (model(**inputs)["loss"] + model(**inputs)["loss"]) / 2
            return (loss, None) if return_outputs else loss

    callback = RecorderCallback(samples=lambda batch: len(batch["labels"]), output_dir=tmp_path, **EVERY_STEP)
    run = train(tmp_path, trainer=Twice, callback=callback, gradient_accumulation_steps=2)
    assert samples_by_step(run) == {1: 32, 2: 8}


SCORES: dict[str, Any] = {
    "f1": 0.25,
    "self": 0.5,
    "count": np.int64(3),
    "one": np.array([0.75]),
    "tensor": torch.tensor(0.125),
    "confusion": [[1, 2], [3, 4]],
    "by_class": np.ones(2),
    "digits": "0.5",
    "nothing": None,
    "nested": {"a": 1.0},
}
NUMBERS = {"f1": 0.25, "self": 0.5, "count": 3.0, "one": 0.75, "tensor": 0.125}


def test_results_that_are_no_numbers_are_left_out_of_hugging_faces_evaluations(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    run = train(tmp_path, scores=lambda found: dict(SCORES), num_train_epochs=3)
    for name, value in NUMBERS.items():
        assert run.values(f"eval/{name}").tolist() == [value] * 3
    evaluated = {key for key in run.history if key.startswith("eval/")}
    assert evaluated == {f"eval/{name}" for name in NUMBERS} | {metrics.EVAL_LOSS}
    (line,) = [line for line in caplog.messages if "recorded without" in line]
    assert all(name in line for name in SCORES.keys() - NUMBERS.keys())


def test_an_invalid_option_of_a_callback_is_refused_before_the_first_step(tmp_path: Path):
    from ampcompare.recorder.transformers import RecorderCallback

    with pytest.raises(UserError, match="every=0"):
        train(tmp_path, callback=RecorderCallback(output_dir=tmp_path, every=0))


def test_the_accelerate_example_counts_the_steps_that_accelerate_skips(tmp_path: Path, outside: Outside):
    outside.replace(sys, "argv", ["accelerate_loop.py", str(tmp_path)])
    found = runpy.run_path(str(ROOT / "docs" / "examples" / "accelerate_loop.py"), run_name="__main__")
    run = read(tmp_path)
    assert run.config["backend"] == "native"
    assert {16} == {*samples_by_step(run).values()}
    assert run.values(metrics.SKIPPED)[-1] == found["skipped"] > 3


@pytest.mark.parametrize("library", ["lightning", "transformers"])
def test_an_adapter_without_its_library_says_what_to_install(library: str, outside: Outside):
    outside.uninstall(library)
    outside.uninstall("pytorch_lightning")
    sys.modules.pop(f"ampcompare.recorder.{library}", None)
    with pytest.raises(UserError, match=f"pip install {library}"):
        import_module(f"ampcompare.recorder.{library}")
