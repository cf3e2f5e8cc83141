"""The fp16 copies of fp32 weights, so that a weight used twice is cast once and its gradient adds up in fp32."""

from __future__ import annotations

import torch
from torch import Tensor


class WeightCache:
    """fp16 copies of parameters, keyed by the parameter object, valid for its current version.

    The original kept copies until `scale_loss` exited and so served stale ones to a forward after an edit. Here the
    owner clears the cache whenever an outermost context opens or closes and after a step; between those,
    a changed `_version` (any in-place edit that autograd sees) makes a new copy.
    """

    def __init__(self) -> None:
        self._copies: dict[int, tuple[Tensor, int, Tensor]] = {}

    def __len__(self) -> int:
        return len(self._copies)

    def half(self, weight: Tensor) -> Tensor:
        """The fp16 copy of an fp32 parameter, part of the graph where the graph needs it."""
        if torch.is_inference_mode_enabled() or weight.is_inference():
            return weight.to(torch.float16)  # an inference tensor has no version and may not enter a graph
        entry = self._copies.get(id(weight))
        if entry is not None:
            _, version, copy = entry
            # A copy made under no_grad or before requires_grad changed would cut the weight off from its gradient.
            linked = not torch.is_grad_enabled() or copy.requires_grad == weight.requires_grad
            if version == weight._version and linked:
                return copy
        copy = weight.to(torch.float16)
        self._copies[id(weight)] = (weight, weight._version, copy)  # holds the weight, so that its id stays its own
        return copy

    def clear(self) -> None:
        self._copies.clear()
