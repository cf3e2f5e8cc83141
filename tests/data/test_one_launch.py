"""With `fuse` on a GPU a batch is one launch; the op is the same on a CPU."""

from __future__ import annotations

import pytest
import torch
from support.properties import backends

from ampcompare.config.schema import TrainingConfig
from ampcompare.data.dataset import ImageSet
from ampcompare.data.loader import DeviceLoader
from ampcompare.fusion.batch import fuse_batches
from ampcompare.models import build_model
from ampcompare.precision import REGISTRY, build_precision
from ampcompare.train.trainer import Trainer


def loader(**changes) -> DeviceLoader:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (40, 3, 8, 8), generator=generator, dtype=torch.uint8)
    how = {"batch_size": 16, "device": "cpu", "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4), "seed": 1}
    return DeviceLoader(ImageSet(images, torch.arange(40) % 10), **{**how, "shuffle": True, **changes})


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("augment", [False, True])
def test_batches_of_one_launch_are_the_loaders_own(augment: bool, channels_last: bool):
    plain, fused = (loader(augment=augment, channels_last=channels_last) for _ in range(2))
    fuse_batches(fused, torch.float32)
    for (images, labels), (wanted, wanted_labels) in zip(fused.epoch(3), plain.epoch(3), strict=True):
        assert torch.equal(labels, wanted_labels)
        assert images.stride() == wanted.stride()
        torch.testing.assert_close(images, wanted, rtol=0, atol=1e-6)


@backends(REGISTRY)
def test_steps_on_images_in_the_backends_own_type_are_the_same_steps(backend: str):
    losses = []
    for fuse in (False, True):
        torch.manual_seed(0)
        model, precision, data = (
            build_model("tiny", "cifar", 10),
            build_precision(backend),
            loader(augment=True),
        )
        model, optimizer = precision.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, fused=True))
        if fuse:
            fuse_batches(data, precision.input_dtype)
            assert next(data.epoch(0))[0].dtype is precision.input_dtype
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        trainer = Trainer(model, optimizer, schedule, precision, TrainingConfig())
        with precision.session():
            losses.append([trainer.step([batch]).loss.item() for batch in data.epoch(0)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
