"""A step, and a whole Fit, of a small network on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from ampcompare.config.load import Config, load_config
from ampcompare.config.schema import TrainingConfig
from ampcompare.data.dataset import build_dataset
from ampcompare.precision import build_precision
from ampcompare.train.build import build_trainer
from ampcompare.train.loaders import make_loader
from ampcompare.train.loop import Fit
from ampcompare.train.step import Trainer, wrap
from ampcompare.train.task import Task, build_task

WORDS = ("optimizer.fused=true", "optimizer.momentum=0.9", "log.every=1", "data.train_limit=45", "epochs=3")


def batch(count: int = 32, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (count,), generator=generator)
    images = torch.randn(count, 3, 8, 8, generator=generator)
    images[torch.arange(count), :, labels * 2] += 1.5
    return images, labels


def classification(label_smoothing: float = 0.0) -> Task:
    """Cross entropy, top-1 and top-5 accuracy of logits and classes."""
    words = [f"training.label_smoothing={label_smoothing}"]
    return build_task(load_config(None, words), torch.device("cpu"))


def trainer(
    backend: str,
    model: nn.Module,
    config: TrainingConfig | None = None,
    task: Task | None = None,
    *,
    lr: float = 0.1,
    momentum: float = 0.0,
    compiled: bool = False,
    ddp: bool = False,
    **options: Any,
) -> Trainer:
    """A Trainer with SGD at a constant rate; `options` are the backend's."""
    precision = build_precision(backend, "cpu", **options)
    model, optimizer = precision.prepare(model, torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum))
    schedule, config = LambdaLR(optimizer, lambda _: 1.0), config or TrainingConfig()
    task = task or classification(config.label_smoothing)
    return Trainer(
        wrap(model) if ddp else model, optimizer, schedule, precision, config, task, compiled=compiled
    )


def fit(quick: tuple[str, ...], *words: str, **on: Any) -> tuple[Fit, list[dict[str, Any]]]:
    """A Fit as the words say, on the CPU even if they ask for a graph; and the list of its rows. `on` is what
    else it is given.
    """
    config = load_config(None, [*quick, *WORDS, *words])
    return fit_of(config, torch.device(config.device), **on)


def fit_of(
    config: Config, device: torch.device, data: Any = None, **on: Any
) -> tuple[Fit, list[dict[str, Any]]]:
    """A Fit of a config, and the list of its rows."""
    limits = config.data.train_limit, config.data.test_limit
    data = data or build_dataset(config.data.source, None, *limits)
    train, test = (
        make_loader(config, part, device, training=part is data.train) for part in (data.train, data.test)
    )
    rows: list[dict[str, Any]] = []
    made = build_trainer(config, data, train, device)
    return Fit(made, train, test, config, on_row=rows.append, **on), rows


def timeless(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in r.items() if not k.startswith(("time/", "throughput/", "memory/"))} for r in rows
    ]
