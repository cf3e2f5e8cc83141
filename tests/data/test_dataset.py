"""Limits, fingerprints and the made-up images; wrong arguments in one line."""

import hashlib

import numpy as np
import pytest
from support.refusals import line_of

from ampcompare.data.factory import build_dataset, draw_balanced_subset
from ampcompare.data.sources import synthetic


@pytest.mark.parametrize(
    ("limits", "size", "message"),
    [
        ((50_001, 10), 32, "data.train_limit=50001: synthetic has 50000 train images; set at most 50000,"),
        ((20, 10_001), 32, "data.test_limit=10001: synthetic has 10000 test images; set at most 10000,"),
        ((20, 10), 7, "data.kwargs.size=7: expected a whole number, 8 to 1024"),
        ((20, 10), True, "data.kwargs.size=True: expected a whole number, 8 to 1024"),
    ],
)
def test_wrong_arguments_are_refused_with_the_allowed_values(limits, size, message):
    assert line_of(build_dataset, "synthetic", None, *limits, kwargs={"size": size}).startswith(message)


def test_a_subset_is_random_and_balanced_and_part_of_every_larger_subset():
    labels = np.repeat(np.arange(10), 500)
    larger = draw_balanced_subset(labels, 1234)
    for limit in (1, 9, 100, 777):
        chosen = draw_balanced_subset(labels, limit)
        assert np.array_equal(chosen, larger[:limit])
        assert len(set(chosen)) == limit
    assert np.bincount(labels[larger[:100]]).tolist() == [10] * 10
    assert sorted(larger[:100] % 500)[-1] > 400
    uneven = np.array([0] * 2 + [1] * 50 + [2] * 50)
    assert np.bincount(uneven[draw_balanced_subset(uneven, 42)]).tolist() == [2, 20, 20]


def test_the_fingerprint_identifies_the_content_of_the_data():
    whole = build_dataset("synthetic", None, 30, 20)
    assert build_dataset("synthetic", None, 30, 20).fingerprint == whole.fingerprint
    assert build_dataset("synthetic", None, 20, 20).fingerprint != whole.fingerprint
    test = whole.test.fingerprint(whole.classes)
    whole.test.labels[3] += 1
    assert whole.test.fingerprint(whole.classes) != test


def test_synthetic_images_are_the_same_bytes_everywhere():
    images, _ = synthetic.make_images("train", 100)
    # Written down from NumPy 2.4.6 on x86-64.
    assert hashlib.sha256(images.tobytes()).hexdigest()[:16] == "d8e2a5e431c43ebb"
