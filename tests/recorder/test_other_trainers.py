"""Lightning's, Hugging Face's and accelerate's own trainers on a CPU, recorded and read back as our runs."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.lightning_fit import HOW, data, fit, lightning_module
from torch.utils.data import DataLoader

from ampcompare import metrics
from ampcompare.records import RunRecord, load_runs
from ampcompare.report.analysis.analysis import analyse_runs

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow
# What every run of ours has, whatever it trains.
ALWAYS = {
    metrics.STEP,
    metrics.EPOCH,
    metrics.ELAPSED,
    metrics.TRAIN_SECONDS,
    metrics.LOSS,
    metrics.LEARNING_RATE,
    metrics.SCALE,
    metrics.SKIPPED,
    metrics.THROUGHPUT,
    metrics.STEP_TIME,
    metrics.PEAK_MEMORY,
    metrics.GRADIENT_NORM,
    metrics.EVAL_LOSS,
    metrics.EVAL_ACCURACY,
}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)


def read(folder: Path, *samples: float) -> dict[str, RunRecord]:
    """The runs by backend, each whole, with our names; a step of their first rows had so many samples."""
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


@pytest.mark.filterwarnings("ignore")
def test_lightning_runs_are_compared_by_their_precision(tmp_path: Path):
    import lightning.pytorch as library
    from lightning.pytorch.plugins.precision import MixedPrecision

    fit(library, tmp_path, 3, precision="32-true", accumulate_grad_batches=2)
    fit(library, tmp_path, 3, precision="bf16-mixed", accumulate_grad_batches=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    seen: list[float] = []
    update = scaler.update
    scaler.update = lambda *new: (seen.append(scaler.get_scale()), update(*new))[1]  # type: ignore[method-assign]
    plugin = MixedPrecision("16-mixed", "cpu", scaler)
    fit(library, tmp_path, 3, plugins=[plugin], accumulate_grad_batches=2)
    drops = sum(b < a for a, b in zip(seen, [*seen[1:], scaler.get_scale()], strict=True))
    runs = read(tmp_path, 16, 14.4)  # the short last step of the epoch, the 8th, is in the second row
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


@pytest.mark.filterwarnings("ignore")
def test_a_lightning_run_that_goes_on_from_its_checkpoint_is_one_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import lightning.pytorch as library

    from ampcompare.recorder.lightning import RecorderCallback

    monkeypatch.setenv("WANDB_RUN_ID", "again")
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    saved = tmp_path / "saved.ckpt"
    for epochs in (1, 2):
        record = RecorderCallback(output_dir=tmp_path, seed=1, **HOW)
        trainer = library.Trainer(
            accelerator="cpu", max_epochs=epochs, enable_checkpointing=False, callbacks=[record], **quiet
        )
        loader = DataLoader(data(), batch_size=8)
        trainer.fit(lightning_module(library), loader, ckpt_path=saved if epochs == 2 else None)
        trainer.save_checkpoint(saved)
    (run,) = load_runs([tmp_path])
    rows = run.history[run.history[metrics.LOSS].notna()]
    assert rows[metrics.STEP].tolist() == [5, 10, 15, 20, 25, 30]


@pytest.mark.filterwarnings("ignore")
def test_pytorch_lightning_under_its_old_name_is_recorded_too(tmp_path: Path):
    pytest.importorskip("pytorch_lightning")
    program = """
import sys, pathlib, pytorch_lightning
sys.path.insert(0, {tests!r})
from support.lightning_fit import fit
fit(pytorch_lightning, pathlib.Path({folder!r}), 5, precision="32-true", accumulate_grad_batches=2)
assert "lightning.pytorch" not in sys.modules
"""
    tests = str(ROOT / "tests")
    code = program.format(tests=tests, folder=str(tmp_path))
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert set(read(tmp_path, 16, 14.4)) == {"32-true"}


@pytest.mark.filterwarnings("ignore")
def test_a_failing_lightning_module_ends_its_record_as_failed(tmp_path: Path):
    import lightning.pytorch as library

    class Broken(library.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 7:
                raise ValueError("mine")

    from ampcompare.recorder.lightning import RecorderCallback

    record = RecorderCallback(output_dir=tmp_path, **HOW)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = library.Trainer(accelerator="cpu", max_epochs=1, callbacks=[record, Broken()], **quiet)
    with pytest.raises(ValueError, match="mine"):
        trainer.fit(lightning_module(library), DataLoader(data(), batch_size=8))
    (run,) = load_runs([tmp_path])
    assert run.exit_code == 1
    assert run.values(metrics.STEP).max() == 5


@pytest.mark.filterwarnings("ignore")
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
    ((name, run),) = read(tmp_path, 8, 14.4).items()  # the 5th step is the short last one of the epoch
    assert name == ("bf16-mixed" if bf16 else "32-true")
    assert run.config["seed"] == 7
    assert run.history[metrics.STEP].max() == 10
    losses = run.history[run.history[metrics.LOSS].notna()]
    assert losses[metrics.STEP].tolist() == [3, 6, 9]
    assert len(run.values(metrics.EVAL_ACCURACY)) == 2
    named = {key for key in run.history if key.startswith("eval/")}
    assert named == {metrics.EVAL_LOSS, metrics.EVAL_ACCURACY}


@pytest.mark.filterwarnings("ignore")
def test_the_accelerate_example_counts_the_steps_that_accelerate_skips(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "argv", ["accelerate_loop.py", str(tmp_path)])
    found = runpy.run_path(str(ROOT / "docs" / "examples" / "accelerate_loop.py"), run_name="__main__")
    ((name, run),) = read(tmp_path, 16, 16).items()
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
