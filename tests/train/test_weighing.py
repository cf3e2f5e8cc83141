"""Parts of a step, micro-batches and processes, whose targets do not all count: the gradient of the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from support.properties import MECHANISMS
from support.quick import ROOT
from support.torchrun import torchrun
from support.training import classification, trainer
from torch import Tensor, nn

from ampcompare.checkpoint.store import Store, read
from ampcompare.config.load import load_config
from ampcompare.experiment import run
from ampcompare.precision import REGISTRY
from ampcompare.records import load_runs
from ampcompare.train.step import Trainer
from ampcompare.train.task import Task, build_task

CPU = torch.device("cpu")


def made(task: Task, backend: str = "none", features: int = 4) -> Trainer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, features))
    return trainer(backend, model, task=task, lr=1.0, init_scale=1024.0)


def tokens(*lengths: int, most: int = 5) -> tuple[Tensor, Tensor]:
    """Inputs [N, T, 3], targets [N, T] of which the first so many count."""
    generator = torch.Generator().manual_seed(1)
    targets = torch.randint(0, 4, (len(lengths), most), generator=generator)
    for row, length in zip(targets, lengths, strict=True):
        row[length:] = -100
    return torch.randn(len(lengths), most, 3, generator=generator), targets


def moved(one: Trainer, batches: list[Any]) -> tuple[float, Tensor]:
    """A step's loss and what it changed."""
    before = torch.cat([p.detach().flatten().clone() for p in one.model.parameters()])
    loss = one.step(batches).loss.item()
    return loss, torch.cat([p.detach().flatten() for p in one.model.parameters()]).float() - before


def parts_of(batch: tuple[Tensor, Tensor], *sizes: int) -> list[tuple[Tensor, Tensor]]:
    return list(zip(*(field.split(list(sizes)) for field in batch), strict=True))


@pytest.mark.parametrize("backend", MECHANISMS)
def test_micro_batches_with_ignored_targets_are_as_one_batch(backend: str):
    whole = tokens(5, 1, 3, 0, 0, 2, 4)
    task = classification(0.1)
    (loss, change), (split_loss, split) = (
        moved(made(task.weighed() if sizes[1:] else task, backend), parts_of(whole, *sizes))
        for sizes in ((7,), (3, 2, 2))  # the second of them has nothing that counts
    )
    rough = 8 if REGISTRY[backend].dtype == "bfloat16" else 1
    assert split_loss == pytest.approx(loss, rel=1e-5 if backend == "none" else 2e-3 * rough)
    assert (split - change).norm() <= (1e-5 if backend == "none" else 5e-3 * rough) * change.norm()
    assert change.norm() > 0


def test_squared_errors_of_sequences_of_unlike_length_weigh_by_their_elements():
    task = build_task(load_config(None, ["task.loss=mse"]), CPU)
    x, y = torch.randn(6, 3), torch.randn(6, 2)
    loss, change = moved(made(task, features=2), [(x, y)])
    # One sample of four steps and one of two, as two batches of a loader are.
    long, short = (x[None, :4], y[None, :4]), (x[None, 4:], y[None, 4:])
    split_loss, split = moved(made(task.weighed(), features=2), [long, short])
    assert split_loss == pytest.approx(loss)
    assert torch.allclose(split, change, atol=1e-6)


DATA = """
import torch
from torch.utils.data import DataLoader

def rows(train):
    generator = torch.Generator().manual_seed(int(train))
    count = 45 if train else 9  # the last batch of an epoch is short
    x = torch.randn(count, 5, 3, generator=generator)
    y = (x.sum(2) > 0).long() + 2 * (x[..., 0] > 0).long()
    for i in range(count):
        y[i, (i * i) % 6:] = -100
    return x, y

def padded(train, batch_size):
    def collate(pairs):  # as long as the longest
        length = max(1, max(int((y != -100).sum()) for _, y in pairs))
        return torch.stack([x[:length] for x, _ in pairs]), torch.stack([y[:length] for _, y in pairs])
    return DataLoader(list(zip(*rows(train))), batch_size=batch_size, shuffle=train, collate_fn=collate)
"""
NET = """
from torch import nn

def build():
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))
"""
WORDS = (
    "model.name=./net.py:build",
    "data.source=./data.py:padded",
    "epochs=2",
    "log.every=1",
    "log.warmup_steps=1",
    "device=cpu",
)
WORDS += ("diagnostics.every=null", "checkpoint.every_epochs=1", "wandb.mode=offline", "optimizer.lr=0.5")


def end_of(folder: str) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and weights."""
    (record,), (kept,) = load_runs([folder]), (Path(folder) / "checkpoints").iterdir()
    state = read(Store(kept).files()[0])["model"]
    return record.values("train/loss").tolist(), {k.removeprefix("module."): v for k, v in state.items()}


@pytest.mark.slow
def test_runs_in_micro_batches_and_in_two_processes_are_the_run_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "data.py").write_text(DATA)
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    alone = {"one": ("batch_size=20",), "parts": ("batch_size=5", "training.accumulate=4")}
    for folder, more in alone.items():
        config = load_config(None, [*WORDS, *more, f"output_dir={folder}"])
        assert run(config, Console(quiet=True)).exit_code == 0
    words = [*WORDS, "batch_size=10", "training.accumulate=2", "output_dir=two"]
    torchrun(2, str(ROOT / "run_experiment.py"), *words)
    losses, weights = end_of("one")
    assert len(losses) == 6
    for folder in ("parts", "two"):
        others, other_weights = end_of(folder)
        assert others == pytest.approx(losses, rel=1e-4), folder
        for key, value in weights.items():
            assert torch.allclose(other_weights[key], value, atol=1e-4), (folder, key)
