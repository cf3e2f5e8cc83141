"""Networks: the built-in ones (`builtin.py`), and those of libraries and users (`external.py`)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from torch import nn

from ampcompare.errors import UserError
from ampcompare.models.builtin import BUILT_IN, RESNETS, resnet, resnet20, tiny, zero_init_residuals
from ampcompare.models.external import build_external, describe_source

__all__ = ["BUILT_IN", "RESNETS", "build_model", "describe_source", "resnet20", "tiny"]


def build_model(
    name: str,
    stem: str,
    num_classes: int | None,
    *,
    zero_init_residual: bool = False,
    kwargs: Mapping[str, Any] = MappingProxyType({}),
) -> nn.Module:
    """Return an untrained network.

    Args:
        name: A built-in network, `timm:NAME`, `torchvision:NAME`, or a plug-in such as `./net.py:build`.
        stem: "cifar" or "imagenet", for a built-in ResNet (see `builtin.resnet`).
        num_classes: The number of classes, None if the data have none.
        zero_init_residual: Whether the residual branches of a built-in ResNet begin at 0.
        kwargs: Arguments for a network that is not built in.

    Returns:
        The network. A built-in one takes images, float [B, 3, H, W], and returns logits [B, num_classes].

    Raises:
        UserError: The network does not exist or cannot be built.
    """
    if name not in BUILT_IN and name not in RESNETS:
        return build_external(name, num_classes, kwargs)
    if kwargs:
        raise UserError(
            f"model.kwargs.{next(iter(kwargs))}: model.name={name} takes no arguments; "
            "leave it out, or name another network"
        )
    if num_classes is None:
        raise UserError(
            f"model.name={name!r}: needs the number of classes, which the data do not give; "
            "add an attribute `classes` (their names) or `num_classes` to the Dataset, "
            "or use your own network, such as model.name=./net.py:build"
        )
    model = BUILT_IN[name](num_classes) if name in BUILT_IN else resnet(name, stem, num_classes)
    return zero_init_residuals(model) if zero_init_residual else model
