"""The made-up data: always the same, balanced from the start, and something to learn."""

import hashlib

import numpy as np
import pytest
import torch
from torch import nn

from ampcompare.data.dataset import build_dataset
from ampcompare.data.loader import DeviceLoader
from ampcompare.data.sources import synthetic
from ampcompare.errors import UserError

# Written down from NumPy 2.4.6 on x86-64.
DIGEST_OF_100 = "d8e2a5e431c43ebb"


def test_it_is_the_same_bytes_everywhere():
    images, _ = synthetic.make_images("train", 100)
    assert hashlib.sha256(images.tobytes()).hexdigest()[:16] == DIGEST_OF_100


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("count", [1, 999, 1000, 1001])
def test_a_smaller_set_is_the_beginning_of_a_larger_one(split, count):
    images, labels = synthetic.make_images(split, 2100)
    fewer, their_labels = synthetic.make_images(split, count)
    assert np.array_equal(fewer, images[:count])
    assert np.array_equal(their_labels, labels[:count])


def test_images_differ_within_and_between_blocks_splits_and_seeds():
    sets = [synthetic.make_images("train", 1500)[0], synthetic.make_images("test", 500)[0]]
    sets.append(synthetic.make_images("train", 500, seed=11)[0])
    every = [image.tobytes() for images in sets for image in images]
    assert len(set(every)) == len(every)


def test_default_sizes_and_limits():
    dataset = build_dataset("synthetic")
    assert (len(dataset.train), len(dataset.test)) == (50_000, 10_000)
    assert dataset.train.images.shape[1:] == (3, 32, 32)
    assert torch.bincount(dataset.train.labels).tolist() == [5000] * 10
    limited = build_dataset("synthetic", None, 37, 20)
    assert torch.equal(limited.train.images, dataset.train.images[:37])
    assert torch.equal(limited.test.images, dataset.test.images[:20])
    assert len(dataset.classes) == len(set(dataset.classes)) == 10


def test_a_small_network_learns_it_in_forty_steps_but_not_perfectly(one_thread):
    dataset = build_dataset("synthetic", None, 2000, 500)
    preparation = {"device": "cpu", "mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
    torch.manual_seed(0)
    sizes = ((3, 16), (16, 32), (32, 64))
    layers = [part for i, o in sizes for part in (nn.Conv2d(i, o, 3, 2, 1), nn.BatchNorm2d(o), nn.ReLU())]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = DeviceLoader(dataset.train, batch_size=32, augment=True, shuffle=True, **preparation)
    for _, (images, labels) in zip(range(40), training.epoch(0), strict=False):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    model.eval()
    (images, labels), *_ = DeviceLoader(dataset.test, batch_size=500, **preparation).epoch(0)
    accuracy = (model(images).argmax(1) == labels).float().mean().item()
    assert 0.5 < accuracy < 0.98


@pytest.mark.parametrize("size", [8, 48, 224])
def test_of_another_size_each_image_is_repeated_and_cut(size):
    small = build_dataset("synthetic", None, 20, 10)
    found = build_dataset("synthetic", None, 20, 10, kwargs={"size": size})
    place = torch.arange(size) % 32
    assert torch.equal(found.train.images, small.train.images[:, :, place][..., place])
    assert torch.equal(found.test.labels, small.test.labels)
    assert found.fingerprint != small.fingerprint


@pytest.mark.parametrize("size", [7, 1025, 2**70, 0, -1, 32.0, "224", True, None, [224]])
def test_a_size_that_is_none_is_one_line(size):
    with pytest.raises(UserError, match=r"^data\.kwargs\.size=.*: expected a whole number, 8 to 1024$"):
        build_dataset("synthetic", None, 20, 10, kwargs={"size": size})


def test_an_argument_that_it_does_not_take_is_one_line():
    with pytest.raises(UserError, match=r"^data\.kwargs\.width: data\.source=synthetic takes size; leave"):
        build_dataset("synthetic", None, 20, 10, kwargs={"width": 224})
