"""The built-in networks: torchvision's ResNets with a stem for CIFAR or ImageNet, ResNet20, a tiny one."""

from collections import OrderedDict
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

RESNETS = ("resnet50", "resnet18", "resnet152")


def resnet(name: str, stem: str, num_classes: int) -> nn.Module:
    """Return torchvision's ResNet with its own stem (`imagenet`) or one for small images (`cifar`).

    The CIFAR stem is a 3x3 convolution with stride 1 and no max-pool, as in He et al. 2016, section 4.2. With
    it, ResNet50 has 23.5 M parameters for 10 classes.
    """
    from torchvision import models

    model = getattr(models, name)(num_classes=num_classes)
    if stem == "cifar":
        model.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
        # as torchvision does
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
        model.maxpool = nn.Identity()
    return model


def zero_init_residuals(model: nn.Module) -> nn.Module:
    """Set the last BatchNorm weight of each residual branch to 0, in place, and return the ResNet.

    Every block then begins as the identity, so the signal keeps its magnitude through 50 layers, and
    BatchNorm's running statistics are usable from the first steps (Goyal et al. 2017, section 5.1). No random
    numbers are drawn, so all other weights stay the same.
    """
    for block in model.modules():
        last = getattr(block, "bn3", None) or getattr(block, "bn2", None)
        if isinstance(last, nn.BatchNorm2d):
            nn.init.zeros_(last.weight)
    return model


def tiny(num_classes: int) -> nn.Module:
    """Return a network of two convolutions and a linear layer with 5 k parameters, for quick trials."""
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


class _Block(nn.Module):
    """Two 3x3 convolutions and a shortcut without weights.

    The shortcut takes every `stride`-th pixel; additional channels are zero.
    """

    def __init__(self, channels: int, wider: int) -> None:
        super().__init__()
        self.new = wider - channels  # channels that the block adds
        self.stride = 2 if self.new else 1
        self.conv1 = nn.Conv2d(channels, wider, 3, stride=self.stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(wider)
        self.conv2 = nn.Conv2d(wider, wider, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(wider)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.new:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new))
        return F.relu(x + y)


def resnet20(num_classes: int) -> nn.Module:
    """Return ResNet20 with width 16 for 32x32 images (He et al. 2016, section 4.2, shortcuts A).

    It has 0.27 M parameters.
    """
    stages = {
        f"layer{number}": nn.Sequential(_Block(before, width), _Block(width, width), _Block(width, width))
        for number, (before, width) in enumerate(pairwise((16, 16, 32, 64)), 1)
    }
    net = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(3, 16, 3, padding=1, bias=False),
            bn1=nn.BatchNorm2d(16),
            relu=nn.ReLU(),
            **stages,
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            fc=nn.Linear(64, num_classes),
        )
    )
    for module in net.modules():
        if isinstance(module, nn.Conv2d):  # as He et al. 2015 and torchvision do
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net


BUILT_IN = {"tiny": tiny, "resnet20": resnet20}
