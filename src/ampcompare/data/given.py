"""The data of `data.source=./data.py:build`: what the function returned, as one of the forms of `splits`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from ampcompare import plugins
from ampcompare.calling import call, signature_of, takes
from ampcompare.data.arrays import MOST_CLASSES, Arrays
from ampcompare.data.batch import Field
from ampcompare.data.host import Failure, read
from ampcompare.data.pairs import EXPECTED, Unfit, as_batch, digest, names_of
from ampcompare.data.splits import FIRST, BatchSet, Places, SampleSet, TensorSet
from ampcompare.errors import UserError, kind_of

Form: TypeAlias = TensorSet | SampleSet | BatchSet

KWARGS = "data.kwargs"
FORMS = "tensors, a map-style Dataset or a DataLoader"
IGNORED = -100  # a target that PyTorch's losses leave out
_SIGNED = (torch.int64, torch.int32, torch.int16, torch.int8)
WHOLE = (*_SIGNED, torch.uint8, torch.uint16, torch.uint32)  # not bool: a yes or no may be of one output


@dataclass(frozen=True)
class Given:
    """Both splits as the function gave them. `classes` is empty where the targets are no classes."""

    train: Form
    test: Form
    classes: tuple[str, ...]
    images: Arrays | None = None  # both splits, where they are images for us to augment and normalise


class Builder:
    """The function behind a name, and what it is called with.

    `kwargs` are the user's. `batch_size` (of training, of evaluation) and `seed` are given where its
    signature names them.
    """

    def __init__(self, name: str, kwargs: Mapping[str, Any], batch_sizes: tuple[int, int], seed: int) -> None:
        self.name, self.kwargs, self.batch_sizes, self.seed = name, kwargs, batch_sizes, seed
        self.found = plugins.load(plugins.DATA, name)
        if "train" in kwargs:
            raise UserError(f"{KWARGS}.train: {name} is called with both, true and false; leave it out")

    def names(self, argument: str) -> bool:
        """Whether the function's signature names the argument."""
        signature = signature_of(self.found.value)
        return signature is not None and argument in signature.parameters

    def build(self, train: bool) -> Any:
        """What it returns for a split. Raises UserError."""
        function: Any = self.found.value
        common = {"batch_size": self.batch_sizes[0 if train else 1], "seed": self.seed}
        ours = {name: value for name, value in common.items() if self.names(name)}
        signature = signature_of(function)
        if signature is None or takes(signature, "train"):
            ours["train"] = train
        else:  # the first argument, called otherwise
            function = partial(function, train)
        with plugins.blame(plugins.DATA, self.name, f"no data for train={train}", self.found.file):
            return call(function, self.kwargs, key=KWARGS, name=self.name, ours=ours)


def take(builder: Builder) -> Given:
    """Both splits. Raises UserError, one line, for what is no data."""
    splits: list[Any] = []
    for train in (True, False):
        found = builder.build(train)
        try:
            splits.append(_split(found, builder, train))
        except Unfit as problem:
            raise plugins.DATA.refusal(builder.name, f"train={train}: {problem}") from None
    try:
        return _together(*splits)
    except (ValueError, TypeError, OverflowError) as problem:
        raise plugins.DATA.refusal(builder.name, str(problem)) from None


def _split(found: Any, builder: Builder, train: bool) -> Form:
    file = builder.found.file
    found = _in_memory(found)
    if _is_pair(found):
        return TensorSet(*as_batch(tuple(map(_as_array, found)), "the data"))
    if isinstance(found, DataLoader | IterableDataset):
        return _batches(found, builder)
    if hasattr(found, "__getitem__") and hasattr(found, "__len__") and not isinstance(found, Mapping | str):
        return _samples(found, file)
    if hasattr(found, "__iter__") and not isinstance(found, Mapping | str | tuple):
        return _batches(found, builder)
    kind = "None" if found is None else kind_of(found)
    raise Unfit(f"returned {kind}; expected {FORMS}")


