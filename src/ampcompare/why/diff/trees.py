"""What modules take and give: tensors in nested tuples, lists and dicts, in one order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten


def tensors_of(tree: Any) -> list[Tensor]:
    """The tensors of a tree, in its order; of an object that is no tree its attributes' tensors."""
    found = []
    for leaf in tree_flatten(tree)[0]:
        if isinstance(leaf, Tensor):
            found.append(leaf)
        elif hasattr(leaf, "__dict__") and not isinstance(leaf, type | torch.nn.Module):
            found += [value for value in vars(leaf).values() if isinstance(value, Tensor)]
    return found


def is_number(tensor: Tensor) -> bool:
    """Whether it has values that are rounded: what errors are measured of."""
    return tensor.is_floating_point()


def floats_of(tree: Any) -> list[Tensor]:
    return [tensor for tensor in tensors_of(tree) if is_number(tensor)]


def breaks(found: Any, truth: Any) -> bool:
    """Whether one tree has values that are not finite where the other, of the same form, has finite ones: a
    mask of -inf is none. Waits for the device.
    """
    pairs = list(zip(floats_of(found), floats_of(truth), strict=False))
    if any(a.shape != b.shape for a, b in pairs):
        return any(not bool(a.isfinite().all()) for a, _ in pairs)
    return any(bool((~a.isfinite() & b.isfinite()).any()) for a, b in pairs)


def changed(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The tree with each of its tensors changed."""
    return tree_map(lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def refilled(tree: Any, values: Sequence[Tensor]) -> Any:
    """The tree with `values` in the place of its floating tensors. Raises ValueError for another number."""
    leaves, form = tree_flatten(tree)
    rest = list(values)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and is_number(leaf)]
    if len(places) != len(rest):
        raise ValueError(f"{len(rest)} tensors for {len(places)} places")
    for place, value in zip(places, rest, strict=True):
        leaves[place] = value
    return tree_unflatten(leaves, form)
