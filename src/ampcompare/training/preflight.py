"""Checks before the first step, on two samples of each split, that network, loss and metrics fit the data."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ampcompare.config.schema import Config
from ampcompare.config.task_spec import CROSS_ENTROPY
from ampcompare.data.batch import Batch, Field, describe_shapes, map_tensors
from ampcompare.data.factory import Dataset, ImageSplit
from ampcompare.errors import TrainingError, UserError, describe_exception, describe_type
from ampcompare.plugins import is_object_path
from ampcompare.precision.base import Precision
from ampcompare.precision.weight_dtypes import find_lazy_modules
from ampcompare.system.device import is_out_of_memory
from ampcompare.training.losses_and_metrics import (
    EvalBatch,
    call_network,
    find_class_error,
    find_tensor,
    flatten_by_class,
)
from ampcompare.training.task import Score, Task

SAMPLES = 2

# Returns the end of the message about a batch that network or loss cannot take.
FindRemedy = Callable[[Callable[[], Batch]], str]


def run_preflight(
    task: Task,
    model: nn.Module,
    precision: Precision,
    config: Config,
    loader: Any,
    data: Dataset | None = None,
    find_remedy: FindRemedy | None = None,
) -> None:
    """Run network, loss and metrics on two samples of the test split, network and loss on the training split.

    The metrics are computed on the test split only, also in the run: the targets of the training split may be
    of another kind, such as fractions of the classes (mixup) where the test split has classes.

    The network runs in evaluation mode under the backend, and nothing of it changes.

    Args:
        task: The loss and the scores of the run.
        precision: The backend that prepared it.
        loader: The loader of the test split.
        data: The data, to check the training split too; None: only the test split.
        find_remedy: Called with a batch that network or loss cannot take; None: the message has no remedy.

    Raises:
        UserError: Network, loss or a metric does not take its input.
    """
    batch = next(iter(loader.epoch(0)), None)
    if batch is None:  # fewer samples than processes
        return
    with _evaluation_mode(model), precision.training_context():
        outputs, targets = _run_first_samples(
            task, model, precision, config, batch, task.scores, find_remedy=find_remedy
        )
        if data is None:
            return
        _check_classes(config, outputs, targets, data)
        if not isinstance(data.train, ImageSplit):  # images have the same shape in both splits
            first = [
                map_tensors(field, lambda t: t[:SAMPLES].to(precision.device)) for field in data.train.sample
            ]
            _run_first_samples(
                task, model, precision, config, first, (), "the training data's ", find_remedy=find_remedy
            )


def create_lazy_weights(model: nn.Module, config: Config, loader: Any) -> None:
    """Run the network on two training samples, so that lazy layers get their weights.

    Optimizer and backend need the weights, and so equal seeds give equal weights under every backend. The
    network runs in evaluation mode, so that nothing else of it changes.

    Args:
        model: The network, before it is prepared.
        loader: The loader of the training split.

    Raises:
        UserError: The network does not take its input.
    """
    batch = next(iter(loader.epoch(0)), None)
    if batch is None:
        return
    inputs = map_tensors(batch[0], lambda tensor: tensor[:SAMPLES])
    description = f"inputs {describe_shapes(inputs, with_dtype=True)}"
    with (
        _evaluation_mode(model),
        torch.no_grad(),
        _explained_errors("model.name", config.model.name, description),
    ):
        call_network(model, inputs)
    names = find_lazy_modules(model)
    if names:
        raise UserError(
            f"model.name={config.model.name!r}: "
            f"the forward does not call its lazy layers {', '.join(names)}, so they have no weights; "
            "remove them, or give them their sizes"
        )


@contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put all modules into evaluation mode, and afterwards back into their own mode: some may be frozen."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _run_first_samples(
    task: Task,
    model: nn.Module,
    precision: Precision,
    config: Config,
    batch: Any,
    scores: Sequence[Score],
    whose: str = "",
    find_remedy: FindRemedy | None = None,
) -> tuple[Any, Field]:
    """Run network, scores and loss on the first samples of a batch; return outputs and targets.

    Args:
        task: Its loss is computed.
        precision: The backend that prepared it.
        config: It names the network and the loss, for messages.
        scores: The scores that are computed on such batches.
        whose: Which data these are, for the message: empty, or `the training data's `.
        find_remedy: As in `run_preflight`.

    Raises:
        UserError: A part does not take its input.
    """
    inputs, targets = (map_tensors(field, lambda tensor: tensor[:SAMPLES]) for field in batch)
    input_shapes = f"{whose}inputs {describe_shapes(inputs, with_dtype=True)}"

    def explain() -> str:
        return find_remedy(lambda: (inputs, targets)) if find_remedy else ""

    def explain_network() -> str:
        return explain() or _converted_hint(precision)

    with (
        _explained_errors("model.name", config.model.name, input_shapes, explain_network),
        precision.forward_context(),
    ):
        outputs = call_network(model, inputs)
    description = f"{whose}outputs {describe_shapes(outputs)} and targets {describe_shapes(targets)}"
    with torch.no_grad():  # first, because the built-in scores explain best what does not fit
        evaluated = EvalBatch(outputs, targets)
        for score in scores:
            with _explained_errors(*score.option, description):
                score.sums(evaluated)
    with (
        _explained_errors("task.loss", config.task.loss, description, explain),
        precision.forward_context(),
    ):
        _check_loss(task.loss(outputs, targets))
    return outputs, targets


def _converted_hint(precision: Precision) -> str:
    """Return a hint for a network whose forward may expect the dtype that its weights had."""
    dtypes = " and ".join(precision.converted_weights)
    if not dtypes:
        return ""
    return f"; its weights were converted from {dtypes} to float32: precision.weights=keep leaves them"


def _check_loss(loss: Any) -> None:
    """Raise TrainingError unless the loss is a 0-d tensor with a gradient."""
    if not isinstance(loss, Tensor):
        description = describe_type(loss)
    elif loss.ndim:
        description = f"a tensor {list(loss.shape)}"
    elif not loss.requires_grad:
        description = "a tensor without a gradient"
    else:
        return
    raise TrainingError(
        f"returned {description}; expected the mean of the batch: a 0-d tensor with a gradient"
    )


def _check_classes(config: Config, outputs: Any, targets: Field, data: Dataset) -> None:
    """Raise UserError for a class without an output of the network, as far as the data are in memory."""
    if config.task.loss != CROSS_ENTROPY:
        return
    labels_or_fractions = find_tensor(targets, "labels")
    if labels_or_fractions is not None and labels_or_fractions.is_floating_point():
        return
    logits, _ = flatten_by_class(outputs, targets)
    for split in (data.train, data.test):
        labels = split.labels if isinstance(split, ImageSplit) else find_tensor(split.sample[1], "labels")
        if labels is None or labels.is_floating_point():
            continue
        problem = find_class_error(logits, labels)
        if problem is not None:
            raise UserError(f"model.name={config.model.name!r}: {problem}")


@contextmanager
def _explained_errors(
    option: str, text: str, description: str, explain: Callable[[], str] = str
) -> Iterator[None]:
    """Turn any exception of a part into a UserError; the traceback is shown for user code.

    Args:
        option: The option that names the part.
        text: The value of the option.
        description: What the part gets.
        explain: Returns the end of the message.
    """
    try:
        yield
    except TrainingError as problem:
        raise UserError(f"{option}={text!r}: {problem}") from None
    except (Exception, SystemExit) as problem:
        file = text.partition(":")[0]
        path = Path(file).resolve() if file.endswith(".py") else None
        hint = "" if is_out_of_memory(problem) else explain()
        error = UserError(
            f"{option}={text!r}: cannot take {description} ({describe_exception(problem, path)}){hint}"
        )
        if is_object_path(text):
            error = error.with_cause(problem)
        raise error from None
