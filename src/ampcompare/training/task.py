"""The task of a training: the loss of a step, and the scores of an evaluation.

`build_task` decides everything that depends on the config once. A step and an evaluation only call the
functions of the `Task`.
"""

import dataclasses
import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from ampcompare import metrics, plugins
from ampcompare.config import task_spec as names
from ampcompare.config.schema import Config
from ampcompare.data.batch import Field
from ampcompare.errors import TrainingError, describe_type
from ampcompare.plugins import PluginKind
from ampcompare.system.device import widest_float
from ampcompare.training import losses_and_metrics
from ampcompare.training.losses_and_metrics import EvalBatch, Sums

Criterion = Callable[[Any, Any], Tensor]
Classify = Callable[[Any, Any], tuple[Tensor, Tensor] | None]
# Logits of a batch with more bytes are replaced by predicted classes until the row is made.
MAX_LOGITS_BYTES = 2**16
# Names of options.
LOSS = "task.loss"
METRICS = "task.metrics"


@dataclasses.dataclass(frozen=True)
class Score:
    """A loss or metric of an evaluation: the mean over all values that count.

    Attributes:
        key: The metric key, such as `eval/accuracy`.
        label: The display name.
        better: Which direction is better, `higher` or `lower`.
        sums: Returns the sum over a batch and the number of values.
        option: The option that names the score, and its value.
        source: The hash of the user's file; "" for a built-in loss or metric.
        counts_samples: Whether it is the fraction of the samples, or of their targets, that fulfil a
            condition.
    """

    key: str
    label: str
    better: str
    sums: Callable[[EvalBatch], Sums]
    option: tuple[str, str]
    source: str = ""
    counts_samples: bool = False


def logits_and_classes(outputs: Any, targets: Any) -> tuple[Tensor, Tensor] | None:
    """Return what the accuracy of a training batch is computed from, without computing it yet.

    Returns:
        The logits [N, C] of all samples or tokens and their classes [N]. Large logits are replaced by the
        predicted classes [N], so that no memory waits for a row. None for targets that have no accuracy:
        fractions of the classes, or whatever else a loss of the user's own takes.
    """
    has_classes = isinstance(targets, Tensor) and not targets.is_floating_point()
    if has_classes and isinstance(outputs, Tensor) and outputs.ndim == 2 and targets.ndim == 1:
        logits, classes = outputs, targets
    else:  # GoogLeNet returns more outputs in training, for one
        labels = losses_and_metrics.find_tensor(targets, "labels")
        if labels is None or labels.is_floating_point():
            return None
        try:
            logits, classes = losses_and_metrics.flatten_by_class(outputs, targets)
        except TrainingError:  # two classes for each sample, for one; a built-in loss has said so before
            return None
    logits = logits.detach()
    # The storage, since logits may be a view of something larger.
    if logits.untyped_storage().nbytes() > MAX_LOGITS_BYTES:
        logits = logits.argmax(1)
    return logits, classes


def no_classes(outputs: Any, targets: Any) -> None:
    """Return None: the task has no classes, so no accuracy."""


class Forward:
    """Computes outputs and loss of a batch eagerly.

    Attributes:
        compiled: Whether the last call was the first of a compiled forward with its shapes. The time of such
            a step says nothing. It compiles, unless an earlier training of the process has.
    """

    def __init__(self, model: nn.Module, criterion: Criterion) -> None:
        self.model, self.criterion = model, criterion
        self.compiled = False

    def __call__(self, inputs: Field, targets: Field) -> tuple[Any, Tensor]:
        """Return the outputs and the loss of a batch."""
        outputs = (
            self.model(inputs)
            if isinstance(inputs, Tensor)
            else losses_and_metrics.call_network(self.model, inputs)
        )
        return outputs, self.criterion(outputs, targets)


