"""A step, a training loop and a whole run of a small network on a CPU."""

import io
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from ampcompare.config.load import Config, load_config
from ampcompare.config.schema import TrainingConfig
from ampcompare.data.factory import build_dataset
from ampcompare.experiment import run
from ampcompare.precision import build_precision
from ampcompare.runtime.console import messages_on
from ampcompare.runtime.signals import StopRequest
from ampcompare.tracking.tracker import Tracker
from ampcompare.training.factory import build_trainer
from ampcompare.training.loaders import make_loader
from ampcompare.training.loop import TrainingLoop
from ampcompare.training.task import Task, build_task
from ampcompare.training.trainer import Trainer
from support.quick import QUICK

WORDS = (
    "recipe=reference",
    "optimizer.fused=true",
    "optimizer.momentum=0.9",
    "log.every=1",
    "data.train_limit=45",
    "epochs=3",
)


class Killed(BaseException):
    """The end of a process, as far as the code in it can see."""


def batch(count: int = 32, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (count,), generator=generator)
    images = torch.randn(count, 3, 8, 8, generator=generator)
    images[torch.arange(count), :, labels * 2] += 1.5
    return images, labels


def task_of(*words: str) -> Task:
    """Unless the words say another: cross entropy, top-1 and top-5 accuracy of logits and classes."""
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
    **options: Any,
) -> Trainer:
    """Return a Trainer with SGD at a constant rate; `options` are those of the backend."""
    precision = build_precision(backend, "cpu", **options)
    model, optimizer = precision.prepare(model, torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum))
    schedule, config = LambdaLR(optimizer, lambda _: 1.0), config or TrainingConfig()
    return Trainer(model, optimizer, schedule, precision, config, task or task_of(), compiled=compiled)


class RowList(Tracker):
    """A tracker that keeps its rows in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, Any]] = []

    def log(self, row: Mapping[str, Any]) -> None:
        self.rows.append(dict(row))


class StopWhen(StopRequest):
    """A request to stop that is made as soon as `asked` returns True, with the exit code of Ctrl-C."""

    def __init__(self, asked: Callable[[], bool]) -> None:
        super().__init__()
        self.asked, self.agreed = asked, list[int]()

    def is_made(self) -> bool:
        return self.asked()

    def agree_on(self, exit_code: int) -> None:
        self.agreed.append(exit_code)


def fit(*words: str, **on: Any) -> tuple[TrainingLoop, list[dict[str, Any]]]:
    """Return the training loop of overrides, and the list of its rows.

    It runs on the CPU, even if the overrides ask for a CUDA graph. `on` is passed to `fit_of`.
    """
    config = load_config(None, [*QUICK, *WORDS, *words])
    return fit_of(config, torch.device(config.device), **on)


def fit_of(
    config: Config,
    device: torch.device,
    data: Any = None,
    **on: Any,
) -> tuple[TrainingLoop, list[dict[str, Any]]]:
    """Return the training loop of a config, and the list of its rows; `on` are arguments of the loop."""
    limits = config.data.train_limit, config.data.test_limit
    data = data or build_dataset(config.data.source, None, *limits)
    world, tracker = on.get("world"), RowList()
    train, test = (
        make_loader(config, part, device, training=part is data.train, world=world)
        for part in (data.train, data.test)
    )
    made = build_trainer(config, data, train, device, world)
    return TrainingLoop(made, train, test, config, tracker=tracker, **on), tracker.rows


def timeless(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in r.items() if not k.startswith(("time/", "throughput/", "memory/"))} for r in rows
    ]


def play(*words: str, code: int = 0, until: int | None = None) -> str:
    """Run a quick training and return what it printed.

    It has to end with the exit code `code`, or its process dies at step `until`.
    """
    text = io.StringIO()

    def die(step: int) -> None:
        if step == until:
            raise Killed

    config = load_config(None, [*QUICK, *words])
    console = Console(file=text, width=300)
    with messages_on(console):
        if until is None:
            assert run(config, console).exit_code == code, text.getvalue()
        else:
            with pytest.raises(Killed):
                run(config, console, on_step=die)
    return text.getvalue()
