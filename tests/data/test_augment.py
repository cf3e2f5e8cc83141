"""The batched augmentation against torchvision's on PIL images, image for image."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from ampcompare.data.augment import batch_crop, batch_flip, normalization, normalize

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


def random_images(count: int, height: int = 32, width: int = 32, channels: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randint(0, 256, (count, channels, height, width), generator=generator, dtype=torch.uint8)


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
    images = random_images(len(choices), height, width)
    top, left, flip = torch.tensor(choices).unbind(1)

    cropped = batch_flip(batch_crop(images, top, left, padding), flip)
    batch = normalize(cropped, *normalization(MEAN, STD), channels_last=channels_last)

    expected = torch.stack(
        [by_pil(image, *choice, padding) for image, choice in zip(images, choices, strict=True)]
    )
    assert batch.dtype == torch.float32
    torch.testing.assert_close(batch, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_crop_takes_each_image_at_its_own_offset(channels):
    images = random_images(81, 9, 8, channels)
    top, left = torch.cartesian_prod(torch.arange(9), torch.arange(9)).unbind(1)
    cropped = batch_crop(images, top, left, 4)
    padded = np.pad(images.numpy(), ((0, 0), (0, 0), (4, 4), (4, 4)))
    for i, (y, x) in enumerate(zip(top.tolist(), left.tolist(), strict=True)):
        np.testing.assert_array_equal(cropped[i].numpy(), padded[i, :, y : y + 9, x : x + 8])


def test_crop_at_the_padding_and_flip_of_none_leave_the_images_alone():
    images = random_images(5)
    middle = torch.full((5,), 4)
    assert torch.equal(batch_crop(images, middle, middle, 4), images)
    assert torch.equal(batch_flip(images, torch.zeros(5, dtype=torch.int64)), images)


def test_inputs_are_not_changed():
    images = random_images(4)
    before = images.clone()
    flip = torch.tensor([0, 1, 0, 1])
    normalize(batch_flip(batch_crop(images, flip, flip, 4), flip), *normalization(MEAN, STD))
    normalize(images, *normalization(MEAN, STD))
    assert torch.equal(images, before)


def test_channels_last_is_the_memory_format_and_not_other_values():
    images = random_images(3, 6, 5)
    plain = normalize(images, *normalization(MEAN, STD))
    last = normalize(images, *normalization(MEAN, STD), channels_last=True)
    assert plain.is_contiguous()
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(plain, last)