@dataclasses.dataclass(frozen=True)
class Task:
    """The loss and the scores of a training.

    Attributes:
        loss: Returns the mean loss of a batch, a 0-d tensor, from outputs and targets.
        scores: The scores of an evaluation, `eval/loss` first.
        compared: The score that runs are compared by.
        classify: Returns what the accuracy of a training batch is computed from (`logits_and_classes`), or
            None if there is no accuracy.
        weigh: Returns the number of targets that the loss averages, 0-d on the device. None: every sample has
            the same number.
    """

    loss: Callable[..., Tensor]
    scores: tuple[Score, ...]
    compared: Score
    classify: Classify = logits_and_classes
    weigh: Callable[[Any], Tensor] | None = None

    def sum_scores(self, outputs: Any, targets: Any) -> Tensor:
        """Return the sum and the number of values of each score over a batch, [scores, 2].

        Raises:
            TrainingError: A score returned values of a wrong shape.
        """
        batch = EvalBatch(outputs, targets)
        sums = []
        for score in self.scores:
            try:
                total, count = score.sums(batch)
            except TrainingError as problem:
                option, text = score.option
                raise TrainingError(f"{option}={text!r}: {problem}") from None
            wide = total.to(widest_float(total.device))
            sums.append(torch.stack([wide, torch.zeros_like(wide) + count]))
        return torch.stack(sums)

    def record(self, targets: Any) -> dict[str, Any]:
        """Return what the record says of the task, so that a reader needs none of its functions.

        Args:
            targets: Those of some test samples. The built-in accuracies count targets: these are samples only
                if each sample has one.
        """
        of_targets = () if losses_and_metrics.has_one_target_each(targets) else names.SAMPLE_COUNTS
        scores = {
            score.key: {
                "words": score.label,
                "better": score.better,
                "counts_samples": score.counts_samples and score.option[1] not in of_targets,
            }
            for score in self.scores
        }
        sources = {
            f"task_{score.key.removeprefix(metrics.EVAL_PREFIX)}_source": score.source
            for score in self.scores
            if score.source
        }
        return {metrics.TASK: {"metric": self.compared.key, "metrics": scores}, **sources}

    def weighted_by_targets(self) -> Self:
        """Return the task for steps in parts (micro-batches, processes) with unequal numbers of targets.

        Sequences are padded, or classes are -100. The gradient is then that of the whole batch. It is not
        known what a loss of the user averages, so such a loss is still weighted by samples.
        """
        _, name = self.scores[0].option
        if name not in losses_and_metrics.LOSSES:
            return self
        loss = partial(self.loss, is_partial=True) if name == names.CROSS_ENTROPY else self.loss
        return dataclasses.replace(self, loss=loss, weigh=partial(losses_and_metrics.count_targets, name))


def build_task(config: Config, device: torch.device) -> Task:
    """Return the task of a config.

    Raises:
        UserError: A loss or metric of the user cannot be loaded.
    """
    options = config.task
    metric_names = names.metric_names(options.loss, options.metrics)
    loss, loss_score = _build_loss(config, device)
    scores = (loss_score, *(_build_metric(name, device) for name in metric_names))
    compared_key = names.compared_key(options.loss, options.metrics, options.metric)
    has_classes = any(name in losses_and_metrics.CLASS_SCORES for name in (options.loss, *metric_names))
    return Task(
        loss,
        scores,
        compared=next(score for score in scores if score.key == compared_key),
        classify=logits_and_classes if has_classes else no_classes,
    )


def _build_loss(config: Config, device: torch.device) -> tuple[Callable[..., Tensor], Score]:
    """Return the loss of a step, and the loss as a score of an evaluation.

    Raises:
        UserError: The loss cannot be loaded.
    """
    name = config.task.loss
    listed = metrics.METRICS[metrics.EVAL_LOSS]
    if name in losses_and_metrics.LOSSES:
        loss = losses_and_metrics.LOSSES[name]
        sums = losses_and_metrics.SUMS[name]
        source = ""
        if config.training.label_smoothing:
            loss = partial(loss, label_smoothing=config.training.label_smoothing)
    else:
        loss, source = _load_function(plugins.LOSSES, name, device)
        sums = losses_and_metrics.build_sums(loss)
    return loss, Score(listed.key, listed.label, listed.better, sums, (LOSS, name), source)


