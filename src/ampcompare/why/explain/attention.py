"""Attention on a GPU that is not there: which of its kernels PyTorch would take is its driver's to say, and
without one PyTorch takes none, but falls back to products and a softmax in fp32.

Here the choice is the usual one (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp): the flash kernel for
half types without a mask and heads of up to 256, else the memory-efficient one. A GPU must still confirm it:
cuDNN's, which newer cards prefer, moves and computes as much.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)
WIDEST_HEAD = 256  # of the flash kernel
_plain = F.scaled_dot_product_attention


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """`torch.nn.functional.scaled_dot_product_attention` by one kernel."""
    if torch.is_autocast_enabled("cuda"):  # which has it on the list of what runs in the low type
        low = torch.get_autocast_dtype("cuda")
        query, key, value = (x.to(low) for x in (query, key, value))
        if attn_mask is not None and attn_mask.is_floating_point():
            attn_mask = attn_mask.to(low)
    if enable_gqa or any(x.ndim != 4 for x in (query, key, value)):
        more: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
        return _plain(query, key, value, attn_mask, dropout_p, is_causal, **more)
    how: dict[str, Any] = {"scale": scale}
    if attn_mask is None and query.dtype in HALF and query.shape[-1] <= WIDEST_HEAD:
        aten = torch.ops.aten._scaled_dot_product_flash_attention.default
        return aten(query, key, value, dropout_p, is_causal, False, **how)[0]
    bias = _bias(attn_mask, query, key)
    aten = torch.ops.aten._scaled_dot_product_efficient_attention.default
    return aten(query, key, value, bias, query.requires_grad, dropout_p, is_causal, **how)[0]


def _bias(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """What is added to the scores [B, heads, queries, keys]: of truth values 0 or minus infinity."""
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    return mask.expand(*query.shape[:-1], key.shape[-2])
