"""How an op was called, kept without its tensors, so that it can be called again with others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map


@dataclass(frozen=True)
class Tensors:
    """A tensor among an op's arguments, by what its time depends on."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Call:
    """How an op was called, without the tensors: enough to call it again with others."""

    func: Any
    args: Any
    kwargs: Any


def described(func: Any, args: Any, kwargs: Any) -> Call:
    """The call, a description in the place of each tensor."""

    def bare(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return Tensors(tuple(value.shape), value.stride(), value.dtype)

    return Call(func, tree_map(bare, args), tree_map(bare, kwargs))
