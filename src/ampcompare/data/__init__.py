"""Images as uint8 tensors, and batches of them drawn, augmented and normalised on the device."""

from ampcompare.data.augment import batch_crop, batch_flip, batch_in_one_pass, normalization, normalize
from ampcompare.data.dataset import SOURCES, Dataset, ImageSet, build_dataset
from ampcompare.data.loader import DeviceLoader

__all__ = [
    "SOURCES",
    "Dataset",
    "DeviceLoader",
    "ImageSet",
    "batch_crop",
    "batch_flip",
    "batch_in_one_pass",
    "build_dataset",
    "normalization",
    "normalize",
]
