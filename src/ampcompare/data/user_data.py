"""Data of a plug-in, such as `data.source=./data.py:build`: from the function's result to a split."""

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
from ampcompare.data.dataset import MAX_CLASSES, LoaderSplit, SampleSplit, Split, TensorSplit
from ampcompare.data.seeding import wrap_data_errors
from ampcompare.errors import UserError, describe_type
from ampcompare.plugins import DATA, InvalidPluginOutput, Plugin

KWARGS = "data.kwargs"
SPLIT_FORMS = "(inputs, targets), a map-style Dataset with a __len__, or a DataLoader"
IGNORED_TARGET = -100  # a target that PyTorch's losses ignore
_SIGNED = (torch.int64, torch.int32, torch.int16, torch.int8)
# Without bool, since a boolean target may belong to a single output.
INTEGER_DTYPES = (*_SIGNED, torch.uint8, torch.uint16, torch.uint32)


def load(
    name: str, kwargs: Mapping[str, Any], batch_sizes: tuple[int, int], seed: int
) -> tuple[list[Split], Plugin, bool]:
    """Call the function of a data plug-in for both splits.

    Args:
        name: The name of the plug-in.
        kwargs: The user's arguments.
        batch_sizes: The batch sizes of training and evaluation, passed if the signature has `batch_size`.
        seed: The seed, passed if the signature has `seed`.

    Returns:
        The training and the test split, the plug-in, and whether it takes the seed.

    Raises:
        UserError: The plug-in cannot be loaded or called, or its result is invalid.
    """
    plugin = plugins.load(DATA, name)
    signature = plugins.get_signature(plugin.value)
    takes_train = plugins.accepts_argument(signature, "train")
    if "train" in kwargs:
        raise UserError(
            f"{KWARGS}.train: AMP Compare itself calls {name} with train=True and train=False; leave it out"
        )
    if not signature.parameters:
        function_name = getattr(plugin.value, "__name__", "build")
        raise DATA.make_error(
            name,
            f"{function_name}() has no parameter; write def {function_name}(train), which returns "
            "(inputs, targets), a Dataset or a DataLoader: "
            "the training data for train=True, the test data for train=False",
        )
    splits = []
    for train, size in zip((True, False), batch_sizes, strict=True):
        common: dict[str, Any] = {"batch_size": size, "seed": seed}
        arguments = {key: value for key, value in common.items() if key in signature.parameters}
        if takes_train:
            function = plugin.value
            arguments["train"] = train
        else:  # the first parameter has another name
            function = partial(plugin.value, train)
        with wrap_data_errors(name, f"data for train={train}", plugin.file):
            returned = plugins.call(function, kwargs, key=KWARGS, name=name, defaults=arguments)
            splits.append(_to_split(returned, name, plugin.file))
    return splits, plugin, "seed" in signature.parameters


def _to_split(data: Any, name: str, file: Path) -> Split:
    """Return the result of a plug-in as a split.

    Raises:
        InvalidPluginOutput: It has none of the allowed forms, or no sample.
    """
    if type(data) is Subset and type(data.dataset) is TensorDataset:
        data = data.dataset[torch.as_tensor(data.indices)]
    elif type(data) is TensorDataset:  # PyTorch's own class makes no random choices
        data = data.tensors
    if _is_pair(data):
        pair = tuple(np.asarray(field) if isinstance(field, list) else field for field in data)
        return TensorSplit(*to_batch(pair))
    is_map = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    is_iterable = is_map or hasattr(data, "__iter__")
    if isinstance(data, Mapping | str | Tensor | np.ndarray) or not is_iterable:
        raise InvalidPluginOutput(f"the function returned {describe_type(data)}; expected {SPLIT_FORMS}")
    length = len(data)
    if length < 1:
        raise InvalidPluginOutput(
            f"the function returned {describe_type(data)} of length {length}; expected at least one sample"
        )
    if is_map and not isinstance(data, DataLoader | IterableDataset):
        return SampleSplit(data, file)
    return LoaderSplit(data, name, file, _count_samples(data, length), _get_batch_size(data))


def _is_pair(data: Any) -> bool:
    if isinstance(data, tuple):
        return True  # no data set is a tuple; `to_batch` reports an invalid pair
    fields = Tensor | np.ndarray | Mapping | list
    return isinstance(data, list) and len(data) == 2 and all(isinstance(field, fields) for field in data)


