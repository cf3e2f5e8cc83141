"""The built-in losses and metrics, and how any metric is added up over batches, on the device.

A network's outputs may be anything. The built-in ones read a tensor, or what is called `logits` in a dict or
an object (as Hugging Face's models return it); targets are a tensor, or a dict with one, or with `labels`.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map

from ampcompare.config.task_spec import CROSS_ENTROPY
from ampcompare.data.batch import count_samples
from ampcompare.data.user_data import IGNORED_TARGET
from ampcompare.errors import describe_type
from ampcompare.training.errors import TrainingError

TOP = 5
HALF = (torch.float16, torch.bfloat16)
OF_CLASSES = (CROSS_ENTROPY, "accuracy", "top5_accuracy")
Sums = tuple[Tensor, Tensor | int]  # of a score over a batch, and over how many values


def call(model: Callable[..., Any], inputs: Any) -> Any:
    """What the network says to inputs: a tensor is its one argument, a dict has them by name."""
    return model(inputs) if isinstance(inputs, Tensor) else model(**inputs)


def find_tensor(value: Any, name: str) -> Tensor | None:
    """The tensor that is meant: itself, the one of that name, or the only one there is."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Mapping) and len(value) == 1:
        found = next(iter(value.values()))
    else:
        found = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    return found if isinstance(found, Tensor) else None


def tensor_of(value: Any, name: str, what: str) -> Tensor:
    """`find_tensor`. Raises TrainingError where there is none."""
    if (found := find_tensor(value, name)) is not None:
        return found
    has = f" of {', '.join(map(str, value))}" if isinstance(value, Mapping) else ""
    why = f"{what} are {describe_type(value)}{has}"
    raise TrainingError(f"{why}; the built-in losses and metrics take a tensor, or one called {name!r}")


