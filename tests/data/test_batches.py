"""Batches of images, of tensors, of data sets by workers, of loaders of others: the same at each place."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.own_data import OWN
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from ampcompare.data.augment import crop_batch, flip_batch, make_normalization, normalize
from ampcompare.data.batch import Batch, list_tensors
from ampcompare.data.dataset import ImageSplit
from ampcompare.data.device_loaders import DeviceLoader, TensorLoader, draw_plan
from ampcompare.data.factory import build_dataset
from ampcompare.data.host_loaders import BatchLoader, SampleLoader
from ampcompare.errors import UserError

SIZE = 32  # 90 samples: batches of 32, 32, 26
NAME = "./data.py:{}"
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


pytestmark = pytest.mark.usefixtures("here")


def make(name: str, workers: int = 0, **more: Any) -> Any:
    """Return the training loader of one of the functions."""
    kwargs = {"workers": workers} if name == "loader" else {}
    data = build_dataset(NAME.format(name), batch_sizes=(SIZE, 8), kwargs=kwargs).train
    options = {"device": "cpu", "seed": 3} | more
    if name == "images":
        options |= {"mean": MEAN, "std": STD, "augment": True, "channels_last": True}
        return DeviceLoader(data, batch_size=SIZE, shuffle=True, **options)
    if name in ("tensors", "named"):
        return TensorLoader(data, batch_size=SIZE, shuffle=True, **options)
    if "samples" in name or name == "restless":
        return SampleLoader(data, name=name, batch_size=SIZE, shuffle=True, workers=workers, **options)
    return BatchLoader(data, **options)


def flatten_batches(batches: Iterator[Batch]) -> list[list[Tensor]]:
    """Return the tensors of each batch."""
    return [[t for field in batch for t in list_tensors(field)] for batch in batches]


def are_equal(one: list[list[Tensor]], other: list[list[Tensor]]) -> bool:
    """Return whether batches are bit-identical."""
    pairs = zip(one, other, strict=True)
    return len(one) == len(other) and all(a.equal(b) for x, y in pairs for a, b in zip(x, y, strict=True))


def reseed(seed: int) -> None:
    """Seed the global generators."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


EVERY = ["images", "tensors", "named", "samples", "named_samples", "loader", "own_loader", "stream"]
EVERY += ["sequences"]


@pytest.mark.parametrize("name", EVERY)
def test_an_epoch_depends_on_seed_and_number_only_and_leaves_global_generators_unchanged(name: str):
    seen = []
    for global_seed in (1, 2):
        reseed(global_seed)
        loader = make(name)
        epochs = [flatten_batches(loader.epoch(epoch)) for epoch in (0, 1)]
        seen.append([x for epoch in epochs for x in epoch])
        drawn = torch.rand(1).item(), np.random.rand(), random.random()
        reseed(global_seed)
        assert drawn == (torch.rand(1).item(), np.random.rand(), random.random())
        assert name == "sequences" or not are_equal(*epochs)
    assert are_equal(*seen)
    assert not are_equal(flatten_batches(make(name, seed=4).epoch(0)), seen[0][:3]) or name == "sequences"


@pytest.mark.parametrize("name", ["images", "tensors", "samples", "loader", "own_loader"])
def test_an_epoch_that_starts_at_a_batch_equals_the_rest_of_the_full_epoch(name: str):
    loader = make(name)
    next(iter(loader.epoch(0)))  # an epoch is the same whatever came before it
    whole = flatten_batches(loader.epoch(1))
    assert [len(x[-1]) for x in whole] == [32, 32, 26]
    for start in range(4):
        assert are_equal(flatten_batches(make(name).epoch(1, start)), whole[start:])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["samples", "named_samples"])
def test_the_number_of_workers_does_not_change_the_data(name: str):
    """Also after an epoch that was left in the middle, with workers that live on."""
    alone = make(name)
    for workers in (1, 2):
        loader = make(name, workers)
        next(iter(loader.epoch(0)))
        for epoch, start in ((0, 0), (1, 0), (1, 2)):
            assert are_equal(
                flatten_batches(loader.epoch(epoch, start)), flatten_batches(alone.epoch(epoch, start))
            )


@pytest.mark.parametrize("name", ["images", "tensors", "named", "samples", "named_samples"])
def test_several_processes_share_the_batches_of_a_single_one(name: str):
    whole = flatten_batches(make(name).epoch(0))
    parts = [make(name, rank=rank, processes=4) for rank in range(4)]
    shares = [list(part.epoch_with_sizes(0)) for part in parts]
    assert [[size for _, size in share] for share in shares] == [[32, 32, 26]] * 4
    for number, batch in enumerate(whole):
        for rank, share in enumerate(shares):
            (own,) = flatten_batches(iter([share[number][0]]))
            assert are_equal([own], [[tensor[rank::4] for tensor in batch]])


