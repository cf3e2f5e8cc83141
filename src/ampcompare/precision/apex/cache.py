"""The half copies of fp32 weights, so that a weight used twice is cast once and its gradient adds up in fp32.

A training uses the same weights step after step. So the first one that is asked for brings those that were
used last time with it, many in one launch, and their gradients come back as fp32 in one launch, too.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ampcompare.precision.together import TOGETHER, CastFlat, CastTogether, copy_flat

Entry = tuple[Tensor, int, Tensor]  # the weight, its version then, the copy


class WeightCache:
    """Half copies of parameters, keyed by the parameter object, valid for its current version and one type.

    The original kept copies until `scale_loss` exited and so served stale ones to a forward after an edit.
    Here the owner clears the cache whenever an outermost context opens or closes and after a step; between
    those, a changed `_version` (any in-place edit that autograd sees) makes a new copy.
    """

    def __init__(self) -> None:
        self._copies: dict[int, Entry] = {}
        self._ahead: dict[int, Entry] = {}  # made together with another one, not asked for yet
        self._flat: dict[tuple[int, ...], list[Entry]] = {}  # those of recurrent networks, each in one piece
        # What was asked for before the last clearing, in order.
        self._used: dict[int, weakref.ref[Tensor]] = {}

    def __len__(self) -> int:
        return len(self._copies) + sum(map(len, self._flat.values()))

    def half(self, weight: Tensor, dtype: torch.dtype = torch.float16) -> Tensor:
        """The copy of an fp32 parameter in half precision, part of the graph where the graph needs it."""
        if torch.is_inference_mode_enabled() or weight.is_inference():
            return weight.to(dtype)  # an inference tensor has no version and may not enter a graph
        key = id(weight)
        entry = self._copies.get(key) or self._ahead.pop(key, None)
        if entry is None and self._peek(key) is weight:
            self._cast_ahead(weight, dtype)
            entry = self._ahead.pop(key, None)
        if entry is None or entry[2].dtype is not dtype or not _is_valid(entry):
            # It holds the weight, so that its id stays its own.
            entry = (weight, weight._version, weight.to(dtype))
        self._copies[key] = entry
        return entry[2]

    def flat(self, weights: Sequence[Tensor], dtype: torch.dtype = torch.float16) -> list[Tensor] | None:
        """The copies of a recurrent network's weights: one buffer, in which they lie as the weights do.

        So cuDNN takes the buffer as it is, if the network keeps its fp32 weights flat, as it does on a GPU.
        None where weights are to be cast one by one: tensor subclasses, mixed types, `torch.func`.
        """
        kinds = {(type(w), w.dtype, w.device, w.layout) for w in weights}
        is_plain = len(kinds) == 1 and type(weights[0]) in (Tensor, nn.Parameter)
        if not is_plain or weights[0].layout != torch.strided or torch._C._are_functorch_transforms_active():
            return None
        if torch.is_inference_mode_enabled() or any(w.is_inference() for w in weights):
            return copy_flat(weights, dtype)
        if type(weights[0]) is Tensor or weights[0].dtype is not torch.float32:
            return list(CastFlat.apply(dtype, *weights))
        key = tuple(map(id, weights))
        entries = self._flat.get(key)
        if not entries or entries[0][2].dtype is not dtype or not all(map(_is_valid, entries)):
            copies = CastFlat.apply(dtype, *weights)
            versions = [w._version for w in weights]
            entries = self._flat[key] = list(zip(weights, versions, copies, strict=True))
        return [copy for _, _, copy in entries]

    def clear(self) -> None:
        self._flat.clear()
        self._ahead.clear()
        if self._copies:
            if self._copies.keys() != self._used.keys():
                self._used = {key: weakref.ref(weight) for key, (weight, _, _) in self._copies.items()}
            self._copies.clear()

    def _peek(self, key: int) -> Tensor | None:
        reference = self._used.get(key)
        return reference() if reference else None

    def _cast_ahead(self, first: Tensor, dtype: torch.dtype) -> None:
        """Cast `first` and the weights used after it last time, where nobody can tell the difference."""
        if not _is_plain(first) or torch._C._are_functorch_transforms_active():
            return
        keys = list(self._used)
        group: list[Tensor] = []
        for key in keys[keys.index(id(first)) :]:
            weight = self._peek(key)
            if weight is None or key in self._copies or key in self._ahead:
                continue
            if _is_plain(weight) and _kind(weight) == _kind(first):
                group.append(weight)
            if len(group) == TOGETHER:
                break
        if len(group) > 1:
            for weight, copy in zip(group, CastTogether.apply(dtype, *group), strict=True):
                self._ahead[id(weight)] = (weight, weight._version, copy)


def _is_valid(entry: Entry) -> bool:
    """Whether the weight is as it was, and the copy in the graph if the weight is.

    A copy made under no_grad or before requires_grad changed would cut the weight off from its gradient.
    """
    weight, version, copy = entry
    is_in_graph = copy.requires_grad == weight.requires_grad or not torch.is_grad_enabled()
    return version == weight._version and is_in_graph


def _is_plain(weight: Tensor) -> bool:
    """Whether nobody can tell that its gradient came by with others: no subclass, no hook to be called."""
    hooks = weight._backward_hooks or getattr(weight, "_post_accumulate_grad_hooks", None)
    return type(weight) is nn.Parameter and weight.is_leaf and weight.layout == torch.strided and not hooks


def _kind(weight: Tensor) -> tuple[torch.dtype, torch.device, bool, bool]:
    return weight.dtype, weight.device, weight.requires_grad, weight.is_inference()
