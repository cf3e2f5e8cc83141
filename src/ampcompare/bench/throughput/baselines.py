"""Other people's training loops, to time ours against: the seed's, and the best usually written by hand.

- `seed-style`: PIL images, torchvision's transforms and a DataLoader with 8 workers, contiguous images,
  deterministic cuDNN, and `.item()` of loss and correct answers at each step.
- `plain`: images resident on the device and augmented there in batches (our loader), the config's layout,
  cuDNN's search, gradients set to None, sums on the device that nobody reads; GradScaler's own waits alone.

Both use `torch.autocast` and `torch.amp.GradScaler` with `backend=native` and neither with `none`, and SGD as
PyTorch makes it. Neither uses any of our training code.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset
from torchvision import transforms

from ampcompare.bench.throughput import BASELINE, HAND_WRITTEN
from ampcompare.config.load import Config
from ampcompare.config.schema import DataConfig
from ampcompare.data.dataset import Dataset
from ampcompare.data.loader import PADDING
from ampcompare.errors import UserError
from ampcompare.machine.device import is_channels_last
from ampcompare.models import build_model
from ampcompare.precision import backend_of
from ampcompare.train.build import make_loader

WORKERS = 8
MEAN, STD = DataConfig().mean, DataConfig().std
UNFUSED: dict[str, object] = {"fused": False}  # whatever the config says


@dataclass
class Done:
    """What is known of a step: its loss on the device, its images, whether something was compiled in it."""

    loss: Tensor
    images: int
    cold: bool = False


@dataclass
class Loop:
    """A training to be timed: its full batches without end, and the step on one of them."""

    batches: Iterator[Any]
    step: Callable[[Any], Done]
    session: AbstractContextManager[Any]
    numerics: dict[str, object] = field(default_factory=dict)  # what it does otherwise than the config says


class PilImages(TorchDataset):
    """torchvision.datasets.CIFAR10 without the download: an array, each a PIL image transformed."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.arrays = images.permute(0, 2, 3, 1).contiguous().numpy()
        self.labels = labels.tolist()
        augment = [transforms.RandomCrop(32, padding=PADDING), transforms.RandomHorizontalFlip()]
        convert = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
        self.transform = transforms.Compose([*augment, *convert])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(Image.fromarray(self.arrays[index])), self.labels[index]


class HandWritten:
    """Model, optimizer and scaler as PyTorch's AMP examples put them together."""

    def __init__(
        self, config: Config, classes: int, device: torch.device, layout: torch.memory_format
    ) -> None:
        if config.backend not in HAND_WRITTEN:
            known = " and ".join(HAND_WRITTEN)
            raise UserError(f"backend={config.backend!r}: the loops written by hand know {known} only")
        self.device, self.dtype = device, getattr(torch, backend_of(config.backend).dtype)
        self.mixed = config.backend != BASELINE
        torch.manual_seed(config.seed)
        model = build_model(num_classes=classes, **asdict(config.model)).to(device)
        self.model: nn.Module = model.to(memory_format=layout)
        options = config.optimizer
        self.optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=options.momentum)
        scales = self.mixed and self.dtype == torch.float16
        self.scaler = torch.amp.GradScaler(device.type, enabled=scales)

    def forward_backward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(self.device.type, self.dtype, enabled=self.mixed):
            logits = self.model(images)
            loss = F.cross_entropy(logits, labels)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)  # sync: GradScaler asks whether there was an overflow
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return logits, loss


def seed_style(config: Config, data: Dataset, device: torch.device) -> Loop:
    """The seed's loop. Sets cuDNN for this process."""
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    made = HandWritten(config, len(data.classes), device, torch.contiguous_format)
    loader = DataLoader(
        PilImages(data.train.images, data.train.labels),
        batch_size=config.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        persistent_workers=True,
        pin_memory=device.type == "cuda",
    )
    totals = [0.0, 0.0]

    def step(batch: tuple[Tensor, Tensor]) -> Done:
        images, labels = (x.to(device, non_blocking=True) for x in batch)
        logits, loss = made.forward_backward(images, labels)
        totals[0] += loss.item()  # sync: as the seed does
        totals[1] += (logits.argmax(1) == labels).sum().item()  # sync: likewise
        return Done(loss.detach(), len(labels))

    numerics = UNFUSED | {"memory_format": "contiguous", "cudnn_deterministic": True}
    return Loop(forever(lambda epoch: loader), step, nullcontext(), numerics=numerics)


def plain(config: Config, data: Dataset, device: torch.device) -> Loop:
    """The eager loop of a careful user."""
    layout = torch.channels_last if is_channels_last(config, device) else torch.contiguous_format
    made = HandWritten(config, len(data.classes), device, layout)
    loader = make_loader(config, data.train, device, training=True)
    totals = torch.zeros(2, device=device)

    def step(batch: tuple[Tensor, Tensor]) -> Done:
        images, labels = batch
        logits, loss = made.forward_backward(images, labels)
        with torch.no_grad():
            totals[0] += loss
            totals[1] += (logits.argmax(1) == labels).sum()
        return Done(loss.detach(), len(labels))

    full = (batch for batch in forever(loader.epoch) if len(batch[1]) == config.batch_size)
    return Loop(full, step, nullcontext(), numerics=UNFUSED)


def forever(epoch: Callable[[int], Iterable[Any]]) -> Iterator[Any]:
    """Epoch after epoch."""
    return itertools.chain.from_iterable(map(epoch, itertools.count()))


BASELINES = {"seed-style": seed_style, "plain": plain}
