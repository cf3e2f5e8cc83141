"""Parts of a step, micro-batches and processes, whose targets do not all count: the gradient of the whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.properties import MECHANISMS
from support.training import task_of, trainer
from torch import Tensor, nn

from ampcompare.machine.world import World
from ampcompare.precision import REGISTRY
from ampcompare.train.step import Trainer
from ampcompare.train.task import Task


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
    task = task_of("training.label_smoothing=0.1")
    (loss, change), (split_loss, split) = (
        moved(made(task.weighed() if sizes[1:] else task, backend), parts_of(whole, *sizes))
        for sizes in ((7,), (3, 2, 2))  # the second of them has nothing that counts
    )
    rough = 8 if REGISTRY[backend].dtype == "bfloat16" else 1
    assert split_loss == pytest.approx(loss, rel=1e-5 if backend == "none" else 2e-3 * rough)
    assert (split - change).norm() <= (1e-5 if backend == "none" else 5e-3 * rough) * change.norm()
    assert change.norm() > 0


def test_squared_errors_of_sequences_of_unlike_length_weigh_by_their_elements():
    task = task_of("task.loss=mse")
    x, y = torch.randn(6, 3), torch.randn(6, 2)
    loss, change = moved(made(task, features=2), [(x, y)])
    # One sample of four steps and one of two, as two batches of a loader are.
    long, short = (x[None, :4], y[None, :4]), (x[None, 4:], y[None, 4:])
    split_loss, split = moved(made(task.weighed(), features=2), [long, short])
    assert split_loss == pytest.approx(loss)
    assert torch.allclose(split, change, atol=1e-6)


class AsTwo(World):
    """As if another process had the same numbers."""

    def sum_(self, tensor: Tensor) -> Tensor:
        return tensor.mul_(2)


def test_each_of_two_processes_weighs_its_part_by_what_counts_in_both():
    batch = tokens(5, 1, 0, 3)
    alone = moved(made(task_of().weighed()), [batch])
    one = made(task_of().weighed())
    one.world = AsTwo(size=2)
    together = moved(one, [(batch, 8)])  # with how many samples they have together
    assert together[0] == pytest.approx(alone[0])
    assert torch.allclose(together[1], alone[1])
