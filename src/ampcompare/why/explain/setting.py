"""The training that is explained, built as a run builds it, on tensors without data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from ampcompare.config.load import Config
from ampcompare.data.batch import Batch, Field, count_samples, each, in_layout
from ampcompare.data.dataset import Dataset, build_dataset
from ampcompare.data.sources import SOURCES
from ampcompare.data.splits import BatchSet, ImageSet
from ampcompare.errors import UserError, reason
from ampcompare.machine.device import is_channels_last
from ampcompare.train.build import build_trainer, load_data
from ampcompare.train.step import Trainer
from ampcompare.why.explain.stage import staged


@dataclasses.dataclass(frozen=True)
class Shapes:
    """What of the data a step sees: a batch's tensors by shape and type, and how many classes there are.

    `inputs` and `targets` are tensors without data (on PyTorch's `meta` device), or dicts of them.
    """

    inputs: Field
    targets: Field
    classes: tuple[str, ...]

    def batch(self, device: torch.device, channels_last: bool) -> Batch:
        """Tensors of these shapes on the device, in the layout of a run. Inside `staged` without data, else
        ones and class 0.
        """

        def made(tensor: Tensor) -> Tensor:
            values = torch.zeros(tensor.shape, dtype=tensor.dtype, device=device)
            return in_layout(values.fill_(1) if tensor.is_floating_point() else values, channels_last)

        return each(self.inputs, made), each(self.targets, made)


class _Lengths:
    """What is asked of a loader while a trainer is built: how many batches it has."""

    def __len__(self) -> int:
        return 1


def shapes_of(config: Config) -> Shapes:
    """A batch's shapes. Of our own sources nothing is loaded or downloaded, but of a folder of images, whose
    size is in the images; of others the first batch. Raises UserError.
    """
    declared, size = SOURCES.get(config.data.source), config.batch_size
    if declared is not None and declared.classes:
        kwargs = config.data.kwargs  # of made-up images, and the line for any other
        few = build_dataset(declared.name, None, 1, 1, kwargs=kwargs) if kwargs else None
        sides = few.train.images.shape[2:] if few else (32, 32)
        return _images(size, sides, tuple(map(str, range(declared.classes))))
    data = load_data(config)
    train = data.train
    if isinstance(train, ImageSet):
        return _images(size, tuple(train.images.shape[2:]), data.classes)
    if isinstance(train, BatchSet):
        size = count_samples(train.sample[0])
    inputs, targets = (each(field, lambda tensor: _of_size(tensor, size)) for field in train.sample)
    return Shapes(inputs, targets, data.classes)


def _images(count: int, sides: Sequence[int], classes: tuple[str, ...]) -> Shapes:
    inputs = torch.empty(count, 3, *sides, device="meta")
    return Shapes(inputs, torch.empty(count, dtype=torch.int64, device="meta"), classes)


def _of_size(tensor: Tensor, count: int) -> Tensor:
    return torch.empty((count, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")


def settled(config: Config) -> Config:
    """The config to be run call by call: what `execution=compile` makes of the step is the compiler's to
    know.
    """
    return dataclasses.replace(config, execution="eager")


@contextmanager
def built(config: Config, shapes: Shapes, device: torch.device) -> Iterator[tuple[Trainer, list[Batch]]]:
    """The trainer of a run of this config and the micro-batches of one of its steps, all without data.

    Raises UserError, one line, for a network that cannot be built so.
    """
    with staged(device):
        try:
            trainer, batches = real(config, shapes, device)
        except UserError:
            raise
        except Exception as problem:
            raise _refusal(config, "be built", problem) from problem
        with trainer.precision.session():
            yield trainer, batches


def real(config: Config, shapes: Shapes, device: torch.device) -> tuple[Trainer, list[Batch]]:
    """The same with data, made up. Enter the session of its precision before a step."""
    shown = _Shown(shapes)
    data = Dataset(shown, shown, shapes.classes, config.data.source, "")
    trainer = build_trainer(config, data, _Lengths(), device)
    # What a training accuracy is counted of is none of the step's arithmetic.
    trainer.task = dataclasses.replace(trainer.task, judge=None)
    last = is_channels_last(config, device)
    return trainer, [shapes.batch(device, last) for _ in range(config.training.accumulate)]


def refusal(config: Config, problem: BaseException) -> UserError:
    """One line for a step that cannot be run on tensors without data."""
    return _refusal(config, "be run", problem)


def _refusal(config: Config, what: str, problem: BaseException) -> UserError:
    kind = type(problem).__name__
    why = "values decide what it does (.item(), a branch on a tensor)" if "Data" in kind else reason(problem)
    return UserError(
        f"model.name={config.model.name!r}: cannot {what} on tensors without data: {kind}: {why}"
    )


@dataclasses.dataclass(frozen=True)
class _Shown:
    """A split as `build_trainer` looks at it: the batch's shapes, whose targets all count."""

    shapes: Shapes

    @property
    def sample(self) -> Batch:
        return self.shapes.inputs, self.shapes.targets