def _is_pair(found: Any) -> bool:
    fields = Tensor | np.ndarray | Mapping | list
    if isinstance(found, tuple):
        return True  # no data set is one; what is wrong with it as a pair is said
    return isinstance(found, list) and len(found) == 2 and all(isinstance(field, fields) for field in found)


def _as_array(field: Any) -> Any:
    """Lists of numbers as an array."""
    if not isinstance(field, list):
        return field
    try:
        return np.asarray(field)
    except ValueError as problem:
        raise Unfit(f"a list that is no array ({problem}); {EXPECTED}") from None


def _in_memory(found: Any) -> Any:
    """The tensors of PyTorch's own data sets of such, which hold nothing random; the rest as it is."""
    if type(found) is TensorDataset and len(found.tensors) == 2:
        return found.tensors
    if type(found) is Subset and type(found.dataset) is TensorDataset and len(found.dataset.tensors) == 2:
        index = torch.as_tensor(found.indices)
        return tuple(tensor[index] for tensor in found.dataset.tensors)
    return found


def _samples(data: Any, file: Path) -> SampleSet:
    data, chosen = _whole(data)
    try:
        length = len(data) if chosen is None else len(chosen)
    except Exception as problem:
        raise Unfit(f"its length cannot be had ({plugins.what_happened(problem, file)})") from None
    if length < 1:
        raise Unfit(f"{kind_of(data)} of {length}; expected at least one sample")
    return looked_at(SampleSet(data, file, chosen))


def _whole(data: Any) -> tuple[Any, np.ndarray | None]:
    """The data set behind PyTorch's subsets of it (`random_split`), and which of its samples are in them: a
    subset can always be asked for many at once, and would draw for all of them together.
    """
    chosen: np.ndarray | None = None
    while type(data) is Subset:
        indices = np.asarray(data.indices)
        if indices.ndim != 1 or indices.dtype.kind not in "iu":  # of a data set with other keys
            break
        chosen = indices if chosen is None else indices[chosen]
        data = data.dataset
    return data, chosen


def looked_at(data: SampleSet) -> SampleSet:
    """The same with its first samples, made twice: whether they come out alike. Raises Unfit."""
    looks = []
    for _ in range(2):
        try:
            looks.append(data.batch(Places(0, 0, 0, 1, list(range(min(FIRST, len(data)))))))
        except Unfit:
            raise
        except (Exception, SystemExit) as problem:
            raise Unfit(f"no first samples ({Failure(problem, data.file).words})") from None
    repeats = digest(looks[0]) == digest(looks[1])
    return SampleSet(data.data, data.file, data.chosen, looks[0], repeats)


def _batches(loader: Any, builder: Builder) -> BatchSet:
    kind = type(loader).__name__
    try:
        length = len(loader)
    except Exception as problem:
        why = plugins.what_happened(problem, builder.found.file)
        todo = "an epoch needs a length: give it a __len__ that counts its batches"
        raise Unfit(f"a {kind} without a length ({why}); {todo}") from None
    if length < 1:
        raise Unfit(f"a {kind} of {length} batches; expected at least one")
    first, again = (
        next(read(loader, builder.name, builder.found.file, seed=0, epoch=0), None) for _ in range(2)
    )
    if first is None or again is None:
        raise Unfit(f"a {kind} of {length} batches that gave none; it has to begin anew each time")
    size = getattr(loader, "batch_size", None)
    if size is None:  # of a batch sampler like PyTorch's
        size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    whole = isinstance(size, int) and not isinstance(size, bool) and size > 0
    return BatchSet(
        loader,
        builder.found.file,
        batches=length,
        samples=_count(loader, length),
        batch_size=size if whole else None,
        sample=first,
        repeats=digest(first) == digest(again),
    )


