"""Sources of data, and batches of them on the device: images as bytes, tensors, whatever a loader gives.

What is used from elsewhere can be had from here. It loads on use: the options and the report ask for
`data.sources` alone, which is free of torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "SOURCES": "sources",
    "Dataset": "dataset",
    "ImageSet": "splits",
    "build_dataset": "dataset",
    "DeviceLoader": "loader",
    "TensorLoader": "loader",
    "SampleLoader": "host",
    "BatchLoader": "host",
    "batch_crop": "augment",
    "batch_flip": "augment",
    "batch_in_one_pass": "augment",
    "normalization": "augment",
    "normalize": "augment",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
