"""What the training loop relies on in a batch, and how fast batches come."""

import random

import numpy as np
import pytest
import torch

from ampcompare.data.dataset import ImageSet, build_dataset
from ampcompare.data.loader import DeviceLoader, draw_plan

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
TRAINING = {"augment": True, "shuffle": True}
# Written down from torch 2.14.1; rows: image, top, left, flip.
PLAN_OF_SIX = [[0, 5, 2, 1, 3, 4], [2, 1, 0, 7, 2, 3], [1, 1, 4, 2, 1, 0], [1, 0, 1, 1, 1, 1]]


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


def test_each_image_comes_once_an_epoch_and_the_short_batch_is_kept():
    batches = list(loader(numbered(10), **TRAINING).epoch(0))
    assert [len(labels) for _, labels in batches] == [4, 4, 2]
    assert sorted(torch.cat([labels for _, labels in batches]).tolist()) == list(range(10))


@pytest.mark.parametrize(("count", "batch_size", "batches"), [(50_000, 128, 391), (8, 4, 2), (3, 4, 1)])
def test_length_counts_the_short_batch(count, batch_size, batches):
    data = ImageSet(torch.zeros(count, 3, 1, 1, dtype=torch.uint8), torch.zeros(count, dtype=torch.int64))
    assert len(loader(data, batch_size=batch_size)) == batches


def test_same_seed_and_epoch_give_the_same_batches():
    data = numbered(10)
    assert equal(loader(data, **TRAINING).epoch(3), loader(data, **TRAINING).epoch(3))


@pytest.mark.parametrize(("seed", "epoch"), [(223, 4), (224, 3), (-223, 3)])
def test_another_seed_or_epoch_gives_another_order_and_other_crops(seed, epoch):
    assert all((draw_plan(50, 223, 3) != draw_plan(50, seed, epoch)).any(dim=1))


def test_plan_is_the_same_on_every_machine_and_in_every_version():
    # So that a run resumed or repeated elsewhere sees the same images.
    assert draw_plan(6, 223, 0).tolist() == PLAN_OF_SIX


def test_starting_at_a_batch_equals_skipping_to_it(subtests: pytest.Subtests):
    for kind in [TRAINING, {}, {"shuffle": True}, {"augment": True}]:
        for start in [0, 1, 2, 3]:
            with subtests.test(kind=kind, start=start):
                batches = loader(numbered(10), **kind)
                assert equal(batches.epoch(5, start), list(batches.epoch(5))[start:])


@pytest.mark.parametrize("start", [-1, 4])
def test_starting_outside_the_epoch_is_an_error(start):
    with pytest.raises(ValueError, match="an epoch has 3 batches"):
        next(loader(numbered(10)).epoch(0, start))


def test_crops_and_flips_differ_within_a_batch():
    same = torch.arange(1, 65, dtype=torch.uint8).view(1, 1, 8, 8).expand(64, 3, 8, 8).contiguous()
    (images, _), *_ = loader(
        ImageSet(same, torch.zeros(64, dtype=torch.int64)), batch_size=64, augment=True
    ).epoch(0)
    assert len({image.numpy().tobytes() for image in images}) > 32


def test_crops_and_flips_are_drawn_evenly():
    _, top, left, flip = draw_plan(81_000, 223, 0)
    cells = torch.bincount(top * 9 + left, minlength=81)
    # A cell's count has standard deviation 31.4; five of them are passed once in two million draws.
    assert len(cells) == 81
    assert (cells - 1000).abs().max() < 160
    assert abs(flip.float().mean().item() - 0.5) < 5 * 0.5 / 81_000**0.5


def test_evaluation_gives_the_plain_images_in_order():
    data = numbered(10)
    images, labels = (torch.cat(parts) for parts in zip(*loader(data).epoch(0), strict=True))
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    assert torch.equal(labels, data.labels)
    torch.testing.assert_close(images, (data.images / 255 - mean) / std, rtol=0, atol=1e-6)


def test_shuffled_images_keep_their_labels():
    data = numbered(10)
    plain, _ = next(loader(data, batch_size=10).epoch(0))
    images, labels = next(loader(data, batch_size=10, shuffle=True).epoch(0))
    assert labels.tolist() != list(range(10))
    assert torch.equal(images, plain[labels])


def test_channels_last_batches_have_that_format_and_the_same_values():
    data = numbered(10)
    plain, last = (list(loader(data, **TRAINING, channels_last=flag).epoch(1)) for flag in (False, True))
    assert equal(plain, last)
    assert all(images.is_contiguous(memory_format=torch.channels_last) for images, _ in last)


def test_global_random_states_are_left_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    data = build_dataset("synthetic", None, 40, 20)
    list(loader(data.train, **TRAINING).epoch(0))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert (np.random.get_state()[1] == before[2]).all()


def test_batches_do_not_depend_on_the_global_random_state():
    data = numbered(10)
    torch.manual_seed(1)
    first = list(loader(data, **TRAINING).epoch(0))
    torch.manual_seed(2)
    assert equal(first, loader(data, **TRAINING).epoch(0))


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": 0},
        {"data": ImageSet(torch.zeros(2, 3, 4, 4), torch.zeros(2, dtype=torch.int64))},
        {"data": ImageSet(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(2))},
    ],
)
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(ValueError, match=r"batch_size=0|expected uint8"):
        loader(**{"data": numbered(2), **wrong})
