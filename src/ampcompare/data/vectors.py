"""The random vectors of PyTorch's AMP recipe: `data.source=ampcompare.data.vectors:build`."""

import torch
from torch import Tensor

TEST_COUNT = 64  # a run needs a test split, although there is nothing to learn


def build(train: bool, width: int = 4096, count: int = 25_600) -> tuple[Tensor, Tensor]:
    """Return inputs and targets, float32 [count, width], normally distributed and the same in every run."""
    generator = torch.Generator().manual_seed(int(train))
    shape = (count if train else TEST_COUNT, width)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)
