"""Attention under O1, where PyTorch runs in one function what apex saw in parts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ampcompare.precision.o1.rules import Function, half, to_half
from ampcompare.precision.o1.weights import STATE

# Where `MultiheadAttention.forward` takes them, itself first.
MASKS = {"key_padding_mask": 4, "attn_mask": 6}


def attention(function: Function) -> Function:
    """Run scaled dot product attention in half: its products are on the half list, its softmax is in fp32.

    apex added an fp32 mask to the products in fp32, so that a large negative number was no infinity, of
    which a row full makes NaN: here it becomes the largest that half has.
    """
    halved = half(function)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if STATE.on:
            if len(args) > 3:
                args = (*args[:3], _mask(args[3]), *args[4:])
            elif "attn_mask" in kwargs:
                kwargs = {**kwargs, "attn_mask": _mask(kwargs["attn_mask"])}
        return halved(*args, **kwargs)

    return wrapper


def _mask(mask: Any) -> Any:
    """A floating mask in half, finite where it was finite."""
    if not isinstance(mask, Tensor) or to_half(mask) is mask:
        return mask
    return to_half(_within(mask, 1))


def _within(mask: Tensor, share: float) -> Tensor:
    """The mask with its finite numbers within that share of half's range."""
    limits = torch.finfo(STATE.half)
    return torch.where(mask.isinf(), mask, mask.clamp(share * limits.min, share * limits.max))


def _far(mask: Any) -> Any:
    return mask if not isinstance(mask, Tensor) or to_half(mask) is mask else _within(mask, 0.25)


def masks(function: Function) -> Function:
    """Keep the masks of attention in parts, with `need_weights`, finite where they were: there `baddbmm`, on
    the half list, adds them to the products. Two of them are added up first, hence a quarter.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if STATE.on:
            args = tuple(_far(x) if place in MASKS.values() else x for place, x in enumerate(args))
            kwargs = {name: _far(x) if name in MASKS else x for name, x in kwargs.items()}
        return function(*args, **kwargs)

    return wrapper


def slow(function: Function) -> Function:
    """Whether attention may be evaluated by one fused function: not under the casts, which it does not know.

    PyTorch decides likewise under autocast.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return False if STATE.on else function(*args, **kwargs)

    return wrapper


RULES: dict[str, Callable[[Function], Function]] = {"attention": attention, "masks": masks, "slow": slow}
