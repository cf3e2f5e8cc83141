"""The networks: torchvision's ResNets with a CIFAR or an ImageNet stem, a tiny one, and those of others."""

from __future__ import annotations

from torch import nn

from ampcompare import plugins

RESNETS = ("resnet50", "resnet18")


def build_model(name: str, stem: str, num_classes: int) -> nn.Module:
    """An untrained network for float images [B, 3, H, W], giving logits [B, num_classes].

    The CIFAR stem is a 3x3 convolution with stride 1 and no max-pool, as in He et al. 2016 section 4.2;
    ResNet50 with it has 23.5 M parameters for 10 classes. A function from elsewhere (`./net.py:build`) is
    called with `num_classes` alone. Raises UserError for one that cannot be had or gives no network.
    """
    if name == "tiny":
        return tiny(num_classes)
    if name not in RESNETS:
        return _built(name, num_classes)
    from torchvision import models

    model = getattr(models, name)(num_classes=num_classes)
    if stem == "cifar":
        model.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
        # as torchvision does
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
        model.maxpool = nn.Identity()
    return model


def source_of(name: str) -> dict[str, str]:
    """What a record says of a network from elsewhere: the hash of its file. Nothing of a built-in one."""
    if name == "tiny" or name in RESNETS:
        return {}
    return {"model_source": plugins.load(plugins.MODELS, name).source}


def _built(name: str, num_classes: int) -> nn.Module:
    found = plugins.load(plugins.MODELS, name)
    with plugins.blame(plugins.MODELS, name, f"no network for num_classes={num_classes}", found.file):
        model = found.value(num_classes=num_classes)
    if not isinstance(model, nn.Module):
        raise plugins.MODELS.refusal(name, f"returned a {type(model).__name__}; expected a torch.nn.Module")
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
