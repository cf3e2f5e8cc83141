"""Which options go together, and what of them has no effect."""

from __future__ import annotations

import os
import sys
from itertools import pairwise

from ampcompare.config import task
from ampcompare.config.beside import PlanConfig
from ampcompare.config.canonical import has_no_effect
from ampcompare.config.schema import LEAVES, Config, PrecisionConfig, ScheduleConfig, TrainingConfig
from ampcompare.data.sources import source_of
from ampcompare.errors import UserError
from ampcompare.plugins import left_out
from ampcompare.precision import backend_of
from ampcompare.precision.backends import REGISTRY, Backend


def check(config: Config) -> None:
    """Raise UserError for values that are fine alone and wrong together."""
    _check_optimizer(config)
    _check_schedule(config.schedule)
    _check_data(config)
    _check_task(config)
    _check_scale_bounds(config.precision)
    _check_plan(config.plan)
    _check_penalty(config.training)
    if config.execution != "eager":
        _check_execution(config)
    if config.backend in REGISTRY:  # what a plug-in declares is known when it is imported (`settle`)
        check_backend(config, REGISTRY[config.backend])


def _check_optimizer(config: Config) -> None:
    optimizer = config.optimizer
    if optimizer.nesterov and not (optimizer.name == "sgd" and optimizer.momentum > 0):
        needs = "needs optimizer.name=sgd and optimizer.momentum above 0"
        raise UserError(f"optimizer.nesterov=true: {needs}; set them")
    if optimizer.momentum and optimizer.name != "sgd":
        todo = "set it to 0 or use optimizer.name=sgd"
        raise UserError(f"optimizer.momentum={optimizer.momentum:g}: only sgd has it; {todo}")


def _check_schedule(schedule: ScheduleConfig) -> None:
    milestones, is_stepped = schedule.milestones, schedule.name == "multistep"
    if is_stepped and not milestones:
        needs = "needs schedule.milestones, epochs such as [100,150]; give them"
        raise UserError(f"schedule.name='multistep': {needs}")
    if milestones and not is_stepped:
        todo = "leave it out, or use schedule.name=multistep"
        raise UserError(f"schedule.milestones={milestones}: schedule.name={schedule.name} has none; {todo}")


def _check_data(config: Config) -> None:
    data = config.data
    for name in ("mean", "std"):
        values = getattr(data, name)
        if len(values) != 3 or (name == "std" and min(values) <= 0):
            above = " above 0" if name == "std" else ""
            raise UserError(f"data.{name}={values}: expected three numbers{above}, one per channel")
    source = source_of(data.source)
    if source.needs_root and data.root is None:
        needs = f"data.source={source.name} needs a {source.root}"
        raise UserError(f"data.root=None: {needs}; set data.root=PATH")


def _check_task(config: Config) -> None:
    of, smoothing = config.task, config.training.label_smoothing
    task.check(of.loss, of.metrics, of.metric)
    if smoothing and of.loss != task.CROSS_ENTROPY:
        only = f"only task.loss={task.CROSS_ENTROPY} has it, and task.loss={of.loss!r} is given"
        raise UserError(f"training.label_smoothing={smoothing:g}: {only}; leave it out")


def _check_scale_bounds(precision: PrecisionConfig) -> None:
    floor, ceiling = precision.min_loss_scale, precision.max_loss_scale
    if floor is None:
        return
    wrong = f"precision.min_loss_scale={floor:g}: expected at most precision"
    if ceiling is not None and floor > ceiling:
        raise UserError(f"{wrong}.max_loss_scale={ceiling:g}; lower it")
    if floor > precision.init_scale:
        raise UserError(f"{wrong}.init_scale={precision.init_scale:g}; lower it or raise init_scale")


def _check_plan(plan: PlanConfig) -> None:
    looks = plan.looks
    if looks is None:
        return
    if not looks or any(later <= earlier for earlier, later in pairwise(looks)):
        raise UserError(f"plan.looks={looks}: expected rising numbers of seeds, such as [3,6,10]")
    if plan.max_seeds is not None and plan.max_seeds < looks[-1]:
        todo = "raise it, or leave out the looks beyond it"
        raise UserError(f"plan.max_seeds={plan.max_seeds}: plan.looks={looks} goes further; {todo}")


def _check_penalty(training: TrainingConfig) -> None:
    penalty = training.gradient_penalty
    if penalty and training.accumulate > 1:
        why = f"training.accumulate={training.accumulate} has several gradients, and the norm is of their sum"
        raise UserError(f"training.gradient_penalty={penalty:g}: {why}; use training.accumulate=1")


def _check_execution(config: Config) -> None:
    training, given = config.training, f"execution={config.execution!r}"
    is_graph = config.execution.endswith("_graph")
    if training.gradient_penalty:
        raise UserError(
            f"{given}: training.gradient_penalty={training.gradient_penalty:g} needs the gradient of a "
            "gradient, which this execution does not give; use execution=eager"
        )
    if is_graph and training.accumulate > 1:
        raise UserError(
            f"{given}: training.accumulate={training.accumulate} has more than one micro-batch in a step, "
            "the graph holds one; use execution=compile, or a larger batch_size"
        )
    if is_graph and config.optimizer.fused is False:
        why = "other optimizers decide on the host"
        raise UserError(f"{given}: needs optimizer.fused=true, {why}; leave optimizer.fused out")


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
    if os.environ.get("RANK", "0") == "0":
        doors = [(leaf.meta["door"], leaf.meta["choices"]) for leaf in LEAVES.values() if leaf.meta["door"]]
        for line in (line for door, built_in in doors for line in left_out(door, built_in)):
            sys.stderr.write(f"warning: {line}\n")
    check_backend(config, backend_of(config.backend))


def remarks(config: Config) -> list[str]:
    """What is to be said of options that were given and have no effect, a line each."""
    backend, network = config.backend, config.model.name
    found = []
    if idle := [key for key in LEAVES if has_no_effect(key, backend)]:
        is_fp32 = REGISTRY[backend].is_fp32
        why = f"backend={backend} {'is fp32' if is_fp32 else 'does not scale the loss'}"
        found += _without_effect(config, idle, why)
    if network not in LEAVES["model.name"].meta["choices"]:
        why = f"model.name={network} is none of our networks"
        found += _without_effect(config, ["model.stem", "model.zero_init_residual"], why)
    return found


def _without_effect(config: Config, keys: list[str], why: str) -> list[str]:
    given = [key for key in keys if config.value(key) != LEAVES[key].default]
    told = ", ".join(f"{key}={_shown(config.value(key))}" for key in given)
    return [f"{told} {'has' if len(given) == 1 else 'have'} no effect: {why}"] if given else []


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value).lower()
