"""The networks: ours (`builtin.py`), and those from elsewhere (`external.py`)."""

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
    """An untrained network: one of ours for float images [B, 3, H, W], giving logits [B, num_classes], or one
    from elsewhere (`timm:NAME`, `torchvision:NAME`, `./net.py:build`), called with `kwargs`.

    `num_classes` is None where the data have no classes; `stem` (`ours.resnet`) and `zero_init_residual`
    (`ours.zero_residuals`) are those of ours. Raises UserError for a network that cannot be had or built.
    """
    if name not in BUILT_IN and name not in RESNETS:
        return build_external(name, num_classes, kwargs)
    if kwargs:
        why = f"model.name={name} takes no arguments"
        raise UserError(f"model.kwargs.{next(iter(kwargs))}: {why}; leave it out, or name another network")
    if num_classes is None:
        why = "gives logits of classes, and the data have none, or do not say how many"
        todo = "give the Dataset an attribute `classes` (their names) or `num_classes`"
        raise UserError(f"model.name={name!r}: {why}; {todo}, or name a network of your own, ./net.py:build")
    model = BUILT_IN[name](num_classes) if name in BUILT_IN else resnet(name, stem, num_classes)
    return zero_init_residuals(model) if zero_init_residual else model
