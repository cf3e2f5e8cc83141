"""The data of PyTorch's AMP recipe, rows of random numbers: `data.source=ampcompare.data.vectors:build`."""

import torch
from torch import Tensor

TEST_COUNT = 64  # nothing is learned that a test could tell; a run ends with an evaluation all the same


def build(train: bool, width: int = 4096, count: int = 25_600) -> tuple[Tensor, Tensor]:
    """Inputs and targets, float32 [count, width] each, normally distributed and the same in every run."""
    generator = torch.Generator().manual_seed(int(train))
    shape = (count if train else TEST_COUNT, width)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)
