"""What every source turns into: plain NumPy arrays with their class names and a name for their content."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

MOST_CLASSES = 100_000  # ImageNet's largest list has 21,843


@dataclass(frozen=True)
class Arrays:
    """images: uint8 [N, 3, H, W], one size for both splits; labels: int64 [N]; fingerprint: hex SHA-256."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    classes: tuple[str, ...]
    fingerprint: str

    @classmethod
    def of(
        cls,
        train: tuple[np.ndarray, np.ndarray],
        test: tuple[np.ndarray, np.ndarray],
        classes: tuple[str, ...] | None = None,
    ) -> Arrays:
        """Check the (images, labels) pairs, name their content; classes without names go by their numbers.

        Raises ValueError for what does not fit.
        """
        if classes is None:
            count = 1 + max((int(labels.max()) for _, labels in (train, test) if labels.size), default=-1)
            if count > MOST_CLASSES:
                raise ValueError(
                    f"label {count - 1}: expected the numbers of at most {MOST_CLASSES:,} classes"
                )
            classes = tuple(str(number) for number in range(count))
        digest = hashlib.sha256(repr((classes, train[0].shape, test[0].shape)).encode())
        for images, labels in (train, test):
            digest.update(np.ascontiguousarray(images).reshape(-1).data)
            digest.update(np.ascontiguousarray(labels).data)
        return cls(*train, *test, classes, digest.hexdigest()).checked()

    def checked(self) -> Arrays:
        """Return self. Raises ValueError if a dtype, a shape or a label is not what the fields promise."""
        if len(set(self.classes)) != len(self.classes) or not self.classes:
            raise ValueError("class names are missing or double")
        if self.train_images.shape[1:] != self.test_images.shape[1:]:
            raise ValueError("training and test images differ in size")
        train, test = (self.train_images, self.train_labels), (self.test_images, self.test_labels)
        for split, (images, labels) in {"train": train, "test": test}.items():
            if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1] != 3 or images.size == 0:
                what = f"{split} images are {images.dtype} {images.shape}"
                raise ValueError(f"{what}, expected uint8 [N, 3, H, W]")
            if labels.dtype != np.int64 or labels.shape != images.shape[:1]:
                raise ValueError(f"{split} labels are {labels.dtype} {labels.shape}, expected int64 [N]")
            if labels.min() < 0 or labels.max() >= len(self.classes):
                raise ValueError(f"a {split} label is outside 0..{len(self.classes) - 1}")
        return self
