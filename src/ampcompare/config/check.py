"""Which options go together, and what of them has no effect."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from itertools import pairwise

from ampcompare.config import task
from ampcompare.config.beside import PlanConfig
from ampcompare.config.canonical import has_no_effect
from ampcompare.config.schema import LEAVES, Config, PrecisionConfig
from ampcompare.data.sources import source_of
from ampcompare.errors import UserError
from ampcompare.plugins import left_out
from ampcompare.precision import backend_of
from ampcompare.precision.backends import REGISTRY, Backend


def check(config: Config) -> None:
    """Raise UserError for values that are fine alone and wrong together."""
    for wrong in _wrong(config):
        raise UserError(wrong)
    if config.backend in REGISTRY:  # what a plug-in declares is known when it is imported (`settle`)
        check_backend(config, REGISTRY[config.backend])


def _wrong(config: Config) -> Iterator[str]:
    optimizer, schedule, data, training = config.optimizer, config.schedule, config.data, config.training
    if optimizer.nesterov and not (optimizer.name == "sgd" and optimizer.momentum > 0):
        needs = "needs optimizer.name=sgd and optimizer.momentum above 0"
        yield f"optimizer.nesterov=true: {needs}; set them"
    if optimizer.momentum and optimizer.name != "sgd":
        todo = "set it to 0 or use optimizer.name=sgd"
        yield f"optimizer.momentum={optimizer.momentum:g}: only sgd has it; {todo}"
    if schedule.name == "multistep" and not schedule.milestones:
        needs = "needs schedule.milestones, epochs such as [100,150]; give them"
        yield f"schedule.name='multistep': {needs}"
    if schedule.milestones and schedule.name != "multistep":
        why = f"schedule.name={schedule.name} has none; leave it out, or use schedule.name=multistep"
        yield f"schedule.milestones={schedule.milestones}: {why}"
    for name, values, is_wrong, above in (
        ("mean", data.mean, False, ""),
        ("std", data.std, min(data.std, default=1) <= 0, " above 0"),
    ):
        if len(values) != 3 or is_wrong:
            yield f"data.{name}={values}: expected three numbers{above}, one per channel"
    source = source_of(data.source)
    if source.needs_root and data.root is None:
        needs = f"data.source={source.name} needs a {source.root}"
        yield f"data.root=None: {needs}; set data.root=PATH"
    task.check(config.task.loss, config.task.metrics, config.task.metric)
    if training.label_smoothing and config.task.loss != task.CROSS_ENTROPY:
        only = f"only task.loss={task.CROSS_ENTROPY} has it, and task.loss={config.task.loss!r} is given"
        yield f"training.label_smoothing={training.label_smoothing:g}: {only}; leave it out"
    if training.gradient_penalty and training.accumulate > 1:
        why = f"training.accumulate={training.accumulate} has several gradients, and the norm is of their sum"
        yield f"training.gradient_penalty={training.gradient_penalty:g}: {why}; use training.accumulate=1"
    yield from _wrong_scale(config.precision)
    yield from _wrong_plan(config.plan)
    yield from _wrong_execution(config)


def _wrong_scale(precision: PrecisionConfig) -> Iterator[str]:
    floor, ceiling = precision.min_loss_scale, precision.max_loss_scale
    if floor is not None:
        wrong = f"precision.min_loss_scale={floor:g}: expected at most precision"
        if ceiling is not None and floor > ceiling:
            yield f"{wrong}.max_loss_scale={ceiling:g}; lower it"
        if floor > precision.init_scale:
            yield f"{wrong}.init_scale={precision.init_scale:g}; lower it or raise init_scale"


def _wrong_plan(plan: PlanConfig) -> Iterator[str]:
    if (looks := plan.looks) is not None:
        if not looks or any(later <= earlier for earlier, later in pairwise(looks)):
            yield f"plan.looks={looks}: expected rising numbers of seeds, such as [3,6,10]"
        elif plan.max_seeds is not None and plan.max_seeds < looks[-1]:
            todo = "raise it, or leave out the looks beyond it"
            yield f"plan.max_seeds={plan.max_seeds}: plan.looks={looks} goes further; {todo}"


def _wrong_execution(config: Config) -> Iterator[str]:
    training, given = config.training, f"execution={config.execution!r}"
    if training.gradient_penalty and config.execution != "eager":
        why = "needs the gradient of a gradient, which this execution does not give"
        yield f"{given}: training.gradient_penalty={training.gradient_penalty:g} {why}; use execution=eager"
    if config.execution.endswith("_graph"):
        if training.accumulate > 1:
            why = "has more than one micro-batch in a step, the graph holds one"
            todo = "use execution=compile, or a larger batch_size"
            yield f"{given}: training.accumulate={training.accumulate} {why}; {todo}"
        if config.optimizer.fused is False:
            why = "other optimizers decide on the host"
            yield f"{given}: needs optimizer.fused=true, {why}; leave optimizer.fused out"


# What a backend has to be for an option of `precision`, and what is said of one that is not.
_NEEDS = {
    "precision.loss_scale": ("scales", "does not scale the loss"),
    "precision.min_loss_scale": ("bounded_scale", "has neither floor nor ceiling for the loss scale"),
    "precision.max_loss_scale": ("bounded_scale", "has neither floor nor ceiling for the loss scale"),
    "precision.keep_batchnorm_fp32": ("half_weights", "has fp32 weights, BatchNorm's too"),
}


def check_backend(config: Config, backend: Backend) -> None:
    """Raise UserError for options of `precision` that the backend does not take."""
    if backend.is_fp32:  # `remarks` says what has no effect: a comparison gives all its runs the same words
        return
    for key, (needs, why) in _NEEDS.items():
        value = config.value(key)
        if value != LEAVES[key].default and not getattr(backend, needs):
            raise UserError(f"{key}={_shown(value)}: backend={config.backend} {why}; leave it out")


def settle(config: Config) -> None:
    """Ask the backend. What is installed and cannot be had is said on stderr. Raises UserError for a backend
    that cannot be had, and for options that it does not take.
    """
    doors = [
        leaf.meta for leaf in LEAVES.values() if leaf.meta["door"] and os.environ.get("RANK", "0") == "0"
    ]
    for line in (line for meta in doors for line in left_out(meta["door"], meta["choices"])):
        sys.stderr.write(f"warning: {line}\n")
    check_backend(config, backend_of(config.backend))


def remarks(config: Config) -> list[str]:
    """What is to be said of options that were given and have no effect, a line each."""
    backend, network, idle = config.backend, config.model.name, {}
    if keys := [key for key in LEAVES if has_no_effect(key, backend)]:
        idle[f"backend={backend} {'is fp32' if REGISTRY[backend].is_fp32 else 'does not scale the loss'}"] = (
            keys
        )
    if network not in LEAVES["model.name"].meta["choices"]:
        idle[f"model.name={network} is none of our networks"] = ["model.stem", "model.zero_init_residual"]
    found = []
    for why, keys in idle.items():
        told = [f"{k}={_shown(config.value(k))}" for k in keys if config.value(k) != LEAVES[k].default]
        if told:
            found.append(f"{', '.join(told)} {'has' if len(told) == 1 else 'have'} no effect: {why}")
    return found


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value).lower()
