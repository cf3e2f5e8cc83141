"""Limits, fingerprints and wrong arguments, whatever the source; and the real images where they are."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ampcompare.data.dataset import balanced_subset, build_dataset
from ampcompare.data.sources import image_folder
from ampcompare.errors import UserError

CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"source": "cifar11"},
            "data.source='cifar11': expected one of cifar10, cifar100, image_folder, synthetic, "
            "pkg.mod:Name, ./file.py:Name",
        ),
        (
            {"source": "synthetic", "train_limit": 50_001},
            "data.train_limit=50001: synthetic has 50000 train images; give at most 50000, or null for all",
        ),
        (
            {"source": "synthetic", "test_limit": 10_001},
            "data.test_limit=10001: synthetic has 10000 test images; give at most 10000, or null for all",
        ),
        (
            {"source": "synthetic", "train_limit": 0},
            "data.train_limit=0: must be at least 1, or null for all images",
        ),
        (
            {"source": "synthetic", "test_limit": -5},
            "data.test_limit=-5: must be at least 1, or null for all images",
        ),
    ],
)
def test_wrong_arguments_are_named_with_what_is_allowed(arguments, message):
    with pytest.raises(UserError) as error:
        build_dataset(**arguments)
    assert str(error.value) == message


def test_a_limit_beyond_the_data_says_how_many_there_are(folder):
    with pytest.raises(UserError, match=r"data\.test_limit=5: image_folder has 4 test images"):
        build_dataset("image_folder", str(folder), test_limit=5)


def test_a_subset_is_balanced_and_not_the_first_of_each_class():
    labels = np.repeat(np.arange(10), 500)
    chosen = balanced_subset(labels, 100)
    assert np.bincount(labels[chosen]).tolist() == [10] * 10
    assert sorted(chosen % 500)[-1] > 400
    assert len(set(chosen)) == 100


def test_a_smaller_subset_is_the_beginning_of_a_larger_one():
    labels = np.repeat(np.arange(10), 500)
    larger = balanced_subset(labels, 1234)
    for limit in (1, 9, 10, 777):
        assert np.array_equal(balanced_subset(labels, limit), larger[:limit])


def test_a_subset_of_uneven_classes_takes_what_there_is():
    labels = np.array([0] * 2 + [1] * 50 + [2] * 50)
    assert np.bincount(labels[balanced_subset(labels, 42)]).tolist() == [2, 20, 20]


def test_fingerprint_names_what_is_trained_on():
    whole = build_dataset("synthetic", None, 30, 20)
    assert build_dataset("synthetic", None, 30, 20).fingerprint == whole.fingerprint
    assert build_dataset("synthetic", None, 20, 20).fingerprint != whole.fingerprint


def test_fingerprint_of_a_subset_is_not_that_of_the_whole(folder):
    whole = build_dataset("image_folder", str(folder)).fingerprint
    assert build_dataset("image_folder", str(folder), train_limit=6).fingerprint == whole
    assert build_dataset("image_folder", str(folder), train_limit=4).fingerprint != whole


@pytest.mark.slow
def test_real_images_are_all_there_with_their_labels(real):
    dataset = real.dataset
    assert dataset.classes == CIFAR_CLASSES
    assert dataset.train.images.shape == (50_000, 3, 32, 32)
    assert dataset.test.images.shape == (10_000, 3, 32, 32)
    assert torch.bincount(dataset.train.labels).tolist() == [5000] * 10
    assert torch.bincount(dataset.test.labels).tolist() == [1000] * 10


@pytest.mark.slow
def test_real_images_lie_sorted_and_equal_what_pillow_decodes(real, real_archive):
    with tarfile.open(real_archive) as archive:
        for member, _ in zip((m for m in archive if m.isfile()), range(400), strict=False):
            split, name, file = Path(member.name).parts
            images = getattr(real.dataset, split)
            per_class = len(images) // 10
            place = CIFAR_CLASSES.index(name) * per_class + int(Path(file).stem)
            expected = np.asarray(Image.open(io.BytesIO(archive.extractfile(member).read())))
            assert images.labels[place] == CIFAR_CLASSES.index(name)
            np.testing.assert_array_equal(images.images[place].permute(1, 2, 0).numpy(), expected)


@pytest.mark.slow
def test_first_load_of_the_real_images_is_lean(real):
    assert real.first_peak_mib < 1024


@pytest.mark.slow
def test_second_load_of_the_real_images_decodes_none(real, real_archive, monkeypatch):
    monkeypatch.setenv("AMPCOMPARE_CACHE", str(real.cache))
    monkeypatch.setattr(image_folder, "_read", lambda *_: pytest.fail("the cache was not used"))
    again = build_dataset("image_folder", str(real_archive), 1000, 500)
    assert torch.bincount(again.train.labels).tolist() == [100] * 10
    assert torch.bincount(again.test.labels).tolist() == [50] * 10
