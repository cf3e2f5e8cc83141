"""A batch: inputs and targets, each a tensor or a dict of tensors. Whatever the data are, the first dimension
of every tensor counts the samples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ampcompare.errors import kind_of

Field: TypeAlias = Tensor | Mapping[str, Tensor]
Batch: TypeAlias = tuple[Field, Field]

EXPECTED = "expected (inputs, targets), each a tensor or a dict of tensors"
HASHED_BYTES = 2**28  # of one tensor; of larger ones rows evenly spaced: SHA-256 takes 0.2 s for so much


class Unfit(ValueError):
    """Data that cannot be trained on; the message is the rest of a line that names their source."""


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
    return tensors(field)[0].shape[0]


def is_image(tensor: Tensor) -> bool:
    """Whether it is what channels_last is for: numbers [B, C, H, W], and no bytes."""
    return tensor.ndim == 4 and tensor.is_floating_point()


def in_layout(tensor: Tensor, channels_last: bool) -> Tensor:
    """The same tensor, images in channels_last where asked."""
    if channels_last and is_image(tensor):
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor


def as_batch(found: Any, what: str = "") -> Batch:
    """The pair as tensors that all have as many samples; float64, which no backend computes in, in float32.

    NumPy arrays become tensors that share their memory. `what` begins the message of Unfit.

    >>> inputs, targets = as_batch((np.zeros((4, 2)), {"a": torch.ones(4)}))
    >>> inputs.dtype, targets["a"].shape
    (torch.float32, torch.Size([4]))
    """
    inputs, targets = pair_of(found, what)
    inputs, targets = _as_field(inputs, f"{what}inputs"), _as_field(targets, f"{what}targets")
    counts = [[len(tensor) for tensor in tensors(field)] for field in (inputs, targets)]
    if len({*counts[0], *counts[1]}) > 1:
        there = (" and ".join(map(str, field)) for field in counts)
        said = " and targets with ".join(there)
        raise Unfit(f"{what}inputs with {said} samples; expected as many everywhere")
    if not counts[0][0]:
        raise Unfit(f"{what}empty; expected at least one sample")
    return inputs, targets


def pair_of(found: Any, what: str = "") -> tuple[Any, Any]:
    """Inputs and targets of what is to be both. Raises Unfit."""
    if not isinstance(found, tuple | list) or len(found) != 2:
        size = f" of {len(found)}" if isinstance(found, tuple | list) else ""
        raise Unfit(f"{what}{kind_of(found)}{size}; {EXPECTED}")
    return found[0], found[1]


def _as_field(field: Any, what: str) -> Field:
    if not isinstance(field, Mapping):
        return _as_tensor(field, what)
    if not field:
        raise Unfit(f"{what} are an empty dict; {EXPECTED}")
    for name in field:
        if not isinstance(name, str):
            raise Unfit(f"{what} have the key {name!r}; expected names, which the model takes as arguments")
    return {name: _as_tensor(value, f"{what}[{name!r}]") for name, value in field.items()}


def _as_tensor(value: Any, what: str) -> Tensor:
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufc":
            raise Unfit(f"{what} are an array of {value.dtype}; expected numbers")
        # Tensors are made of them, which take no view that runs backwards.
        array = np.ascontiguousarray(value).reshape(value.shape)
        value = torch.from_numpy(array if array.flags.writeable else array.copy())
    if not isinstance(value, Tensor):
        raise Unfit(f"{what} are {kind_of(value)}; {EXPECTED}")
    if value.layout is not torch.strided or value.is_quantized:
        raise Unfit(f"{what} are no dense tensor ({value.layout}); {EXPECTED}")
    if value.ndim == 0:
        raise Unfit(f"{what} have no dimension; expected one whose first counts the samples")
    value = value.detach()
    return value.to(torch.float32) if value.dtype == torch.float64 else value


def names_of(batch: Batch) -> tuple[tuple[str, ...], ...]:
    """The names in inputs and in targets; none for a tensor."""
    return tuple(() if isinstance(field, Tensor) else tuple(field) for field in batch)


def digest(*parts: str | Tensor) -> str:
    """Names content, by 16 hex digits of the SHA-256 of the texts and of the tensors' bytes."""
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            found.update(part.encode())
        else:
            found.update(part.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()[:16]


def content_of(batch: Batch) -> str:
    """Names a batch, or a whole split in memory, by its names, types, shapes and bytes."""
    parts: list[str | Tensor] = [repr(names_of(batch))]
    for tensor in (*tensors(batch[0]), *tensors(batch[1])):
        step = max(1, -(-tensor.numel() * tensor.element_size() // HASHED_BYTES))
        parts += [f"{tensor.dtype} {tuple(tensor.shape)}", tensor[::step]]
    return digest(*parts)


def kinds_of(batch: Batch) -> str:
    """Names, types and shapes of a batch but for the number of its samples."""
    fields = ({"": field} if isinstance(field, Tensor) else field for field in batch)
    return repr([[(name, str(t.dtype), tuple(t.shape[1:])) for name, t in f.items()] for f in fields])
