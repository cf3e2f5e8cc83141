"""Batches: inputs and targets, each a tensor or a dict of tensors with samples in the first dimension."""

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

EXPECTED = (
    "expected (inputs, targets), each a tensor or a dict of tensors, with samples in the first dimension"
)
MAX_HASHED_BYTES = 2**28  # of a tensor (0.2 s with SHA-256); of a larger one, evenly spaced rows


def list_tensors(field: Field) -> list[Tensor]:
    """Return the tensors of inputs or targets, those of a dict in its order."""
    return [field] if isinstance(field, Tensor) else list(field.values())


def map_tensors(field: Field, change: Callable[[Tensor], Tensor]) -> Field:
    """Return inputs or targets with each tensor changed."""
    if isinstance(field, Tensor):
        return change(field)
    return {name: change(tensor) for name, tensor in field.items()}


def count_samples(field: Field) -> int:
    """Return the number of samples of inputs or targets: the first dimension of the (first) tensor."""
    return (field if isinstance(field, Tensor) else list_tensors(field)[0]).shape[0]


def is_image(tensor: Tensor) -> bool:
    """Return whether channels_last applies to the tensor: floating-point [B, C, H, W]."""
    return tensor.ndim == 4 and tensor.is_floating_point()


def to_memory_format(tensor: Tensor, channels_last: bool) -> Tensor:
    """Return the tensor, images in channels_last if asked."""
    if channels_last and is_image(tensor):
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor


def to_batch(pair: Any) -> Batch:
    """Return a pair as a batch of tensors.

    NumPy arrays become tensors that share their memory if possible. float64 becomes float32, since no backend
    computes in float64.

    Raises:
        InvalidPluginOutput: It is no pair, or the numbers of samples differ.

    >>> inputs, targets = to_batch((np.zeros((4, 2)), {"a": torch.ones(4)}))
    >>> inputs.dtype, targets["a"].shape
    (torch.float32, torch.Size([4]))
    """
    named = zip(("inputs", "targets"), split_pair(pair), strict=True)
    inputs, targets = (_to_field(field, name) for name, field in named)
    counts = [len(tensor) for tensor in (*list_tensors(inputs), *list_tensors(targets))]
    if len({*counts}) > 1 or not counts[0]:
        raise InvalidPluginOutput(
            f"the tensors of inputs and targets have {', '.join(map(str, counts))} samples; "
            "expected the same number in each, at least 1"
        )
    return inputs, targets


def split_pair(pair: Any) -> tuple[Any, Any]:
    """Return inputs and targets.

    Raises:
        InvalidPluginOutput: It is no pair.
    """
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        size = f" of {len(pair)}" if isinstance(pair, tuple | list) else ""
        raise InvalidPluginOutput(f"got {describe_type(pair)}{size}; {EXPECTED}")
    return pair[0], pair[1]


def _to_field(field: Any, field_name: str) -> Field:
    if not isinstance(field, Mapping):
        return _to_tensor(field, field_name)
    if not field or not all(isinstance(name, str) for name in field):
        raise InvalidPluginOutput(
            f"{field_name} are a dict with the keys {[*field]}; expected strings, because the model gets "
            "them as keyword arguments"
        )
    return {name: _to_tensor(value, f"{field_name}[{name!r}]") for name, value in field.items()}


def _to_tensor(value: Any, name: str) -> Tensor:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        writable = np.require(value, requirements=["C", "W"])  # from_numpy accepts no negative strides
        value = torch.from_numpy(writable)
    if not isinstance(value, Tensor) or value.layout is not torch.strided or not value.ndim:
        kind = f" of {value.dtype}" if isinstance(value, np.ndarray | Tensor) else ""
        raise InvalidPluginOutput(
            f"{name} are {describe_type(value)}{kind}; {EXPECTED}; "
            "a tensor must hold numbers, be dense and have a dimension"
        )
    value = value.detach()
    return value.to(torch.float32) if value.dtype == torch.float64 else value


def get_field_names(batch: Batch) -> tuple[tuple[str, ...], ...]:
    """Return the names in inputs and in targets, empty for a tensor."""
    return tuple(() if isinstance(field, Tensor) else tuple(field) for field in batch)


def digest(*parts: str | Tensor) -> str:
    """Return the first 16 hex digits of the SHA-256 of texts and of the bytes of tensors."""
    sha256 = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            sha256.update(part.encode())
        else:
            sha256.update(part.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return sha256.hexdigest()[:16]


def hash_batch(batch: Batch) -> str:
    """Return a hash of a batch, or of a split in memory: its names, dtypes, shapes and bytes."""
    parts: list[str | Tensor] = [repr(get_field_names(batch))]
    for tensor in (*list_tensors(batch[0]), *list_tensors(batch[1])):
        step = max(1, -(-tensor.numel() * tensor.element_size() // MAX_HASHED_BYTES))
        parts += [f"{tensor.dtype} {tuple(tensor.shape)}", tensor[::step]]
    return digest(*parts)


def describe_structure(batch: Batch) -> str:
    """Return the names, dtypes and shapes of a batch as text, without the number of samples."""
    fields = ({"": field} if isinstance(field, Tensor) else field for field in batch)
    return repr([[(name, str(t.dtype), tuple(t.shape[1:])) for name, t in f.items()] for f in fields])


def note_batch(problem: Exception, batch: Batch) -> None:
    """Add dtypes and shapes of the batch to an exception of network, loss or metric."""
    inputs, targets = (describe_shapes(field, with_dtype=True) for field in batch)
    problem.add_note(f"in a batch of inputs {inputs}, targets {targets}")


def describe_shapes(value: Any, *, with_dtype: bool = False) -> str:
    """Return a shape as text: `[2, 3, 32, 32]` or `float32 [2, 3, 32, 32]`; by name for a dict."""
    if isinstance(value, Tensor):
        shape = str(list(value.shape))
        return f"{str(value.dtype).removeprefix('torch.')} {shape}" if with_dtype else shape
    if isinstance(value, Mapping):
        named = (f"{name} {describe_shapes(part, with_dtype=with_dtype)}" for name, part in value.items())
        return ", ".join(named)
    return f"of type {type(value).__name__}"