def _count_samples(loader: Any, batches: int) -> int | None:
    """Return the number of samples of an epoch of a DataLoader, None if it is not known."""
    if type(loader) is not DataLoader or isinstance(loader.dataset, IterableDataset) or not loader.batch_size:
        return None
    return batches * loader.batch_size if loader.drop_last else len(loader.sampler)  # type: ignore[arg-type]


def _get_batch_size(loader: Any) -> int | None:
    """Return the batch size of a loader or of its batch sampler, None if it is not known."""
    own = getattr(loader, "batch_size", None)
    return own or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)


def is_image_split(split: Any) -> bool:
    """Return whether a split has RGB images as bytes with labels, which we augment and normalise."""
    if not (isinstance(split, TensorSplit) and all(isinstance(part, Tensor) for part in split.sample)):
        return False
    images = split.inputs
    labels = split.targets
    is_labels = labels.dtype in INTEGER_DTYPES and labels.ndim == 1
    return is_labels and images.dtype == torch.uint8 and images.ndim == 4 and images.shape[1] == 3


def find_classes(train: Split, test: Split) -> tuple[str, ...]:
    """Return the names of the classes of both splits, empty if the targets are no classes.

    Raises:
        InvalidPluginOutput: The splits differ in the names of inputs or targets.
    """
    named = [get_field_names(split.sample) for split in (train, test)]
    if named[0] != named[1]:
        raise InvalidPluginOutput(
            f"inputs and targets have the names {named[0]} for train=True, but {named[1]} for train=False; "
            "use the same names"
        )
    if isinstance(train, TensorSplit) and isinstance(test, TensorSplit):
        return _find_target_classes(train.targets, test.targets)
    if not all(_find_target_classes(split.sample[1]) for split in (train, test)):
        return ()
    return _find_declared_classes(train) or _find_declared_classes(test)


def _find_target_classes(*targets: Any) -> tuple[str, ...]:
    """Return the classes of integer targets [N] by their numbers, empty for other targets."""
    if not all(_are_integers(split) for split in targets):
        return ()
    numbers = torch.cat([target.long() for target in targets])  # PyTorch compares few unsigned dtypes
    count = 1 + int(numbers.max())
    has_negative = bool((numbers[numbers != IGNORED_TARGET] < 0).any())
    if has_negative or count > MAX_CLASSES:
        return ()
    return tuple(str(number) for number in range(count))


def _are_integers(targets: Any) -> bool:
    """Return whether the targets are integers [N], at least one."""
    if not isinstance(targets, Tensor) or targets.dtype not in INTEGER_DTYPES:
        return False
    return targets.ndim == 1 and len(targets) > 0


def _get_stored_targets(data: Any) -> Tensor | None:
    """Return the `targets` attribute of a data set, which torchvision's have for all samples."""
    try:
        return torch.as_tensor(data.targets)
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return None


def get_labels(split: TensorSplit | SampleSplit) -> np.ndarray:
    """Return the class of each sample, int64 [N], without loading samples.

    Classes are known for tensors and for data sets with `targets`; otherwise all are 0. A target that the
    loss ignores counts as class 0.
    """
    labels: Any = split.targets if isinstance(split, TensorSplit) else _get_stored_targets(split.data)
    if not _find_target_classes(labels) or len(labels) != len(split):
        return np.zeros(len(split), np.int64)
    return labels.long().clamp(min=0).numpy()


def _find_declared_classes(split: Split) -> tuple[str, ...]:
    """Return the classes that a data set declares by `classes`, `num_classes` or `targets`.

    A subset or a loader has the classes of its data set.
    """
    data = split.data if isinstance(split, SampleSplit) else getattr(split, "loader", None)
    while data is not None:
        names = getattr(data, "classes", None)
        number = getattr(data, "num_classes", None)
        if isinstance(names, Sequence) and names and not isinstance(names, str):
            classes = tuple(map(str, names))
            return classes if len(set(classes)) == len(classes) <= MAX_CLASSES else ()
        if type(number) is int and 0 < number <= MAX_CLASSES:
            return tuple(map(str, range(number)))
        classes = _find_target_classes(_get_stored_targets(data))
        if classes:
            return classes
        data = getattr(data, "dataset", None)
    return ()
