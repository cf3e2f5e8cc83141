"""A batch: inputs and targets, each a tensor or a dict of tensors. Whatever the data are, the first dimension
of every tensor counts the samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor

Field: TypeAlias = Tensor | Mapping[str, Tensor]
Batch: TypeAlias = tuple[Field, Field]


def tensors(field: Field) -> list[Tensor]:
    """The tensors of inputs or targets, those of a dict in its order."""
    return [field] if isinstance(field, Tensor) else list(field.values())


def each(field: Field, change: Callable[[Tensor], Tensor]) -> Field:
    """The same inputs or targets of changed tensors."""
    if isinstance(field, Tensor):
        return change(field)
    return {name: change(tensor) for name, tensor in field.items()}


def count_samples(field: Field) -> int:
    """The samples of inputs or targets: the first dimension of the (first) tensor."""
    tensor = field if isinstance(field, Tensor) else next(iter(field.values()))
    return tensor.shape[0]


def is_image(tensor: Tensor) -> bool:
    """Whether it is what channels_last is for: numbers [B, C, H, W], and no bytes."""
    return tensor.ndim == 4 and tensor.is_floating_point()


def in_layout(tensor: Tensor, channels_last: bool) -> Tensor:
    """The same tensor, images in channels_last where asked."""
    if channels_last and is_image(tensor):
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor
