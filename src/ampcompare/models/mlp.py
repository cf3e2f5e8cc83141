"""The network of PyTorch's AMP recipe: `model.name=ampcompare.models.mlp:build`."""

from torch import nn


def build(width: int = 4096, layers: int = 3) -> nn.Sequential:
    """Return linear layers with `width` inputs and outputs and ReLU between them.

    Input and output are float [B, width].
    """
    hidden: list[nn.Module] = []
    for _ in range(layers - 1):
        hidden += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(width, width))
