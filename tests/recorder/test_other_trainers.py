"""Lightning's, Hugging Face's and accelerate's own trainers on a CPU, recorded and read back as our runs."""

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.outside import Outside
from torch.utils.data import DataLoader, TensorDataset

from ampcompare import analyse_runs, load_runs, metrics
from ampcompare.runs import RunRecord

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
HOW: dict[str, Any] = {"every": 5, "warmup_steps": 4, "diagnostics": 4}
# What every run of ours has, whatever it trains.
ALWAYS = {
    *(metrics.STEP, metrics.EPOCH, metrics.ELAPSED, metrics.TRAIN_SECONDS),
    *(metrics.LOSS, metrics.LEARNING_RATE, metrics.GRADIENT_NORM_AT_UPDATE, metrics.SCALE, metrics.SKIPPED),
    *(metrics.THROUGHPUT, metrics.STEP_TIME, metrics.EVAL_LOSS, metrics.EVAL_ACCURACY),
}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)


def read_runs(folder: Path, *samples: float) -> dict[str, RunRecord]:
    """Read the runs by backend and check that they are complete; `samples` are those of a step."""
    runs = load_runs([folder])
    for run in runs:
        assert run.exit_code == 0
        assert not run.problems
        assert set(run.history) >= ALWAYS
        rows = run.history[run.history[metrics.THROUGHPUT].notna()]
        found = rows[metrics.THROUGHPUT] * rows[metrics.STEP_TIME] / 1e3
        assert found.tolist()[: len(samples)] == pytest.approx(list(samples))
    groups = analyse_runs(runs).groups
    assert sum(group.n for group in groups) == len(runs)
    return {group.label: group.records[0] for group in groups}


# Lightning, under either of its names.


