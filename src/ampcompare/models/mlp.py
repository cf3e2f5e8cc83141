"""The network of PyTorch's AMP recipe: `model.name=ampcompare.models.mlp:build`."""

from torch import nn


def build(width: int = 4096, layers: int = 3) -> nn.Sequential:
    """Linear layers of `width` inputs and outputs with ReLU between them: float [B, width] in and out."""
    made: list[nn.Module] = []
    for _ in range(layers - 1):
        made += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*made, nn.Linear(width, width))
