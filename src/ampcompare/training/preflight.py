"""Two samples of each split before the first step: whether network, loss and metrics go together."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ampcompare.config.schema import Config
from ampcompare.config.task_spec import CROSS_ENTROPY
from ampcompare.data.batch import Field, map_tensors
from ampcompare.data.factory import Dataset, ImageSplit
from ampcompare.data.user_data import IGNORED_TARGET
from ampcompare.errors import UserError, describe_exception, describe_type
from ampcompare.plugins import is_object_path
from ampcompare.precision.base import Precision
from ampcompare.training.errors import TrainingError
from ampcompare.training.losses_and_metrics import Seen, by_class, call, find_tensor
from ampcompare.training.task import Task

SAMPLES = 2
NO_KERNEL = "could not create a primitive"  # as oneDNN says it of fp16, in recurrent layers for one
# As PyTorch's Fourier transforms say it of 16-bit inputs: MKL and cuFFT.
NO_TRANSFORM = ("Unsupported dtype", "cuFFT only supports dimensions whose sizes are powers of two")
KEEP_IT = "; keep the module that needs another dtype in fp32: precision.keep_fp32=NAME"
NO_LAYER = (
    "; this processor has no such layer in the type that it computes in: use another one "
    "(backend=native_bf16, for one), or a GPU"
)


def try_out(
    task: Task,
    model: nn.Module,
    precision: Precision,
    config: Config,
    loader: Any,
    data: Dataset | None = None,
) -> None:
    """Show the network two samples of the test split, and of the training split in `data`, in evaluation
    mode, under the backend, which changes nothing of it. Raises UserError where network, loss or a metric
    cannot take what they are given.
    """
    batch = next(iter(loader.epoch(0)), None)
    if batch is None:  # fewer samples than processes
        return
    modes = {module: module.training for module in model.modules()}  # some may be frozen
    model.eval()
    try:
        with precision.training_context():
            outputs, targets = _look(task, model, precision, config, batch)
            if data is not None:
                _check_classes(config, outputs, targets, data)
                if not isinstance(data.train, ImageSplit):  # images are alike in both
                    sample = tuple(
                        map_tensors(x, lambda t: t[:SAMPLES].to(precision.device)) for x in data.train.sample
                    )
                    _look(task, model, precision, config, sample, "the training data's ")
    finally:
        for module, mode in modes.items():
            module.training = mode


def _look(
    task: Task, model: nn.Module, precision: Precision, config: Config, batch: Any, whose: str = ""
) -> tuple[Any, Field]:
    """Outputs and targets of the first samples of a batch. Raises UserError."""
    inputs, targets = (map_tensors(field, lambda tensor: tensor[:SAMPLES]) for field in batch)
    taken = f"{whose}inputs {_shapes(inputs)}"
    with _asked("model.name", config.model.name, taken), precision.forward_context():
        outputs = call(model, inputs)
    given = f"{whose}outputs {_shapes(outputs)} and targets {_shapes(targets)}"
    with torch.no_grad():  # first, as the built-in ones say the most of what does not fit
        seen = Seen(outputs, targets)
        for score in task.scores:
            with _asked(*score.option, given):
                score.sums(seen)
    with _asked("task.loss", config.task.loss, given), precision.forward_context():
        _check_loss(task.loss(outputs, targets))
    return outputs, targets


def _check_loss(loss: Any) -> None:
    """Raise TrainingError for what is no loss: it has to be a 0-d tensor that gradients flow from."""
    if not isinstance(loss, Tensor):
        what = describe_type(loss)
    elif loss.ndim:
        what = f"a tensor {list(loss.shape)}"
    elif not loss.requires_grad:
        what = "a tensor without a gradient"
    else:
        return
    raise TrainingError(f"gave {what}; expected the batch's mean, a 0-d tensor with a gradient")


def _check_classes(config: Config, outputs: Any, targets: Field, data: Dataset) -> None:
    """Raise UserError for a class that the network has no output for, as far as the data are in memory."""
    shares = find_tensor(targets, "labels")
    if config.task.loss != CROSS_ENTROPY or (shares is not None and shares.is_floating_point()):
        return
    count = by_class(outputs, targets)[0].shape[1]
    for split in (data.train, data.test):
        labels = split.labels if isinstance(split, ImageSplit) else find_tensor(split.sample[1], "labels")
        if labels is None or labels.is_floating_point():
            continue
        for wrong in labels[(labels != IGNORED_TARGET) & ((labels < 0) | (labels >= count))][:1].tolist():
            what = f"gives {count} classes, 0 to {count - 1}, and a target is {wrong}"
            todo = (
                "give the network more of them" if wrong > 0 else f"what is not to count is {IGNORED_TARGET}"
            )
            raise UserError(f"model.name={config.model.name!r}: {what}; {todo}")


@contextmanager
def _asked(option: str, text: str, given: str) -> Iterator[None]:
    """Whatever a part raises that is given something, as a UserError, shown where it is somebody else's."""
    try:
        yield
    except TrainingError as problem:
        raise UserError(f"{option}={text!r}: {problem}") from None
    except (Exception, SystemExit) as problem:
        left = text.partition(":")[0]
        why = describe_exception(problem, Path(left).resolve() if left.endswith(".py") else None)
        todo = NO_LAYER if NO_KERNEL in str(problem) else ""
        if any(text in str(problem) for text in NO_TRANSFORM):
            todo = KEEP_IT
        error = UserError(f"{option}={text!r}: cannot take {given} ({why}){todo}")
        raise (error.with_cause(problem) if is_object_path(text) else error) from None


def _shapes(value: Any) -> str:
    """`[2, 3, 32, 32]`, or the shapes by name; of anything else its kind."""
    if isinstance(value, Tensor):
        return str(list(value.shape))
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shapes(part)}" for name, part in value.items())
    return f"of type {type(value).__name__}"