def _count(loader: Any, batches: int) -> int | None:
    """The samples of an epoch of PyTorch's own batches, None where others are cut."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    if loader.batch_size is None or type(loader) is not DataLoader:
        return None
    return batches * loader.batch_size if loader.drop_last else len(loader.sampler)  # type: ignore[arg-type]


def _together(train: Form, test: Form) -> Given:
    """Both splits as one data set. Raises ValueError."""
    if isinstance(train, TensorSet) and isinstance(test, TensorSet):
        if _are_images(train) and _are_images(test):
            pairs = [(split.inputs.numpy(), split.targets.long().numpy()) for split in (train, test)]
            arrays = Arrays.of(*pairs)
            return Given(train, test, arrays.classes, arrays)
        return _checked(train, test, _numbered(train.targets, test.targets))
    classes: tuple[str, ...] = ()
    if all(_numbered(split.sample[1]) for split in (train, test)):
        classes = _named(train) or _named(test)
    return _checked(train, test, classes)


def _checked(train: Form, test: Form, classes: tuple[str, ...]) -> Given:
    named = [names_of(split.sample) for split in (train, test)]
    if named[0] != named[1]:
        raise ValueError(f"train=True and train=False differ in their names: {named[0]} and {named[1]}")
    return Given(train, test, classes)


def _are_images(split: TensorSet) -> bool:
    """RGB images as bytes with a label each: ours to augment and normalise."""
    images, labels = split.inputs, split.targets
    if not (isinstance(images, Tensor) and isinstance(labels, Tensor)):
        return False
    whole = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    return (
        images.dtype == torch.uint8
        and images.ndim == 4
        and images.shape[1] == 3
        and whole
        and labels.ndim == 1
    )


def _numbered(*targets: Field) -> tuple[str, ...]:
    """The classes of whole-number targets [N], by their numbers; none where targets are something else."""
    found = []
    for target in targets:
        if not isinstance(target, Tensor) or target.dtype not in WHOLE or target.ndim != 1:
            return ()
        found.append(target.long())  # PyTorch compares few of the unsigned ones
    count = 1 + max(int(target.max()) for target in found)
    least = min(int(t[t != IGNORED].min()) if bool((t != IGNORED).any()) else 0 for t in found)
    return tuple(map(str, range(count))) if least >= 0 and count <= MOST_CLASSES else ()


def labels_of(split: TensorSet | SampleSet) -> np.ndarray | None:
    """The class of each sample, int64 [N], where that is known without loading it: of tensors, and of a data
    set that holds all of them as `targets`. What the loss leaves out is among the first class's.
    """
    targets = split.targets if isinstance(split, TensorSet) else getattr(split.data, "targets", None)
    try:
        targets = torch.as_tensor(targets)
    except (TypeError, ValueError, RuntimeError):
        return None
    return targets.long().clamp(min=0).numpy() if _numbered(targets) and len(targets) == len(split) else None


def _named(split: Form) -> tuple[str, ...]:
    """The classes that a data set says it has: by `classes`, `num_classes`, or the `targets` of all samples,
    as torchvision's have them; of a subset or a loader, those of the whole.
    """
    data = split.data if isinstance(split, SampleSet) else getattr(split, "loader", None)
    for _ in range(8):  # a subset of a subset
        if (
            isinstance(names := getattr(data, "classes", None), Sequence)
            and names
            and not isinstance(names, str)
        ):
            found = tuple(map(str, names))
            return found if len(set(found)) == len(found) <= MOST_CLASSES else ()
        number = getattr(data, "num_classes", None)
        if isinstance(number, int) and not isinstance(number, bool) and 0 < number <= MOST_CLASSES:
            return tuple(map(str, range(number)))
        targets = getattr(data, "targets", None)
        if isinstance(targets, Sequence | np.ndarray | Tensor) and len(targets):
            try:
                return _numbered(torch.as_tensor(targets))
            except (TypeError, ValueError, RuntimeError):
                return ()
        data = getattr(data, "dataset", None)
    return ()