def fit(library: Any, folder: Path, *callbacks: Any, saved: Path | None = None, **how: Any) -> Any:
    from ampcompare.recorder.lightning import RecorderCallback

    class Net(library.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
            self.head = torch.nn.Linear(8, 2)

        def training_step(self, batch: Any, number: int) -> Any:
            return torch.nn.functional.cross_entropy(self.head(self.body(batch[0])), batch[1])

        def validation_step(self, batch: Any, number: int) -> None:
            out = self.head(self.body(batch[0]))
            self.log("val_loss", torch.nn.functional.cross_entropy(out, batch[1]))
            self.log("val_acc", (out.argmax(1) == batch[1]).float().mean())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    library.seed_everything(3, verbose=False)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = library.Trainer(
        accelerator="cpu",
        default_root_dir=folder,
        callbacks=[RecorderCallback(output_dir=folder, **HOW), *callbacks],
        **(quiet | {"max_epochs": 2} | how),
    )
    x = torch.randn(120, 6)
    data = TensorDataset(x, (x.sum(1) > 0).long())
    batches = DataLoader(data, batch_size=8, shuffle=True), DataLoader(data, batch_size=40)
    trainer.fit(Net(), *batches, ckpt_path=saved)
    return trainer


def test_lightning_runs_are_compared_by_their_precision(tmp_path: Path):
    import lightning.pytorch as library
    from lightning.pytorch.plugins.precision import MixedPrecision

    fit(library, tmp_path, precision="32-true", accumulate_grad_batches=2)
    fit(library, tmp_path, precision="bf16-mixed", accumulate_grad_batches=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    seen: list[float] = []
    update = scaler.update
    scaler.update = lambda *new: (seen.append(scaler.get_scale()), update(*new))[1]  # type: ignore[method-assign]
    plugin = MixedPrecision("16-mixed", "cpu", scaler)
    fit(library, tmp_path, plugins=[plugin], accumulate_grad_batches=2)
    drops = sum(b < a for a, b in zip(seen, [*seen[1:], scaler.get_scale()], strict=True))
    runs = read_runs(tmp_path, 16, 14.4)  # the short last step of the epoch, the 8th, is in the second row
    assert set(runs) == {"32-true", "16-mixed", "bf16-mixed"}
    assert analyse_runs([*runs.values()]).baseline_value == "32-true"  # which we take for fp32
    for name, run in runs.items():
        assert run.config["seed"] == 3
        assert run.config["batch_size"] == 8
        assert run.history[metrics.STEP].max() == 16  # 15 batches of 8 an epoch, two a step
        assert run.values(metrics.EPOCH).max() == 2
        skipped = run.values(metrics.SKIPPED)
        assert skipped[-1] == (drops if name == "16-mixed" else 0)
        assert run.values(metrics.SCALE)[-1] == (scaler.get_scale() if name == "16-mixed" else 1)
        assert len(run.values(metrics.EVAL_ACCURACY)) == 2
        assert f"{metrics.ZEROS}/head" in run.history
    assert drops > 3


def test_a_lightning_run_that_resumes_from_its_checkpoint_is_one_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import lightning.pytorch as library

    monkeypatch.setenv("WANDB_RUN_ID", "again")
    saved = tmp_path / "saved.ckpt"
    fit(library, tmp_path, max_epochs=1).save_checkpoint(saved)
    fit(library, tmp_path, saved=saved)
    (run,) = load_runs([tmp_path])
    rows = run.history[run.history[metrics.LOSS].notna()]
    assert rows[metrics.STEP].tolist() == [5, 10, 15, 20, 25, 30]


def test_lightning_records_every_metric_of_the_validation_and_nothing_else(tmp_path: Path):
    import lightning.pytorch as library

    class Logs(library.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            module.log("train_loss", 0.5)

        def on_validation_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            module.log_dict({"f1": 0.25, "valid_recall": 0.75, "val_f1": 0.5})

    fit(library, tmp_path, Logs())
    (run,) = load_runs([tmp_path])
    named = {key for key in run.history if key.startswith("eval/")}
    assert named == {metrics.EVAL_LOSS, metrics.EVAL_ACCURACY, "eval/f1", "eval/recall", "eval/val_f1"}
    assert run.values("eval/f1")[-1] == 0.25


class LeavesOut:
    """A batch in three without a loss, by two optimizers in turn."""

    @staticmethod
    def module(library: Any) -> Any:
        class Net(library.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.one, self.two = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
                self.automatic_optimization = False

            def training_step(self, batch: Any, number: int) -> Any:
                loss = self.two(self.one(batch[0])).square().mean()
                self.manual_backward(loss)
                for optimizer in self.optimizers():
                    optimizer.step()
                    optimizer.zero_grad()
                return None if number % 3 == 1 else loss.detach()

            def configure_optimizers(self) -> Any:
                return [torch.optim.SGD(part.parameters(), lr=0.01) for part in (self.one, self.two)]

        return Net()


def test_a_batch_without_a_loss_is_a_step_and_two_optimizers_count_once_also_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import lightning.pytorch as library

    from ampcompare.recorder.lightning import RecorderCallback

    monkeypatch.setenv("WANDB_RUN_ID", "again")
    data = DataLoader(TensorDataset(torch.randn(40, 4)), batch_size=4)

    def train(epochs: int, saved: Path | None) -> Any:
        callback = RecorderCallback(output_dir=tmp_path, every=5, backend="none")
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = library.Trainer(
            accelerator="cpu", default_root_dir=tmp_path, callbacks=[callback], max_epochs=epochs, **quiet
        )
        trainer.fit(LeavesOut.module(library), data, ckpt_path=saved)
        return trainer

    train(1, None).save_checkpoint(tmp_path / "saved.ckpt")
    train(2, tmp_path / "saved.ckpt")
    (run,) = load_runs([tmp_path])
    rows = run.history[run.history[metrics.LOSS].notna()]
    assert rows[metrics.STEP].tolist() == [5, 10, 15, 20]
    assert not run.problems


def test_pytorch_lightning_under_its_old_name_is_recorded_too(tmp_path: Path):
    pytest.importorskip("pytorch_lightning")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    subprocess.run([sys.executable, __file__, tmp_path], check=True, capture_output=True, env=environment)
    assert set(read_runs(tmp_path, 16, 14.4)) == {"32-true"}


def test_a_failing_lightning_module_ends_its_record_as_failed(tmp_path: Path):
    import lightning.pytorch as library

    class Broken(library.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 7:
                raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fit(library, tmp_path, Broken())
    (run,) = load_runs([tmp_path])
    assert run.exit_code == 1
    assert run.values(metrics.STEP).max() == 5


@pytest.mark.parametrize("bf16", [False, True])
def test_hugging_faces_trainer_is_recorded(tmp_path: Path, bf16: bool):
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    from ampcompare.recorder.transformers import RecorderCallback

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertForSequenceClassification(BertConfig(vocab_size=30, max_position_embeddings=16, **sizes))
    ids = torch.randint(0, 30, (72, 8))
    rows = [{"input_ids": row, "labels": int(row[0] > 15)} for row in ids]
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "out"),
        use_cpu=True,
        bf16=bf16,
        report_to=[],
        num_train_epochs=2,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        logging_steps=3,
        eval_strategy="epoch",
        save_strategy="epoch",
        seed=7,
        disable_tqdm=True,
    )

    def accuracy(found: Any) -> dict[str, float]:
        return {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())}

    record = RecorderCallback(output_dir=tmp_path, **HOW)
    Trainer(
        model=model,
        args=arguments,
        train_dataset=rows,
        eval_dataset=rows[:24],
        compute_metrics=accuracy,
        callbacks=[record],
    ).train()
    ((name, run),) = read_runs(tmp_path, 8, 14.4).items()  # the 5th step is the short last one of the epoch
    assert name == ("bf16-mixed" if bf16 else "32-true")
    assert run.config["seed"] == 7
    assert run.history[metrics.STEP].max() == 10
    losses = run.history[run.history[metrics.LOSS].notna()]
    assert losses[metrics.STEP].tolist() == [3, 6, 9]
    assert len(run.values(metrics.EVAL_ACCURACY)) == 2
    named = {key for key in run.history if key.startswith("eval/")}
    assert named == {metrics.EVAL_LOSS, metrics.EVAL_ACCURACY}


def hugging_face(folder: Path, rows: Any, model: Any = None, samples: Any = None, **how: Any) -> RunRecord:
    """Train a small BERT on the rows, and return the one record."""
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    from ampcompare.recorder.transformers import RecorderCallback

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(vocab_size=30, max_position_embeddings=16, **sizes)
    options = {"use_cpu": True, "report_to": [], "save_strategy": "no", "disable_tqdm": True} | how
    arguments = TrainingArguments(output_dir=str(folder / "out"), **options)
    record = RecorderCallback(samples, output_dir=folder, every=1, warmup_steps=0)
    made = (model or BertForSequenceClassification)(config)
    Trainer(model=made, args=arguments, train_dataset=rows, callbacks=[record]).train()
    (run,) = load_runs([folder])
    return run


def count_samples(run: RunRecord) -> list[int]:
    """Compute the samples of each step from throughput and step time."""
    rows = run.history[run.history[metrics.THROUGHPUT].notna()]
    return [round(x) for x in rows[metrics.THROUGHPUT] * rows[metrics.STEP_TIME] / 1e3]


class Endless(torch.utils.data.IterableDataset):
    """A data set without a length."""

    def __iter__(self) -> Any:
        for number in range(15):
            yield {"input_ids": torch.full((8,), number % 30), "labels": number % 2}


def test_the_metric_of_hugging_faces_best_model_is_recorded(tmp_path: Path):
    rows = [{"input_ids": torch.full((8,), number), "labels": number % 2} for number in range(8)]
    named = hugging_face(tmp_path / "f1", rows, metric_for_best_model="eval_f1", greater_is_better=True)
    assert named.environment["task"]["metric"] == "eval/f1"
    assert named.environment["task"]["metrics"]["eval/f1"]["better"] == "higher"
    assert "task" not in hugging_face(tmp_path / "none", rows).environment


def test_samples_that_hugging_faces_data_loader_does_not_tell_are_counted_by_the_users_function(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """The last step is short, which is not known beforehand. Nor is there a length in epochs."""
    how = {"max_steps": 2, "per_device_train_batch_size": 8}
    run = hugging_face(tmp_path / "unknown", Endless(), **how)
    assert run.history[metrics.STEP].max() == 2
    assert run.history[metrics.STEP_TIME].notna().any()
    assert not {metrics.THROUGHPUT, metrics.EPOCH} & set(run.history)
    assert len([line for line in caplog.messages if "throughput is not recorded" in line]) == 1
    run = hugging_face(tmp_path / "told", Endless(), samples=lambda batch: len(batch["labels"]), **how)
    assert count_samples(run)[-1] == 7


def test_an_attempt_at_a_batch_size_is_no_run(tmp_path: Path):
    from transformers import BertForSequenceClassification

    class Large(BertForSequenceClassification):
        def forward(self, input_ids: Any = None, labels: Any = None) -> Any:
            if len(input_ids) > 4:
                raise RuntimeError("CUDA out of memory. Tried to allocate")
            return super().forward(input_ids=input_ids, labels=labels)

    rows = [{"input_ids": torch.full((8,), n), "labels": n % 2} for n in range(16)]
    how = {"per_device_train_batch_size": 16, "auto_find_batch_size": True, "num_train_epochs": 1}
    run = hugging_face(tmp_path, rows, Large, **how)
    assert run.exit_code == 0
    assert set(count_samples(run)) <= {1, 2, 3, 4}


def test_the_accelerate_example_counts_the_steps_that_accelerate_skips(tmp_path: Path, outside: Outside):
    outside.replace(sys, "argv", ["accelerate_loop.py", str(tmp_path)])
    found = runpy.run_path(str(ROOT / "docs" / "examples" / "accelerate_loop.py"), run_name="__main__")
    ((name, run),) = read_runs(tmp_path, 16, 16).items()
    assert name == "native"
    assert run.values(metrics.SKIPPED)[-1] == found["skipped"] > 3


@pytest.mark.parametrize("library", ["lightning", "transformers"])
def test_an_adapter_without_its_library_says_what_to_install(library: str):
    code = f"""
import sys
sys.modules.update(dict.fromkeys(("lightning", "pytorch_lightning", "transformers")))
from ampcompare.errors import UserError
try:
    import ampcompare.recorder.{library}
except UserError as problem:
    print(problem)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"pip install {library}" in done.stdout
    assert done.stdout.count("\n") == 1


if __name__ == "__main__":
    import pytorch_lightning

    fit(pytorch_lightning, Path(sys.argv[1]), precision="32-true", accumulate_grad_batches=2)
    assert "lightning.pytorch" not in sys.modules
