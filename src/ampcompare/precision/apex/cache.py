"""The fp16 copies of fp32 weights, so that a weight used twice is cast once and its gradient adds up in fp32.

A training uses the same weights step after step. So the first one that is asked for brings those that were
used last time with it, many in one launch, and their gradients come back as fp32 in one launch, too.
"""

from __future__ import annotations

import weakref

import torch
from torch import Tensor, nn

from ampcompare.precision.together import TOGETHER, CastTogether

Entry = tuple[Tensor, int, Tensor]  # the weight, its version then, the copy


class WeightCache:
    """fp16 copies of parameters, keyed by the parameter object, valid for its current version.

    The original kept copies until `scale_loss` exited and so served stale ones to a forward after an edit.
    Here the owner clears the cache whenever an outermost context opens or closes and after a step; between
    those, a changed `_version` (any in-place edit that autograd sees) makes a new copy.
    """

    def __init__(self) -> None:
        self._copies: dict[int, Entry] = {}
        self._ahead: dict[int, Entry] = {}  # made together with another one, not asked for yet
        self._used: dict[
            int, weakref.ref[Tensor]
        ] = {}  # what was asked for before the last clearing, in order

    def __len__(self) -> int:
        return len(self._copies)

    def half(self, weight: Tensor) -> Tensor:
        """The fp16 copy of an fp32 parameter, part of the graph where the graph needs it."""
        if torch.is_inference_mode_enabled() or weight.is_inference():
            return weight.to(torch.float16)  # an inference tensor has no version and may not enter a graph
        key = id(weight)
        entry = self._copies.get(key) or self._ahead.pop(key, None)
        if entry is None or not _is_valid(entry):
            if entry is None and self._was_used(weight):
                self._cast_ahead(weight)
                entry = self._ahead.pop(key, None)
            else:
                entry = None
            # It holds the weight, so that its id stays its own.
            entry = entry or (weight, weight._version, weight.to(torch.float16))
        self._copies[key] = entry
        return entry[2]

    def clear(self) -> None:
        self._ahead.clear()
        if self._copies:
            if self._copies.keys() != self._used.keys():
                self._used = {key: weakref.ref(weight) for key, (weight, _, _) in self._copies.items()}
            self._copies.clear()

    def _was_used(self, weight: Tensor) -> bool:
        return self._peek(id(weight)) is weight

    def _peek(self, key: int) -> Tensor | None:
        reference = self._used.get(key)
        return reference() if reference else None

    def _cast_ahead(self, first: Tensor) -> None:
        """Cast `first` and the weights that were used after it last time, where nobody can tell the
        difference.
        """
        if not _is_plain(first) or torch._C._are_functorch_transforms_active():
            return
        keys = list(self._used)
        group: list[Tensor] = []
        for key in keys[keys.index(id(first)) :]:
            weight = self._peek(key)
            if weight is None or key in self._copies or key in self._ahead:
                continue
            if _is_plain(weight) and _are_alike(weight, first):
                group.append(weight)
            if len(group) == TOGETHER:
                break
        if len(group) > 1:
            for weight, copy in zip(group, CastTogether.apply(torch.float16, *group), strict=True):
                self._ahead[id(weight)] = (weight, weight._version, copy)


def _is_valid(entry: Entry) -> bool:
    """Whether the weight is as it was, and the copy in the graph if the weight is.

    A copy made under no_grad or before requires_grad changed would cut the weight off from its gradient.
    """
    weight, version, copy = entry
    return version == weight._version and (
        not torch.is_grad_enabled() or copy.requires_grad == weight.requires_grad
    )


def _is_plain(weight: Tensor) -> bool:
    """Whether nobody can tell that its gradient came by with others: no subclass, no hook that would be
    called.
    """
    hooks = weight._backward_hooks or getattr(weight, "_post_accumulate_grad_hooks", None)
    return type(weight) is nn.Parameter and weight.is_leaf and weight.layout == torch.strided and not hooks


def _are_alike(one: Tensor, other: Tensor) -> bool:
    return (one.dtype, one.device, one.requires_grad, one.is_inference()) == (
        *(other.dtype, other.device, other.requires_grad),
        other.is_inference(),
    )