def _build_metric(text: str, device: torch.device) -> Score:
    """Return the score of a metric.

    Raises:
        UserError: The metric cannot be loaded, or nothing says which direction is better.
    """
    key = names.metric_key(text)
    if text in losses_and_metrics.SUMS:
        declared = metrics.METRICS[key]
        return Score(
            key,
            declared.label,
            declared.better,
            losses_and_metrics.SUMS[text],
            (METRICS, text),
            counts_samples=text in names.SAMPLE_COUNTS,
        )
    function, source = _load_function(plugins.METRICS, text, device)
    better = _find_direction(function, text)
    listed = metrics.find(key)
    if listed is None:
        label = str(getattr(function, "words", "") or names.display_name_of(text))
    elif better == listed.better:
        label = listed.label
    else:
        raise plugins.METRICS.make_error(
            text,
            f"has better={better!r}, but {key} is a listed metric with better={listed.better!r}; rename it",
        )
    return Score(
        key,
        label,
        better,
        losses_and_metrics.build_sums(function),
        (METRICS, text),
        source,
        _declares_count(function, text),
    )


def _declares_count(function: Callable[..., Any], text: str) -> bool:
    """Return the function's attribute `counts_samples`, False without one.

    Raises:
        UserError: The attribute is neither True nor False.
    """
    declared = getattr(function, "counts_samples", False)
    if not isinstance(declared, bool):
        raise plugins.METRICS.make_error(
            text,
            f"its attribute `counts_samples` is {declared!r}, neither True nor False; "
            f"write {names.metric_name(text)}.counts_samples = True below the function if it returns 1 or 0 "
            "for each sample",
        )
    return declared


def _find_direction(function: Callable[..., Any], text: str) -> str:
    """Return which direction is better: by the function's attribute, the listed metric, or its name.

    Raises:
        UserError: The attribute is wrong, or nothing says the direction.
    """
    directions = (metrics.HIGHER, metrics.LOWER)
    name = names.metric_name(text)
    declared = getattr(function, "better", None)
    if declared is not None:
        if declared not in directions:
            raise plugins.METRICS.make_error(
                text,
                'its attribute `better` is neither "higher" nor "lower"; '
                f'write {name}.better = "higher" or "lower" below the function',
            )
        return declared
    listed = metrics.find(names.metric_key(text))
    known = listed.better if listed else metrics.guess_direction(name)
    if known not in directions:
        raise plugins.METRICS.make_error(
            text,
            "it is not known whether higher or lower values are better; "
            f'write {name}.better = "higher" or "lower" below the function',
        )
    return known


def _load_function(kind: PluginKind, text: str, device: torch.device) -> tuple[Callable[..., Any], str]:
    """Return the loss or metric that the text names, and the hash of its file."""
    plugin = plugins.load(kind, text)
    value = plugin.value
    if isinstance(value, type):
        with plugins.wrap_plugin_errors(kind, text, "cannot be made without arguments", plugin.file):
            value = value()
    if isinstance(value, nn.Module):
        if any(True for _ in value.parameters()):
            raise kind.make_error(
                text, "has parameters, but only those of the network are trained; move them into the network"
            )
        value = value.to(device)
    if not callable(value):
        raise kind.make_error(text, f"is {describe_type(value)}; expected a function of outputs and targets")
    return _look_up_at_each_call(value), plugin.source


def _look_up_at_each_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of torch as its module has it at each call: a backend may replace it.

    Any other function is returned as it is.
    """
    module_name = getattr(function, "__module__", None) or ""
    module = sys.modules.get(module_name)
    name = getattr(function, "__name__", "")
    is_attribute = isinstance(function, types.FunctionType) and getattr(module, name, None) is function
    if not is_attribute or not module_name.startswith("torch."):
        return function
    return lambda outputs, targets: getattr(module, name)(outputs, targets)
