"""Batches of images made on the device: each its own crop and flip, a function of seed, epoch and place."""

import pytest
import torch
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from ampcompare.data.augment import batch_crop, batch_flip, normalization, normalize
from ampcompare.data.loader import DeviceLoader, draw_plan
from ampcompare.data.splits import ImageSet

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
TRAINING = {"augment": True, "shuffle": True}
# Written down from torch 2.14.1; rows: image, top, left, flip.
PLAN_OF_SIX = [[0, 5, 2, 1, 3, 4], [2, 1, 0, 7, 2, 3], [1, 1, 4, 2, 1, 0], [1, 0, 1, 1, 1, 1]]


def by_pil(image: torch.Tensor, top: int, left: int, flip: int, padding: int) -> torch.Tensor:
    """The same choices made the usual way; float32 [3, H, W]."""
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
    cropped = batch_flip(batch_crop(images, top, left, padding), flip)
    batch = normalize(cropped, *normalization(MEAN, STD), channels_last=channels_last)
    expected = [by_pil(image, *choice, padding) for image, choice in zip(images, choices, strict=True)]
    torch.testing.assert_close(batch, torch.stack(expected), rtol=0, atol=1e-6)
    assert batch.is_contiguous(
        memory_format=torch.channels_last if channels_last else torch.contiguous_format
    )


def numbered(count: int) -> ImageSet:
    """Images that are told apart by their label, which is their number."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(1, 256, (count, 3, 8, 8), generator=generator, dtype=torch.uint8)
    return ImageSet(images, torch.arange(count))


def loader(data: ImageSet, **changes) -> DeviceLoader:
    return DeviceLoader(
        data, **{"batch_size": 4, "device": "cpu", "mean": MEAN, "std": STD, "seed": 223, **changes}
    )


def equal(left, right) -> bool:
    left, right = list(left), list(right)
    return len(left) == len(right) and all(
        torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(left, right, strict=True)
    )


def test_each_image_comes_once_an_epoch_with_its_label_and_the_short_batch_is_kept():
    data = numbered(10)
    plain, _ = next(loader(data, batch_size=10).epoch(0))
    batches = list(loader(data, shuffle=True).epoch(0))
    assert [len(labels) for _, labels in batches] == [4, 4, 2]
    order = torch.cat([labels for _, labels in batches])
    assert sorted(order.tolist()) == list(range(10)) != order.tolist()
    assert torch.equal(torch.cat([images for images, _ in batches]), plain[order])
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    torch.testing.assert_close(plain, (data.images / 255 - mean) / std, rtol=0, atol=1e-6)


def test_a_plan_is_the_same_on_every_machine_and_another_with_each_seed_and_epoch():
    assert draw_plan(6, 223, 0).tolist() == PLAN_OF_SIX
    for seed, epoch in [(223, 4), (224, 3), (-223, 3)]:
        assert all((draw_plan(50, 223, 3) != draw_plan(50, seed, epoch)).any(dim=1))


def test_starting_at_a_batch_equals_skipping_to_it_whatever_the_global_generators_say(
    subtests: pytest.Subtests,
):
    for kind in [TRAINING, {}, {"shuffle": True}, TRAINING | {"channels_last": True}]:
        torch.manual_seed(1)
        whole = list(loader(numbered(10), **kind).epoch(5))
        for start in [0, 1, 2, 3]:
            with subtests.test(kind=kind, start=start):
                torch.manual_seed(start)
                assert equal(loader(numbered(10), **kind).epoch(5, start), whole[start:])
