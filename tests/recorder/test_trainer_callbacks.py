"""A callback of the Recorder neither ends nor changes a training of Lightning or of Hugging Face.

Expected values are computed with plain PyTorch on the same batches.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.outside import Outside
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

from ampcompare import load_runs, metrics
from ampcompare.errors import UserError
from ampcompare.runs import RunRecord

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
EVERY_STEP: dict[str, Any] = {"every": 1, "warmup_steps": 0}
SAMPLES, BATCH = 40, 16  # two full batches and one of 8


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)


def samples_by_step(run: RunRecord) -> dict[int, int]:
    """Compute the samples of each timed step from throughput and step time."""
    if metrics.THROUGHPUT not in run.history:
        return {}
    rows = run.history[run.history[metrics.THROUGHPUT].notna()]
    samples = (rows[metrics.THROUGHPUT] * rows[metrics.STEP_TIME] / 1e3).round().astype(int)
    return dict(zip(rows[metrics.STEP].astype(int), samples, strict=True))


def by_step(run: RunRecord, key: str) -> dict[int, float]:
    rows = run.history[run.history[key].notna()] if key in run.history else run.history[:0]
    return dict(zip(rows[metrics.STEP].astype(int), rows[key], strict=True)) if len(rows) else {}


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


def with_names_first(rows: list[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """Return a batch whose first entries have other lengths than it has samples."""
    x, y = stack(rows)
    return {"names": ["a", "b", "c"], "offsets": torch.zeros(6), "x": x, "y": y}


def read_batch(batch: Any) -> tuple[Tensor, Tensor]:
    if isinstance(batch, Holder):
        return batch.x, batch.y
    return (batch["x"], batch["y"]) if isinstance(batch, dict) else tuple(batch)


def build_net(library: Any, *, manual: int = 0, **returns: Any) -> Any:
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
            x, y = read_batch(batch)
            loss = (self.layer(x) - y).square().mean()
            self.losses.append(float(loss))
            if manual:
                self.manual_backward(loss)
                if (number + 1) % manual == 0:
                    self.optimizers().step()
                    self.optimizers().zero_grad()
                return returns.get("value", loss.detach())
            return loss

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            gradients = [p.grad.double().flatten() for p in self.parameters()]
            self.norms.append(float(torch.cat(gradients).norm()))
            self.rates.append(optimizer.param_groups[0]["lr"])

        def configure_optimizers(self) -> Any:
            optimizer = returns.get("optimizer", torch.optim.SGD)(self.parameters(), lr=0.05)
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
            }

    return Net()


def fit(folder: Path, net: Any, loader: Any, callback: Any = None, **how: Any) -> RunRecord:
    import lightning.pytorch as library

    from ampcompare.recorder.lightning import RecorderCallback

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    options = {"accelerator": "cpu", "enable_checkpointing": False, "max_epochs": 1} | quiet | how
    callback = callback or RecorderCallback(output_dir=folder, **EVERY_STEP, diagnostics=1)
    library.Trainer(default_root_dir=folder, callbacks=[callback], **options).fit(net, loader)
    (run,) = load_runs([folder])
    assert run.exit_code == 0
    return run


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_lightnings_gradient_norms_losses_and_rates_are_those_of_the_updates(
    tmp_path: Path, accumulate: int, precision: str, clip: float | None
):
    """Three batches: with two a step, the last step has one, whose loss Lightning divides all the same."""
    import lightning.pytorch as library

    net = build_net(library)
    clipped: list[float] = []
    own = net.configure_gradient_clipping

    def clip_and_measure(optimizer: Any, **options: Any) -> None:
        own(optimizer, **options)
        gradients = [p.grad.double().flatten() for p in net.parameters()]
        clipped.append(float(torch.cat(gradients).norm()))

    net.configure_gradient_clipping = clip_and_measure
    how = {"precision": precision, "accumulate_grad_batches": accumulate, "gradient_clip_val": clip}
    run = fit(tmp_path, net, DataLoader(Rows(), BATCH), max_epochs=2, **how)
    steps = range(1, len(net.norms) + 1)
    assert len(clipped) == (6 if accumulate == 1 else 4)
    assert by_step(run, metrics.GRADIENT_NORM_AT_UPDATE) == pytest.approx(
        dict(zip(steps, clipped, strict=True))
    )
    assert by_step(run, metrics.LEARNING_RATE) == pytest.approx(dict(zip(steps, net.rates, strict=True)))
    if accumulate == 1:
        means = net.losses
    else:
        first, second = net.losses[:3], net.losses[3:]
        means = [sum(first[:2]) / 2, first[2], sum(second[:2]) / 2, second[2]]
    assert by_step(run, metrics.LOSS) == pytest.approx(dict(zip(steps, means, strict=True)), rel=1e-6)
    samples = [16, 16, 8] * 2 if accumulate == 1 else [32, 8] * 2
    assert samples_by_step(run) == dict(zip(steps, samples, strict=True))


LOADERS: dict[str, Any] = {
    "a class of its own": lambda: DataLoader(Rows(), BATCH, collate_fn=lambda rows: Holder(*stack(rows))),
    "other entries first": lambda: DataLoader(Rows(), BATCH, collate_fn=with_names_first),
    "without the last": lambda: DataLoader(Rows(), BATCH, drop_last=True),
    "an iterable data set": lambda: DataLoader(Stream(), BATCH),
    "not PyTorch's": Batches,
    "a batch sampler": lambda: DataLoader(
        Rows(), batch_sampler=BatchSampler(SequentialSampler(range(SAMPLES)), 10, drop_last=False)
    ),
}
COUNTED = {
    "a class of its own": [16, 16, 8],
    "other entries first": [16, 16, 8],
    "without the last": [16, 16],
    "a batch sampler": [10] * 4,
}


@pytest.mark.parametrize("loader", LOADERS)
def test_lightnings_samples_come_from_the_data_loader_or_there_is_no_throughput(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, loader: str
):
    import lightning.pytorch as library

    run = fit(tmp_path, build_net(library), LOADERS[loader]())
    assert samples_by_step(run) == dict(enumerate(COUNTED.get(loader, []), 1))
    lines = [line for line in caplog.messages if "throughput is not recorded" in line]
    assert len(lines) == (loader not in COUNTED)
    assert len(by_step(run, metrics.LOSS)) == run.history[metrics.STEP].max() > 1
    assert (metrics.EPOCH in run.history) == (loader not in ("an iterable data set", "not PyTorch's"))


def test_a_batch_sampler_of_the_users_own_is_counted_by_the_users_function_alone(tmp_path: Path):
    import lightning.pytorch as library

    from ampcompare.recorder.lightning import RecorderCallback

    class Growing(BatchSampler):
        def __iter__(self) -> Iterator[list[int]]:
            return iter([[0], [1, 2], [3, 4, 5]])

        def __len__(self) -> int:
            return 3

    def build() -> DataLoader:
        sampler = Growing(SequentialSampler(range(SAMPLES)), 2, drop_last=False)
        return DataLoader(Rows(), batch_sampler=sampler)

    assert samples_by_step(fit(tmp_path / "a", build_net(library), build())) == {}
    callback = RecorderCallback(samples=lambda batch: len(batch[0]), output_dir=tmp_path / "b", **EVERY_STEP)
    run = fit(tmp_path / "b", build_net(library), build(), callback)
    assert samples_by_step(run) == {1: 1, 2: 2, 3: 3}


@pytest.mark.parametrize("counted", [lambda batch: batch["nothing"], lambda batch: None, lambda batch: -1])
def test_a_function_that_cannot_count_costs_the_throughput_and_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, counted: Any
):
    import lightning.pytorch as library

    from ampcompare.recorder.lightning import RecorderCallback

    callback = RecorderCallback(samples=counted, output_dir=tmp_path, **EVERY_STEP)
    run = fit(tmp_path, build_net(library), DataLoader(Rows(), BATCH), callback)
    assert samples_by_step(run) == {}
    assert len(by_step(run, metrics.LOSS)) == 3
    assert len([line for line in caplog.messages if "throughput is not recorded" in line]) == 1


@pytest.mark.parametrize("batches", [1, 2])
def test_a_loss_of_manual_optimization_is_recorded_if_the_step_has_one_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, batches: int
):
    import lightning.pytorch as library

    net = build_net(library, manual=batches)
    run = fit(tmp_path, net, DataLoader(Rows(), 10), max_epochs=2)
    expected = dict(enumerate(net.losses, 1)) if batches == 1 else {}
    assert by_step(run, metrics.LOSS) == pytest.approx(expected)
    assert len([line for line in caplog.messages if "without its loss" in line]) == (batches > 1)
    steps = 8 // batches
    assert samples_by_step(run) == dict.fromkeys(range(1, steps + 1), 10 * batches)
    assert len(by_step(run, metrics.GRADIENT_NORM_AT_UPDATE)) == steps


@pytest.mark.parametrize("value", [torch.ones(3), {"loss": torch.ones(2)}, None], ids=repr)
def test_whatever_a_module_returns_in_manual_optimization_ends_nothing(tmp_path: Path, value: Any):
    import lightning.pytorch as library

    run = fit(tmp_path, build_net(library, manual=1, value=value), DataLoader(Rows(), 10))
    assert run.history[metrics.STEP].max() == 4
    assert by_step(run, metrics.LOSS) == {}
    assert len(samples_by_step(run)) == 4


@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_validation_start", "on_validation_end"])
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
    net.validation_step = lambda *_: net.log("val_loss", 0.5)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    callback = RecorderCallback(output_dir=tmp_path, **EVERY_STEP)
    options = {"accelerator": "cpu", "enable_checkpointing": False, "max_epochs": 2, **quiet}
    loader = DataLoader(Rows(), BATCH)
    callbacks = [breaks, callback, mends]
    library.Trainer(callbacks=callbacks, num_sanity_val_steps=0, **options).fit(net, loader, loader)
    assert len(net.losses) == 6
    (line,) = [line for line in caplog.messages if "the record ends here" in line]
    assert "the clock is broken" in line
    (run,) = load_runs([tmp_path])
    assert run.exit_code == 1


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
    net = build_net(library)
    loader = DataLoader(Rows(), BATCH)
    with wandb.init(dir=tmp_path, config=config, settings=settings):
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        options = {"accelerator": "cpu", "enable_checkpointing": False, "max_epochs": 1, **quiet}
        library.Trainer(callbacks=[RecorderCallback(**EVERY_STEP)], **options).fit(net, loader)
    end_service()
    (run,) = load_runs([tmp_path])
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


def train(
    folder: Path,
    *,
    trainer: Any = None,
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
        "lr_scheduler_type": "linear",
    }
    if scores is not None:
        options["eval_strategy"] = "epoch"
    arguments = TrainingArguments(output_dir=str(folder / "out"), **options | how)
    made = (trainer or Trainer)(
        model=Classifier(),
        args=arguments,
        train_dataset=data,
        eval_dataset=ITEMS[:8],
        data_collator=collator,
        compute_metrics=scores,
        callbacks=[callback or RecorderCallback(output_dir=folder, **EVERY_STEP, diagnostics=1)],
    )
    made.train()
    (run,) = load_runs([folder])
    assert run.exit_code == 0
    return run


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("collator", [collate, collate_without_padding])
def test_hugging_faces_samples_are_those_of_the_data_loader(tmp_path: Path, collator: Any, accumulate: int):
    how = {"gradient_accumulation_steps": accumulate, "num_train_epochs": 2}
    run = train(tmp_path, collator=collator, **how)
    samples = [16, 16, 8] * 2 if accumulate == 1 else [32, 8] * 2
    assert samples_by_step(run) == dict(enumerate(samples, 1))


@pytest.mark.parametrize("by_function", [False, True])
def test_a_model_that_is_called_twice_counts_a_batch_once(tmp_path: Path, by_function: bool):
    from transformers import Trainer

    from ampcompare.recorder.transformers import RecorderCallback

    class Twice(Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
            loss = (model(**inputs)["loss"] + model(**inputs)["loss"]) / 2
            return (loss, None) if return_outputs else loss

    count = (lambda batch: len(batch["labels"])) if by_function else None
    callback = RecorderCallback(samples=count, output_dir=tmp_path, **EVERY_STEP)
    run = train(tmp_path, trainer=Twice, callback=callback, gradient_accumulation_steps=2)
    assert samples_by_step(run) == {1: 32, 2: 8}


def test_hugging_faces_learning_rate_and_gradient_norm_are_those_of_the_update(tmp_path: Path):
    from transformers import Trainer, TrainerCallback

    found: list[tuple[float, float]] = []

    class Reads(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, model: Any, optimizer: Any, **__: Any) -> None:
            gradients = [p.grad.double().flatten() for p in model.parameters()]
            found.append((float(torch.cat(gradients).norm()), optimizer.param_groups[0]["lr"]))

    class WithReader(Trainer):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.add_callback(Reads())

    run = train(tmp_path, trainer=WithReader, num_train_epochs=2, max_grad_norm=0.3)
    norms, rates = zip(*found, strict=True)
    assert by_step(run, metrics.GRADIENT_NORM_AT_UPDATE) == pytest.approx(dict(enumerate(norms, 1)))
    assert by_step(run, metrics.LEARNING_RATE) == pytest.approx(dict(enumerate(rates, 1)))


SCORES: dict[str, Any] = {
    "f1": 0.25,
    "self": 0.5,
    "count": np.int64(3),
    "one": np.array([0.75]),
    "tensor": torch.tensor(0.125),
    "confusion": [[1, 2], [3, 4]],
    "by_class": np.ones(2),
    "report": "precision 0.5",
    "digits": "0.5",
    "nothing": None,
    "nested": {"a": 1.0},
    "many": torch.ones(2),
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


def test_a_failure_of_the_record_ends_the_record_and_not_hugging_faces_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, outside: Outside
):
    """The clock is broken only while the callback of the record runs, between two others."""
    from transformers import Trainer, TrainerCallback

    steps: list[int] = []
    clock = outside.break_clock()

    class Breaks(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
            clock.is_broken = state.global_step == 3

    class Mends(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
            clock.is_broken = False
            steps.append(state.global_step)

    class BetweenOthers(Trainer):
        def __init__(self, *, callbacks: list[TrainerCallback], **options: Any) -> None:
            super().__init__(callbacks=[Breaks(), *callbacks, Mends()], **options)

    with pytest.raises(AssertionError):  # its exit code is 1
        train(tmp_path, trainer=BetweenOthers, num_train_epochs=2)
    assert steps == [1, 2, 3, 4, 5, 6]
    (run,) = load_runs([tmp_path])
    assert (run.exit_code, run.history[metrics.STEP].max()) == (1, 2)
    assert len([line for line in caplog.messages if "the record ends here" in line]) == 1


def test_an_invalid_option_of_a_callback_is_refused_before_the_first_step(tmp_path: Path):
    from ampcompare.recorder.transformers import RecorderCallback

    with pytest.raises(UserError, match="every=0"):
        train(tmp_path, callback=RecorderCallback(output_dir=tmp_path, every=0))