def by_class(outputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
    """Logits [N, C] and classes, int64 [N], of outputs and targets of any number of dimensions.

    [.., C] with targets [..] where the shapes fit so, as of language models; else PyTorch's own [B, C, ..]
    with [B, ..]. Raises TrainingError for shapes that are neither.
    """
    logits, classes = tensor_of(outputs, "logits", "the outputs"), tensor_of(targets, "labels", "the targets")
    if classes.is_floating_point() or classes.is_complex():
        what = f"the targets are {classes.dtype}; expected classes, as whole numbers"
        raise TrainingError(f"{what} (of a regression task.loss=mse, or mae)")
    if logits.ndim > 1 and logits.shape[:-1] == classes.shape:
        logits = logits if logits.ndim == 2 else logits.flatten(0, -2)
    elif logits.ndim > 2 and (logits.shape[0], *logits.shape[2:]) == classes.shape:
        logits = logits.movedim(1, -1).flatten(0, -2)
    else:
        shapes = f"outputs {list(logits.shape)} and targets {list(classes.shape)}"
        raise TrainingError(f"{shapes} do not go together; expected [.., C] or [B, C, ..] and one class each")
    return logits, classes.flatten().long()


def cross_entropy(
    outputs: Any, targets: Any, label_smoothing: float = 0.0, *, of_part: bool = False
) -> Tensor:
    """The mean cross entropy of `by_class`, or of targets that are shares of the classes, like the logits.

    With `of_part`, of a part of a batch, it is finite also where none of its targets counts.
    """
    if of_part:
        classes = find_tensor(targets, "labels")
        if classes is not None and not classes.is_floating_point():
            targets = torch.where((classes == IGNORED_TARGET).all(), torch.zeros_like(classes), classes)
    # `F.` is looked up at each call: a backend may have replaced the function by then.
    plain = isinstance(targets, Tensor) and (targets.dtype == torch.int64 or targets.is_floating_point())
    if not (plain and isinstance(outputs, Tensor) and outputs.ndim == 2 and len(outputs) == len(targets)):
        outputs, targets = _shares(outputs, targets) or by_class(outputs, targets)
    try:
        return F.cross_entropy(outputs, targets, label_smoothing=label_smoothing)
    except IndexError as problem:
        raise _class_error(outputs, targets) or problem from None


def _class_error(logits: Tensor, classes: Tensor) -> TrainingError | None:
    """Return what is wrong with the classes, on a CPU, where PyTorch checks each; None if nothing is."""
    count = logits.shape[-1]
    wrong = classes[(classes != IGNORED_TARGET) & ((classes < 0) | (classes >= count))]
    if not len(wrong):
        return None
    what = f"the network gives {count} classes, 0 to {count - 1}, and a target is {int(wrong[0])}"
    todo = f"give the network more classes, or mark targets that do not count as {IGNORED_TARGET}"
    return TrainingError(f"{what}; {todo}")


def _shares(outputs: Any, targets: Any) -> tuple[Tensor, Tensor] | None:
    """Logits and the share of each class, where the targets are that."""
    logits, shares = find_tensor(outputs, "logits"), find_tensor(targets, "labels")
    if logits is None or shares is None or not shares.is_floating_point() or logits.shape != shares.shape:
        return None
    return logits, shares


def mse(outputs: Any, targets: Any) -> Tensor:
    """The mean squared error over all elements."""
    return F.mse_loss(*_alike(outputs, targets))


def mae(outputs: Any, targets: Any) -> Tensor:
    """The mean absolute error over all elements."""
    return F.l1_loss(*_alike(outputs, targets))


LOSSES: dict[str, Callable[..., Tensor]] = {CROSS_ENTROPY: cross_entropy, "mse": mse, "mae": mae}


def count_of(loss: str, targets: Any) -> Tensor:
    """Of how many values the built-in loss is the mean, 0-d on the device: shares count C to a value in every
    part of a batch.
    """
    wanted = tensor_of(targets, "labels", "the targets")
    if loss == CROSS_ENTROPY and not wanted.is_floating_point():
        return (wanted != IGNORED_TARGET).sum()
    return torch.full((), wanted.numel(), device=wanted.device)


def _alike(outputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
    """Outputs and targets of one shape and type: [B, 1] and [B] are one, broadcast they would be [B, B].

    Raises TrainingError for other shapes.
    """
    found, wanted = tensor_of(outputs, "logits", "the outputs"), tensor_of(targets, "labels", "the targets")
    if found.shape != wanted.shape:
        if [n for n in found.shape if n != 1] != [n for n in wanted.shape if n != 1]:
            shapes = f"outputs {list(found.shape)} and targets {list(wanted.shape)}"
            raise TrainingError(f"{shapes} do not go together; expected the same shape")
        found = found.reshape(wanted.shape)
    kind = torch.promote_types(found.dtype, wanted.dtype)
    return found.to(kind), wanted.to(kind)


class Seen:
    """A batch that was evaluated: outputs in fp32 (or float64) and targets, and what several scores read of
    them.
    """

    def __init__(self, outputs: Any, targets: Any) -> None:
        self.outputs, self.targets = tree_map(_in_float, outputs), targets

    @cached_property
    def classes(self) -> tuple[Tensor, Tensor]:
        """`by_class`."""
        logits, classes = by_class(self.outputs, self.targets)
        return _in_float(logits), classes

    @cached_property
    def errors(self) -> tuple[Tensor, Tensor]:
        """Outputs and targets of one shape."""
        found, wanted = _alike(self.outputs, self.targets)
        return _in_float(found), _in_float(wanted)

    @cached_property
    def best(self) -> Tensor:
        """The first five classes (or all) of each, int64 [N, 5]."""
        logits, _ = self.classes
        return logits.topk(min(TOP, logits.shape[1]), dim=1).indices

    @cached_property
    def count(self) -> Tensor:
        """How many count, 0-d."""
        return (self.classes[1] != IGNORED_TARGET).sum()


def _in_float(value: Any) -> Any:
    """A half tensor in fp32; asked again behind a tree of outputs, which does not look into any object."""
    return value.float() if isinstance(value, Tensor) and value.dtype in HALF else value


def _sum_of_cross_entropy(seen: Seen) -> Sums:
    if (pair := _shares(seen.outputs, seen.targets)) is not None:
        logits, shares = map(_in_float, pair)
        return F.cross_entropy(logits, shares) * len(shares), len(shares)
    logits, classes = seen.classes
    try:
        return F.cross_entropy(logits, classes, reduction="sum"), seen.count
    except IndexError as problem:
        raise _class_error(logits, classes) or problem from None


# How each built-in score is added up over batches, by the name of the option's value.
SUMS: dict[str, Callable[[Seen], Sums]] = {
    CROSS_ENTROPY: _sum_of_cross_entropy,
    "accuracy": lambda seen: ((seen.best[:, 0] == seen.classes[1]).sum(), seen.count),
    "top5_accuracy": lambda seen: ((seen.best == seen.classes[1][:, None]).sum(), seen.count),
    "mse": lambda seen: (F.mse_loss(*seen.errors, reduction="sum"), seen.errors[1].numel()),
    "mae": lambda seen: (F.l1_loss(*seen.errors, reduction="sum"), seen.errors[1].numel()),
}


def sum_of(score: Callable[[Any, Any], Any]) -> Callable[[Seen], Sums]:
    """How a metric or loss from elsewhere is added up: a value for each sample (or element), all of one
    weight, or 0-d the mean of a batch, weighed by its samples.

    The function raises TrainingError for anything else.
    """
    expected = "expected a tensor with one value a sample, or the batch's mean, 0-d"

    def add(seen: Seen) -> Sums:
        value, samples = score(seen.outputs, seen.targets), count_samples(seen.targets)
        if not isinstance(value, Tensor):
            raise TrainingError(f"gave {describe_type(value)}; {expected}")
        if value.ndim == 0:
            return value * samples, samples
        targets = find_tensor(seen.targets, "labels")
        # Of a language model's tokens, too, in a row.
        in_a_row = targets is not None and value.shape == (targets.numel(),)
        if value.shape[0] != samples and not in_a_row:
            raise TrainingError(f"gave a tensor {list(value.shape)} for {samples} samples; {expected}")
        return value.sum(dtype=torch.promote_types(value.dtype, torch.float32)), value.numel()

    return add
