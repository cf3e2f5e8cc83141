"""What somebody else's code gave as `(inputs, targets)`: as a `Batch`, or in words why it is none."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ampcompare.data.batch import Batch, Field, tensors
from ampcompare.errors import kind_of

EXPECTED = "expected (inputs, targets), each a tensor or a dict of tensors"
HASHED_BYTES = 2**28  # of one tensor; of larger ones rows evenly spaced: SHA-256 takes 0.2 s for so much


class Unfit(ValueError):
    """Data that cannot be trained on; the message is the rest of a line that names their source."""


def as_batch(found: Any, what: str) -> Batch:
    """The pair as tensors that all have as many samples; float64, which no backend computes in, in float32.

    NumPy arrays become tensors that share their memory. `what` names the pair in messages. Raises Unfit.

    >>> inputs, targets = as_batch((np.zeros((4, 2)), {"a": torch.ones(4)}), "the test data")
    >>> inputs.dtype, targets["a"].shape
    (torch.float32, torch.Size([4]))
    """
    if not isinstance(found, tuple | list) or len(found) != 2:
        size = f" of {len(found)}" if isinstance(found, tuple | list) else ""
        raise Unfit(f"{what}: {kind_of(found)}{size}; {EXPECTED}")
    named = zip(found, ("inputs", "targets"), strict=True)
    inputs, targets = (_as_field(field, f"{what}: {name}") for field, name in named)
    counts = [tensor.shape[0] for field in (inputs, targets) for tensor in tensors(field)]
    if min(counts) != max(counts):
        raise Unfit(f"{what}: {_lengths(inputs, targets)} samples; expected as many everywhere")
    if not counts[0]:
        raise Unfit(f"{what}: empty; expected at least one sample")
    return inputs, targets


def _as_field(field: Any, what: str) -> Field:
    if isinstance(field, Mapping):
        if not field:
            raise Unfit(f"{what} are an empty dict; {EXPECTED}")
        wrong = next((name for name in field if not isinstance(name, str)), None)
        if wrong is not None:
            raise Unfit(f"{what} have the key {wrong!r}; expected names, which the model takes as arguments")
        return {name: _as_tensor(value, f"{what}[{name!r}]") for name, value in field.items()}
    return _as_tensor(field, what)


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


def _lengths(inputs: Field, targets: Field) -> str:
    parts = {"inputs": inputs, "targets": targets}
    return " and ".join(
        f"{name} with {' and '.join(str(tensor.shape[0]) for tensor in tensors(field))}"
        for name, field in parts.items()
    )


def names_of(batch: Batch) -> tuple[tuple[str, ...], ...]:
    """The names in inputs and in targets; none for a tensor."""
    return tuple(() if isinstance(field, Tensor) else tuple(field) for field in batch)


def kinds_of(batch: Batch) -> str:
    """Names, types and shapes of a batch but for the number of its samples."""
    fields = ({"": field} if isinstance(field, Tensor) else field for field in batch)
    return repr([[(name, str(t.dtype), tuple(t.shape[1:])) for name, t in f.items()] for f in fields])


def digest(batch: Batch) -> str:
    """Names a batch, or a whole split in memory: its names, types, shapes and bytes."""
    found = hashlib.sha256(repr(names_of(batch)).encode())
    for field in batch:
        for tensor in tensors(field):
            found.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            size = tensor.numel() * tensor.element_size()
            rows = tensor[:: max(1, -(-size // HASHED_BYTES))].cpu().contiguous()
            found.update(rows.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()[:16]
