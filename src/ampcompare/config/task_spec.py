"""The task by names: the loss, its metrics, and the metric that is compared.

Options, sweeps, training and report use this. No user code is imported: a metric is logged under the last
part of its name.
"""

import re
from collections.abc import Sequence
from typing import Any

from ampcompare import metrics
from ampcompare.errors import UserError, did_you_mean

CROSS_ENTROPY = "cross_entropy"
LOSS = "loss"  # the name under which the loss is a metric
# The built-in losses with their default metrics, of which the first one is compared.
DEFAULT_METRICS = {CROSS_ENTROPY: ("accuracy", "top5_accuracy"), "mse": ("mse", "mae"), "mae": ("mae", "mse")}
DEFAULT_METRICS_TEXT = ", ".join(
    f"{' and '.join(names)} for {loss}" for loss, names in DEFAULT_METRICS.items()
)
HINTS = {"crossentropy": CROSS_ENTROPY, "ce": CROSS_ENTROPY, "l2": "mse", "l1": "mae"}
SAMPLE_COUNTS = ("accuracy", "top5_accuracy")  # the built-in metrics that are a fraction of the samples
BUILT_IN_METRICS = (*SAMPLE_COUNTS, "mse", "mae")


def metric_names(loss: Any, names: Any) -> tuple[str, ...]:
    """Return the names of the metrics: `names`, or the default ones of a built-in loss."""
    if isinstance(names, list | tuple):
        return tuple(text for text in names if isinstance(text, str))
    return DEFAULT_METRICS.get(loss, ()) if isinstance(loss, str) else ()


def metric_name(text: str) -> str:
    """Return a metric's own name: `wer` for `wer`, `./scores.py:wer` and `pkg.mod:Scores.wer`."""
    return re.sub(r"\W+", "_", text.rpartition(":")[2].rpartition(".")[2])


def display_name_of(text: str) -> str:
    """Return how people read the name of a metric: `wer` for `./scores.py:wer` and `pkg.mod:wer`.

    Two metrics with the same last part are refused (`metric_key`), so no two names collide.
    """
    return re.sub(r"^\S+:", "", text)


def metric_key(text: str) -> str:
    """Return the metric key under which an evaluation logs the metric."""
    return f"{metrics.EVAL_PREFIX}{metric_name(text)}"


def default_metric(loss: Any, names: Any) -> str:
    """Return the metric that is compared by default: the first one, or the loss."""
    return next(iter(metric_names(loss, names)), LOSS)


def compared_key(loss: Any, names: Any, metric: Any) -> str:
    """Return the key of the compared metric, for checked options or values of a record."""
    return metric_key(metric if isinstance(metric, str) and metric else default_metric(loss, names))


def logged_keys(loss: Any, names: Any, metric: Any) -> frozenset[str]:
    """Return the keys that evaluations of this task log, and the key of the best value."""
    keys = {metric_key(text) for text in (LOSS, *metric_names(loss, names))}
    return frozenset(keys | {metrics.make_best_key(compared_key(loss, names, metric))})


def is_task_metric(key: str) -> bool:
    """Return whether a listed metric is logged by some tasks and not by others."""
    scores = [metric_key(name) for name in BUILT_IN_METRICS]
    return key in (*scores, *map(metrics.make_best_key, (*scores, metric_key(LOSS))))


def check_metrics(loss: str, names: Sequence[str] | None, metric: str | None) -> None:
    """Raise UserError if two metrics have one name, or the compared metric is none of them."""
    texts = metric_names(loss, names)
    known_names: dict[str, str] = {LOSS: "the loss, which is always recorded"}
    for text in texts:
        name = metric_name(text)
        if name in known_names:
            raise UserError(
                f"task.metrics={text!r}: has the same key {metric_key(text)} as {known_names[name]}; "
                "leave one out or rename one"
            )
        known_names[name] = repr(text)
    if metric is not None and metric not in texts and metric not in known_names:
        near = did_you_mean(metric, [*known_names], 0.5)
        hint = f"; {near}" if near else ""
        names_of_metrics = [name for name in known_names if name != LOSS]
        raise UserError(
            f"task.metric={metric!r}: expected one of {', '.join([*names_of_metrics, LOSS])}, or null{hint}"
        )