def get_error_line(loader: Any, epoch: int = 0) -> str:
    """Return the line of the error that an epoch raises."""
    try:  # pytest.raises would keep the traceback, and in it the workers, until the garbage is collected
        list(loader.epoch(epoch))
    except UserError as problem:
        (line,) = problem.lines
        return line
    pytest.fail("nothing was refused")


FAIL = """
class Failing(Noisy):
    def __getitem__(self, i):
        if i == 70:
            raise OSError("no disk\\nat all")
        return super().__getitem__(i)

def failing_samples(train):
    return Failing(train)

def failing(train):
    return DataLoader(Failing(train), batch_size=32)
"""


@pytest.mark.parametrize(
    ("name", "workers"), [("failing_samples", 0), ("failing_samples", 1), ("failing", 0)]
)
def test_a_failure_within_an_epoch_is_one_line_with_batch_and_epoch(here: Path, name: str, workers: int):
    (here / "data.py").write_text(OWN + FAIL)
    number = (OWN + FAIL).splitlines().index('            raise OSError("no disk\\nat all")') + 1
    line = get_error_line(make(name, workers))
    assert f"{name}': cannot get batch " in line
    assert line.endswith(f" of epoch 0 (line {number}: OSError: no disk)")


def test_a_loader_that_ends_early_is_refused_in_one_line():
    loader = make("stream")
    type(loader.data.loader).__len__ = lambda self: 5
    assert "the loader yielded 3 batches in epoch 0, but its len() is 5" in get_error_line(loader)


# Written down from torch 2.14.1; rows: image, top, left, flip.
PLAN_OF_SIX = [[0, 5, 2, 1, 3, 4], [2, 1, 0, 7, 2, 3], [1, 1, 4, 2, 1, 0], [1, 0, 1, 1, 1, 1]]


def augment_with_pil(image: torch.Tensor, top: int, left: int, flip: int, padding: int) -> torch.Tensor:
    """Crop, flip and convert an image with PIL and torchvision; float32 [3, H, W]."""
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    width, height = picture.size
    picture = functional.crop(functional.pad(picture, [padding]), top, left, height, width)
    if flip:
        picture = functional.horizontal_flip(picture)
    to_tensor = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
    return to_tensor(picture)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("height", "width", "padding"), [(32, 32, 4), (7, 12, 2), (1, 1, 3)])
def test_crop_flip_normalize_equal_the_pil_path_image_for_image(height, width, padding, channels_last):
    offsets = [(top, left) for top in range(2 * padding + 1) for left in range(2 * padding + 1)]
    choices = [(top, left, flip) for top, left in offsets for flip in (0, 1)]
    images = torch.randint(0, 256, (len(choices), 3, height, width), dtype=torch.uint8)
    top, left, flip = torch.tensor(choices).unbind(1)
    cropped = flip_batch(crop_batch(images, top, left, padding), flip)
    batch = normalize(cropped, *make_normalization(MEAN, STD), channels_last=channels_last)
    expected = [
        augment_with_pil(image, *choice, padding) for image, choice in zip(images, choices, strict=True)
    ]
    torch.testing.assert_close(batch, torch.stack(expected), rtol=0, atol=1e-6)
    assert batch.is_contiguous(
        memory_format=torch.channels_last if channels_last else torch.contiguous_format
    )


def test_each_image_comes_once_per_epoch_with_its_label_including_the_short_last_batch():
    data = ImageSplit(torch.randint(1, 256, (10, 3, 8, 8), dtype=torch.uint8), torch.arange(10))
    loader = DeviceLoader(data, batch_size=4, shuffle=True, device="cpu", mean=MEAN, std=STD)
    images, labels = map(torch.cat, zip(*loader.epoch(0), strict=True))
    assert sorted(labels.tolist()) == list(range(10)) != labels.tolist()
    expected = normalize(data.images[labels], *make_normalization(MEAN, STD))
    assert torch.equal(images, expected)


def test_a_plan_is_the_same_on_every_machine_and_differs_by_seed_and_epoch():
    assert draw_plan(6, 223, 0).tolist() == PLAN_OF_SIX
    for seed, epoch in [(223, 4), (224, 3), (-223, 3)]:
        assert all((draw_plan(50, 223, 3) != draw_plan(50, seed, epoch)).any(dim=1))
