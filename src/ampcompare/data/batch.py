"""A batch: inputs and targets, each a tensor or a dict of tensors, the samples in the first dimension."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ampcompare.errors import describe_type
from ampcompare.plugins import InvalidPluginOutput

Field: TypeAlias = Tensor | Mapping[str, Tensor]
Batch: TypeAlias = tuple[Field, Field]

EXPECTED = "expected (inputs, targets), each a tensor or a dict of tensors, samples first"
MAX_HASHED_BYTES = 2**28  # of one tensor; of larger ones rows evenly spaced: SHA-256 takes 0.2 s for so much


def list_tensors(field: Field) -> list[Tensor]:
    """The tensors of inputs or targets, those of a dict in its order."""
    return [field] if isinstance(field, Tensor) else list(field.values())


def map_tensors(field: Field, change: Callable[[Tensor], Tensor]) -> Field:
    """The same inputs or targets of changed tensors."""
    if isinstance(field, Tensor):
        return change(field)
    return {name: change(tensor) for name, tensor in field.items()}


def count_samples(field: Field) -> int:
    """The samples of inputs or targets: the first dimension of the (first) tensor."""
    return (field if isinstance(field, Tensor) else list_tensors(field)[0]).shape[0]


def is_image(tensor: Tensor) -> bool:
    """Whether it is what channels_last is for: numbers [B, C, H, W], and no bytes."""
    return tensor.ndim == 4 and tensor.is_floating_point()


def to_memory_format(tensor: Tensor, channels_last: bool) -> Tensor:
    """The same tensor, images in channels_last where asked."""
    if channels_last and is_image(tensor):
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor


def to_batch(found: Any) -> Batch:
    """The pair as tensors that all have as many samples; float64, which no backend computes in, in float32.

    NumPy arrays become tensors that share their memory where they can. Raises InvalidPluginOutput.

    >>> inputs, targets = to_batch((np.zeros((4, 2)), {"a": torch.ones(4)}))
    >>> inputs.dtype, targets["a"].shape
    (torch.float32, torch.Size([4]))
    """
    pair = zip(("inputs", "targets"), split_pair(found), strict=True)
    inputs, targets = (_to_field(field, name) for name, field in pair)
    counts = [len(tensor) for tensor in (*list_tensors(inputs), *list_tensors(targets))]
    if len({*counts}) > 1 or not counts[0]:
        said = f"the tensors have {', '.join(map(str, counts))} samples"
        raise InvalidPluginOutput(f"{said}; expected as many everywhere, and at least one")
    return inputs, targets


def split_pair(found: Any) -> tuple[Any, Any]:
    """Inputs and targets of what is to be both. Raises InvalidPluginOutput."""
    if not isinstance(found, tuple | list) or len(found) != 2:
        size = f" of {len(found)}" if isinstance(found, tuple | list) else ""
        raise InvalidPluginOutput(f"{describe_type(found)}{size}; {EXPECTED}")
    return found[0], found[1]


def _to_field(field: Any, what: str) -> Field:
    if not isinstance(field, Mapping):
        return _to_tensor(field, what)
    if not field or not all(isinstance(name, str) for name in field):
        said = f"{what} are a dict with the keys {[*field]}"
        raise InvalidPluginOutput(f"{said}; expected names, which the model takes as arguments")
    return {name: _to_tensor(value, f"{what}[{name!r}]") for name, value in field.items()}


def _to_tensor(value: Any, what: str) -> Tensor:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        value = torch.from_numpy(np.require(value, requirements=["C", "W"]))  # it takes no negative strides
    if not isinstance(value, Tensor) or value.layout is not torch.strided or not value.ndim:
        kind = f" of {value.dtype}" if isinstance(value, np.ndarray | Tensor) else ""
        raise InvalidPluginOutput(f"{what} are {describe_type(value)}{kind}; {EXPECTED}, of numbers, dense")
    value = value.detach()
    return value.to(torch.float32) if value.dtype == torch.float64 else value


def get_field_names(batch: Batch) -> tuple[tuple[str, ...], ...]:
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


def hash_batch(batch: Batch) -> str:
    """Names a batch, or a whole split in memory, by its names, types, shapes and bytes."""
    parts: list[str | Tensor] = [repr(get_field_names(batch))]
    for tensor in (*list_tensors(batch[0]), *list_tensors(batch[1])):
        step = max(1, -(-tensor.numel() * tensor.element_size() // MAX_HASHED_BYTES))
        parts += [f"{tensor.dtype} {tuple(tensor.shape)}", tensor[::step]]
    return digest(*parts)


def describe_structure(batch: Batch) -> str:
    """Names, types and shapes of a batch but for the number of its samples."""
    fields = ({"": field} if isinstance(field, Tensor) else field for field in batch)
    return repr([[(name, str(t.dtype), tuple(t.shape[1:])) for name, t in f.items()] for f in fields])
