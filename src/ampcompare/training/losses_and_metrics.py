"""The built-in losses and metrics, and how any metric is summed over batches on the device.

The outputs of a network may have any type. The built-in losses and metrics read a tensor, or the entry
`logits` of a dict or an object (as Hugging Face's models return it). Targets are a tensor, or a dict with one
tensor or with `labels`.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map

from ampcompare.config.task_spec import CROSS_ENTROPY, SAMPLE_COUNTS
from ampcompare.data.batch import count_samples
from ampcompare.data.user_data import IGNORED_TARGET
from ampcompare.errors import TrainingError, describe_type
from ampcompare.system.device import widest_float

TOP_K = 5
DTYPES_16_BIT = (torch.float16, torch.bfloat16)
CLASS_SCORES = (CROSS_ENTROPY, *SAMPLE_COUNTS)
Sums = tuple[Tensor, Tensor | int]  # the sum of a score over a batch, and the number of its values


def call_network(model: Callable[..., Any], inputs: Any) -> Any:
    """Call the network: a tensor is its only argument, a dict has its arguments by name."""
    return model(inputs) if isinstance(inputs, Tensor) else model(**inputs)


def find_tensor(value: Any, name: str) -> Tensor | None:
    """Return the value if it is a tensor, else its entry of that name, or its only entry.

    Returns:
        None if there is no such tensor.
    """
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Mapping) and len(value) == 1:
        entry = next(iter(value.values()))
    else:
        entry = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    return entry if isinstance(entry, Tensor) else None


def require_tensor(value: Any, name: str, what: str) -> Tensor:
    """Return the tensor that `find_tensor` finds.

    Args:
        value: The outputs or the targets.
        name: The entry to look for.
        what: What the value is, for the message: `the outputs`.

    Raises:
        TrainingError: There is no such tensor.
    """
    tensor = find_tensor(value, name)
    if tensor is not None:
        return tensor
    description = describe_type(value)
    if isinstance(value, Mapping):
        description = f"{description} with {', '.join(map(str, value))}"
    raise TrainingError(
        f"{what} are {description}; the built-in losses and metrics need a tensor, "
        f"or a dict with a tensor {name!r}"
    )


def flatten_by_class(outputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
    """Return logits [N, C] and classes [N] of outputs and targets with any number of dimensions.

    Outputs [.., C] with targets [..] (a language model) are tried first, then PyTorch's own order, [B, C, ..]
    with [B, ..].

    Returns:
        The logits, and the classes as int64.

    Raises:
        TrainingError: The shapes do not fit, or the targets are not whole numbers.
    """
    logits = require_tensor(outputs, "logits", "the outputs")
    classes = require_tensor(targets, "labels", "the targets")
    if classes.is_floating_point() or classes.is_complex():
        raise TrainingError(
            f"the targets are {classes.dtype}; expected classes as whole numbers, such as int64; "
            "for a regression use task.loss=mse or task.loss=mae"
        )
    if logits.ndim > 1 and logits.shape[:-1] == classes.shape:
        logits = logits if logits.ndim == 2 else logits.flatten(0, -2)
    elif logits.ndim > 2 and (logits.shape[0], *logits.shape[2:]) == classes.shape:
        logits = logits.movedim(1, -1).flatten(0, -2)
    else:
        raise TrainingError(
            f"outputs {list(logits.shape)} and targets {list(classes.shape)} do not match; "
            "expected [.., C] or [B, C, ..] and one class for each position"
        )
    return logits, classes.flatten().long()


def has_one_target_each(targets: Any) -> bool:
    """Return whether every sample has one target, and not one for each pixel or token."""
    labels = find_tensor(targets, "labels")
    return labels is None or labels.numel() == len(labels)


def count_classes(outputs: Any, targets: Any) -> Tensor | None:
    """Return how many targets of a batch have each class, [C] on the device, without waiting for it.

    Returns:
        The counts as floats; targets to ignore do not count. None if the targets are no classes.
    """
    wanted = find_tensor(targets, "labels")
    if wanted is None or wanted.is_floating_point() or wanted.is_complex():
        return None
    try:
        logits, classes = flatten_by_class(outputs, targets)
    except TrainingError:  # targets of a user's own loss may have any shape
        return None
    count = logits.shape[-1]
    is_class = (classes >= 0) & (classes < count)
    bins = torch.where(is_class, classes, count)  # one more for the targets that do not count
    counts = torch.zeros(count + 1, dtype=widest_float(classes.device), device=classes.device)
    counts.index_add_(0, bins, torch.ones_like(bins, dtype=counts.dtype))
    return counts[:count]


def cross_entropy(
    outputs: Any, targets: Any, label_smoothing: float = 0.0, *, is_partial: bool = False
) -> Tensor:
    """Return the mean cross entropy of logits and classes, or of logits and class fractions.

    Args:
        outputs: The outputs of the network; `flatten_by_class` reads the logits.
        targets: Classes, or fractions of the classes in the shape of the logits.
        label_smoothing: As in PyTorch's cross entropy.
        is_partial: Whether the batch is a part of a larger one. Then the result is finite even if every
            target is ignored.
    """
    if is_partial:
        classes = find_tensor(targets, "labels")
        if classes is not None and not classes.is_floating_point():
            targets = torch.where((classes == IGNORED_TARGET).all(), torch.zeros_like(classes), classes)
    outputs, targets = _class_fractions(outputs, targets) or flatten_by_class(outputs, targets)
    try:
        # `F.` is looked up at each call: a backend may have replaced the function by then.
        return F.cross_entropy(outputs, targets, label_smoothing=label_smoothing)
    except IndexError as problem:
        raise find_class_error(outputs, targets) or problem from None


def find_class_error(logits: Tensor, classes: Tensor) -> TrainingError | None:
    """Return what is wrong with the classes, on a CPU, where PyTorch checks each; None if nothing is."""
    count = logits.shape[-1]
    wrong = classes[(classes != IGNORED_TARGET) & ((classes < 0) | (classes >= count))]
    if not len(wrong):
        return None
    return TrainingError(
        f"the network has {count} outputs, for classes 0 to {count - 1}, but a target is {int(wrong[0])}; "
        f"give the network more outputs, correct the target, or use {IGNORED_TARGET} for targets to ignore"
    )


def _class_fractions(outputs: Any, targets: Any) -> tuple[Tensor, Tensor] | None:
    """Return logits and class fractions, or None if the targets are not fractions."""
    logits = find_tensor(outputs, "logits")
    fractions = find_tensor(targets, "labels")
    if logits is None or fractions is None:
        return None
    is_match = fractions.is_floating_point() and logits.shape == fractions.shape
    return (logits, fractions) if is_match else None


def mse(outputs: Any, targets: Any) -> Tensor:
    """Return the mean squared error over all elements."""
    return F.mse_loss(*_same_shape(outputs, targets))


def mae(outputs: Any, targets: Any) -> Tensor:
    """Return the mean absolute error over all elements."""
    return F.l1_loss(*_same_shape(outputs, targets))


LOSSES: dict[str, Callable[..., Tensor]] = {CROSS_ENTROPY: cross_entropy, "mse": mse, "mae": mae}


def count_targets(loss: str, targets: Any) -> Tensor:
    """Return the number of values that the built-in loss averages, 0-d on the device.

    With class fractions every value counts C times, which is the same in every part of a batch.
    """
    wanted = require_tensor(targets, "labels", "the targets")
    if loss == CROSS_ENTROPY and not wanted.is_floating_point():
        return (wanted != IGNORED_TARGET).sum()
    return torch.full((), wanted.numel(), device=wanted.device)


def _same_shape(outputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
    """Return outputs and targets in one shape and dtype.

    [B, 1] and [B] count as the same shape; broadcasting would make [B, B] of them.

    Raises:
        TrainingError: The shapes differ.
    """
    values = require_tensor(outputs, "logits", "the outputs")
    wanted = require_tensor(targets, "labels", "the targets")
    if values.shape != wanted.shape:
        if [n for n in values.shape if n != 1] != [n for n in wanted.shape if n != 1]:
            raise TrainingError(
                f"outputs {list(values.shape)} and targets {list(wanted.shape)} do not match; "
                "expected the same shape"
            )
        values = values.reshape(wanted.shape)
    dtype = torch.promote_types(values.dtype, wanted.dtype)
    return values.to(dtype), wanted.to(dtype)


class EvalBatch:
    """An evaluated batch, and the values that several scores compute from it.

    Attributes:
        outputs: The outputs; tensors of 16-bit dtypes are converted to fp32.
    """

    def __init__(self, outputs: Any, targets: Any) -> None:
        self.outputs = tree_map(_in_float, outputs)
        self.targets = targets

    @cached_property
    def classes(self) -> tuple[Tensor, Tensor]:
        """Logits and classes, as `flatten_by_class` returns them."""
        logits, classes = flatten_by_class(self.outputs, self.targets)
        return _in_float(logits), classes

    @cached_property
    def errors(self) -> tuple[Tensor, Tensor]:
        """Outputs and targets in one shape, for regression."""
        values, wanted = _same_shape(self.outputs, self.targets)
        return _in_float(values), _in_float(wanted)

    @cached_property
    def top_classes(self) -> Tensor:
        """The five classes (or all) with the largest logits, int64 [N, 5]."""
        logits, _ = self.classes
        return logits.topk(min(TOP_K, logits.shape[1]), dim=1).indices

    @cached_property
    def count(self) -> Tensor:
        """The number of targets that are not ignored, 0-d."""
        return (self.classes[1] != IGNORED_TARGET).sum()


def _in_float(value: Any) -> Any:
    """Return a tensor of a 16-bit dtype in fp32, and any other value unchanged.

    `tree_map` does not look into every object, so the tensor that a score finds is converted again.
    """
    return value.float() if isinstance(value, Tensor) and value.dtype in DTYPES_16_BIT else value


def _cross_entropy_sums(batch: EvalBatch) -> Sums:
    pair = _class_fractions(batch.outputs, batch.targets)
    if pair is not None:
        logits, fractions = map(_in_float, pair)
        return F.cross_entropy(logits, fractions) * len(fractions), len(fractions)
    logits, classes = batch.classes
    try:
        return F.cross_entropy(logits, classes, reduction="sum"), batch.count
    except IndexError as problem:
        raise find_class_error(logits, classes) or problem from None


# The sums of each built-in score over a batch, by its name in the options.
SUMS: dict[str, Callable[[EvalBatch], Sums]] = {
    CROSS_ENTROPY: _cross_entropy_sums,
    "accuracy": lambda batch: ((batch.top_classes[:, 0] == batch.classes[1]).sum(), batch.count),
    "top5_accuracy": lambda batch: ((batch.top_classes == batch.classes[1][:, None]).sum(), batch.count),
    "mse": lambda batch: (F.mse_loss(*batch.errors, reduction="sum"), batch.errors[1].numel()),
    "mae": lambda batch: (F.l1_loss(*batch.errors, reduction="sum"), batch.errors[1].numel()),
}


def build_sums(score: Callable[[Any, Any], Any]) -> Callable[[EvalBatch], Sums]:
    """Return the function that sums a loss or metric of a user over a batch.

    The score may return one value per sample (or element), which all weigh the same, or the mean of the batch
    as a 0-d tensor, which is weighted by the number of samples.

    Returns:
        A function that raises TrainingError for any other result.
    """

    def sums(batch: EvalBatch) -> Sums:
        value = score(batch.outputs, batch.targets)
        samples = count_samples(batch.targets)
        if not isinstance(value, Tensor):
            raise _make_result_error(describe_type(value))
        if value.ndim == 0:
            return value * samples, samples
        targets = find_tensor(batch.targets, "labels")
        # A language model may give one value per token.
        is_per_token = targets is not None and value.shape == (targets.numel(),)
        if value.shape[0] != samples and not is_per_token:
            raise _make_result_error(f"a tensor {list(value.shape)} for {samples} samples")
        return value.sum(dtype=torch.promote_types(value.dtype, torch.float32)), value.numel()

    return sums


def _make_result_error(result: str) -> TrainingError:
    return TrainingError(
        f"returned {result}; "
        "expected a tensor with one value per sample, or the mean of the batch as a 0-d tensor"
    )
