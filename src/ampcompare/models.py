"""The networks: torchvision's ResNets with a CIFAR or an ImageNet stem, and a tiny one for quick looks and
tests.
"""

from __future__ import annotations

from torch import nn


def build_model(name: str, stem: str, num_classes: int) -> nn.Module:
    """An untrained network for float images [B, 3, H, W], giving logits [B, num_classes].

    The CIFAR stem is a 3x3 convolution with stride 1 and no max-pool, as in He et al. 2016 section 4.2;
    ResNet50 with it has 23.5 M parameters for 10 classes.
    """
    if name == "tiny":
        return tiny(num_classes)
    from torchvision.models import resnet18, resnet50

    model = {"resnet50": resnet50, "resnet18": resnet18}[name](num_classes=num_classes)
    if stem == "cifar":
        model.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
        # As torchvision does.
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
        model.maxpool = nn.Identity()
    return model


def tiny(num_classes: int) -> nn.Module:
    """Two convolutions with BatchNorm and a linear layer: 5 k parameters, for tests and quick looks."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, num_classes),
    )
