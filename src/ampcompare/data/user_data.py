"""The data of `data.source=./data.py:build`: what the function returned, as one of the forms of `splits`."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from ampcompare import plugins
from ampcompare.data.batch import get_field_names, to_batch
from ampcompare.data.dataset import MAX_CLASSES, BatchSet, SampleSet, Split, TensorSet
from ampcompare.data.seeding import wrap_data_errors
from ampcompare.errors import UserError, describe_type
from ampcompare.plugins import DATA, InvalidPluginOutput, Plugin

KWARGS = "data.kwargs"
SPLIT_FORMS = "tensors, a map-style Dataset with a __len__ or a DataLoader"
IGNORED_TARGET = -100  # a target that PyTorch's losses leave out
_SIGNED = (torch.int64, torch.int32, torch.int16, torch.int8)
INTEGER_DTYPES = (
    *_SIGNED,
    torch.uint8,
    torch.uint16,
    torch.uint32,
)  # not bool: a yes or no may be of one output


def load(
    name: str, kwargs: Mapping[str, Any], batch_sizes: tuple[int, int], seed: int
) -> tuple[list[Split], Plugin, bool]:
    """The two splits that the function of that name returns; the function; whether it takes the seed.

    `kwargs` are the user's. `batch_sizes` (of training, of evaluation) and `seed` are given where its
    signature names them. Raises UserError.
    """
    found, splits = plugins.load(DATA, name), []
    if "train" in kwargs:
        raise UserError(f"{KWARGS}.train: {name} is called with both, true and false; leave it out")
    signature = plugins.get_signature(found.value)
    for train, size in zip((True, False), batch_sizes, strict=True):
        function, common = found.value, {"batch_size": size, "seed": seed}
        ours: dict[str, Any] = {key: value for key, value in common.items() if key in signature.parameters}
        if plugins.accepts_argument(signature, "train"):
            ours["train"] = train
        else:  # the first argument, called otherwise
            function = partial(function, train)
        with wrap_data_errors(name, f"data for train={train}", found.file):
            returned = plugins.call(function, kwargs, key=KWARGS, name=name, defaults=ours)
            splits.append(_to_split(returned, name, found.file))
    return splits, found, "seed" in signature.parameters


def _to_split(found: Any, name: str, file: Path) -> Split:
    if type(found) is Subset and type(found.dataset) is TensorDataset:
        found = found.dataset[torch.as_tensor(found.indices)]
    elif type(found) is TensorDataset:  # PyTorch's own hold nothing random
        found = found.tensors
    if _is_pair(found):
        return TensorSet(*to_batch(tuple(np.asarray(x) if isinstance(x, list) else x for x in found)))
    is_map = hasattr(found, "__getitem__") and hasattr(found, "__len__")
    if isinstance(found, Mapping | str) or not (is_map or hasattr(found, "__iter__")):
        raise InvalidPluginOutput(f"{describe_type(found)}; expected {SPLIT_FORMS}")
    if (length := len(found)) < 1:
        raise InvalidPluginOutput(f"{describe_type(found)} of {length}; expected at least one sample")
    if is_map and not isinstance(found, DataLoader | IterableDataset):
        return SampleSet(found, file)
    return BatchSet(found, name, file, _count_samples(found, length), _get_batch_size(found))


def _is_pair(found: Any) -> bool:
    if isinstance(found, tuple):
        return True  # no data set is one; what is wrong with it as a pair is said
    fields = Tensor | np.ndarray | Mapping | list
    return isinstance(found, list) and len(found) == 2 and all(isinstance(field, fields) for field in found)


def _count_samples(loader: Any, batches: int) -> int | None:
    """The samples of an epoch of PyTorch's own batches, None where others are cut."""
    if type(loader) is not DataLoader or isinstance(loader.dataset, IterableDataset) or not loader.batch_size:
        return None
    return batches * loader.batch_size if loader.drop_last else len(loader.sampler)  # type: ignore[arg-type]


def _get_batch_size(loader: Any) -> int | None:
    """Its own, or that of a batch sampler like PyTorch's."""
    own = getattr(loader, "batch_size", None)
    return own or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)


def is_image_split(split: Any) -> bool:
    """RGB images as bytes with a label each: ours to augment and normalise."""
    if not (isinstance(split, TensorSet) and all(isinstance(part, Tensor) for part in split.sample)):
        return False
    images, labels = split.inputs, split.targets
    is_labels = labels.dtype in INTEGER_DTYPES and labels.ndim == 1
    return is_labels and images.dtype == torch.uint8 and images.ndim == 4 and images.shape[1] == 3


def find_classes(train: Split, test: Split) -> tuple[str, ...]:
    """The classes of both splits, empty where the targets are no classes. Raises InvalidPluginOutput."""
    named = [get_field_names(split.sample) for split in (train, test)]
    if named[0] != named[1]:
        raise InvalidPluginOutput(
            f"train=True and train=False differ in their names: {named[0]} and {named[1]}"
        )
    if isinstance(train, TensorSet) and isinstance(test, TensorSet):
        return _classes_from_targets(train.targets, test.targets)
    if not all(_classes_from_targets(split.sample[1]) for split in (train, test)):
        return ()
    return _find_declared_classes(train) or _find_declared_classes(test)


def _classes_from_targets(*targets: Any) -> tuple[str, ...]:
    """The classes of whole-number targets [N], by their numbers; none where targets are something else."""
    if not all(
        isinstance(t, Tensor) and t.dtype in INTEGER_DTYPES and t.ndim == 1 and len(t) for t in targets
    ):
        return ()
    numbers = torch.cat([target.long() for target in targets])  # PyTorch compares few of the unsigned ones
    count = 1 + int(numbers.max())
    is_negative = bool((numbers[numbers != IGNORED_TARGET] < 0).any())
    return tuple(map(str, range(count))) if not is_negative and count <= MAX_CLASSES else ()


def _get_stored_targets(data: Any) -> Tensor | None:
    """The `targets` that a data set holds of all its samples, as torchvision's do."""
    try:
        return torch.as_tensor(data.targets)
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return None


def get_labels(split: TensorSet | SampleSet) -> np.ndarray:
    """The class of each sample, int64 [N], where that is known without loading it: of tensors, and of a data
    set that holds all of them as `targets`; else zeros. What the loss leaves out is of the first class.
    """
    labels: Any = split.targets if isinstance(split, TensorSet) else _get_stored_targets(split.data)
    if not _classes_from_targets(labels) or len(labels) != len(split):
        return np.zeros(len(split), np.int64)
    return labels.long().clamp(min=0).numpy()


def _find_declared_classes(split: Split) -> tuple[str, ...]:
    """The classes that a data set says it has: by `classes`, `num_classes`, or the `targets` of all samples;
    of a subset or a loader, those of the whole.
    """
    data = split.data if isinstance(split, SampleSet) else getattr(split, "loader", None)
    while data is not None:
        names, number = getattr(data, "classes", None), getattr(data, "num_classes", None)
        if isinstance(names, Sequence) and names and not isinstance(names, str):
            found = tuple(map(str, names))
            return found if len(set(found)) == len(found) <= MAX_CLASSES else ()
        if type(number) is int and 0 < number <= MAX_CLASSES:
            return tuple(map(str, range(number)))
        if classes := _classes_from_targets(_get_stored_targets(data)):
            return classes
        data = getattr(data, "dataset", None)
    return ()
