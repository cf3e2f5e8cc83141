"""Rules that join options: values that exclude each other, that a backend refuses, that have no effect."""

import math
from collections.abc import Iterator
from itertools import pairwise

from ampcompare.config import task_spec
from ampcompare.config.schema import BUILT_IN_ONLY, OPTIONS, TF32, Config, has_no_effect
from ampcompare.data.sources import get_source
from ampcompare.errors import UserError
from ampcompare.precision import get_backend
from ampcompare.precision.registry import NO_KEEP_FP32_UNDER_TF32, REGISTRY, BackendInfo


def validate(config: Config) -> None:
    """Raise UserError for values that are allowed alone and wrong together."""
    for key, why in (*_training_conflicts(config), *_data_conflicts(config), *_plan_conflicts(config)):
        value = config.value(key)
        shown = _shown(value) if isinstance(value, bool | float) else repr(value)
        raise UserError(f"{key}={shown}: {why}")
    task_spec.check_metrics(config.task.loss, config.task.metrics, config.task.metric)
    if config.backend in REGISTRY:  # a plug-in is imported later, in `resolve_backend`
        check_backend(config, REGISTRY[config.backend])


def _training_conflicts(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the key of an option that conflicts with others, and why."""
    yield from _optimizer_conflicts(config)
    yield from _execution_conflicts(config)
    training = config.training
    if training.label_smoothing and config.task.loss != task_spec.CROSS_ENTROPY:
        yield (
            "training.label_smoothing",
            f"only task.loss={task_spec.CROSS_ENTROPY} has it, this run has task.loss={config.task.loss!r}; "
            "leave it out",
        )
    if training.gradient_penalty and training.accumulate > 1:
        yield (
            "training.gradient_penalty",
            f"training.accumulate={training.accumulate} never has the gradient of the whole step at once; "
            "use training.accumulate=1",
        )
    precision = config.precision
    floor = precision.min_loss_scale
    ceiling = precision.max_loss_scale
    if floor is not None and ceiling is not None and floor > ceiling:
        yield (
            "precision.min_loss_scale",
            f"expected at most precision.max_loss_scale={ceiling:g}; lower it",
        )
    if floor is not None and floor > precision.init_scale:
        yield (
            "precision.min_loss_scale",
            f"expected at most precision.init_scale={precision.init_scale:g}; lower it or raise init_scale",
        )


def _optimizer_conflicts(config: Config) -> Iterator[tuple[str, str]]:
    optimizer = config.optimizer
    schedule = config.schedule
    if optimizer.nesterov and not (optimizer.name == "sgd" and optimizer.momentum > 0):
        yield "optimizer.nesterov", "needs optimizer.name=sgd and optimizer.momentum above 0; set them"
    if optimizer.momentum and optimizer.name != "sgd":
        recipe = ""
        if config.recipe == optimizer.name:
            recipe = f", and recipe={config.recipe} trains with {optimizer.name}"
        yield (
            "optimizer.momentum",
            f"only optimizer.name=sgd has momentum{recipe}; "
            "set optimizer.momentum=0 or use optimizer.name=sgd",
        )
    if optimizer.name == "sgd" and optimizer.eps != OPTIONS["optimizer.eps"].default:
        yield (
            "optimizer.eps",
            "optimizer.name=sgd has no eps; leave it out, or use optimizer.name=adam or optimizer.name=adamw",
        )
    if schedule.name == "multistep" and not schedule.milestones:
        yield (
            "schedule.name",
            "multistep needs milestones, in epochs; set them, such as schedule.milestones=[100,150]",
        )
    if schedule.milestones and schedule.name != "multistep":
        yield (
            "schedule.milestones",
            f"schedule.name={schedule.name} has no milestones; leave it out, or use schedule.name=multistep",
        )


def _execution_conflicts(config: Config) -> Iterator[tuple[str, str]]:
    training = config.training
    is_graph = config.execution.endswith("_graph")
    if training.gradient_penalty and config.execution != "eager":
        yield (
            "execution",
            f"training.gradient_penalty={training.gradient_penalty:g} needs second derivatives, "
            "which this execution does not support; use execution=eager",
        )
    if is_graph and training.accumulate > 1:
        yield (
            "execution",
            f"training.accumulate={training.accumulate} needs several micro-batches per step, "
            "but a CUDA graph holds one; use execution=compile, or a larger batch_size",
        )
    if is_graph and config.optimizer.fused is False:
        yield (
            "execution",
            "a CUDA graph needs optimizer.fused=true, which decides on the GPU whether to skip a step; "
            "leave optimizer.fused out",
        )


def _data_conflicts(config: Config) -> Iterator[tuple[str, str]]:
    data = config.data
    source = get_source(data.source)
    if len(data.mean) != 3:
        yield "data.mean", "expected three numbers, one per channel"
    if len(data.std) != 3 or min(data.std) <= 0:
        yield "data.std", "expected three numbers above 0, one per channel"
    if source.needs_root and data.root is None:
        yield "data.root", f"data.source={source.name} needs {source.root}; set data.root=PATH"


def _plan_conflicts(config: Config) -> Iterator[tuple[str, str]]:
    looks = config.plan.looks
    shares = config.plan.shares
    max_seeds = config.plan.max_seeds
    if looks is not None and (not looks or any(later <= earlier for earlier, later in pairwise(looks))):
        yield "plan.looks", "expected increasing numbers of seeds, such as [5,10]"
    if shares is not None and len(shares) != len(looks or ()):
        yield "plan.shares", f"expected one fraction for each of plan.looks={looks}"
    elif shares is not None and not math.isclose(sum(shares), 1.0, abs_tol=1e-9):
        yield "plan.shares", f"the fractions add up to {sum(shares):g}; they must add up to 1"
    if looks and max_seeds is not None and max_seeds < looks[-1]:
        yield (
            "plan.max_seeds",
            f"the last look of plan.looks={looks} needs more seeds; "
            "raise plan.max_seeds, or leave out the later looks",
        )


# Per option of `precision`: the attribute that a backend needs, and the message if it lacks it.
_NEEDS = {
    "precision.loss_scale": ("scales", "does not scale the loss"),
    "precision.min_loss_scale": ("bounded_scale", "has no lower limit of the loss scale"),
    "precision.max_loss_scale": ("bounded_scale", "has no upper limit of the loss scale"),
    "precision.keep_batchnorm_fp32": ("half_weights", "keeps all weights in fp32, those of BatchNorm too"),
}


def check_backend(config: Config, backend: BackendInfo) -> None:
    """Raise UserError for options of `precision` that the backend does not take."""
    if config.tf32 and backend.is_strict_fp32:
        raise UserError(f"backend={config.backend!r} tf32=True: strict fp32 has no TF32; use backend=tf32")
    names = config.precision.keep_fp32
    if backend.is_fp32 and backend.uses_tf32 and names:
        raise UserError(
            f"precision.keep_fp32={_shown(names)}: {NO_KEEP_FP32_UNDER_TF32.format(config.backend)}"
        )
    if backend.is_fp32:  # `ignored_options` reports them: a comparison gives all its runs the same overrides
        return
    for key, (attribute, lack) in _NEEDS.items():
        value = config.value(key)
        if value != OPTIONS[key].default and not getattr(backend, attribute):
            raise UserError(f"{key}={_shown(value)}: backend={config.backend} {lack}; leave it out")


def resolve_backend(config: Config) -> None:
    """Load the backend and check its options.

    Raises:
        UserError: The backend cannot be loaded, or does not take an option.
    """
    check_backend(config, get_backend(config.backend))


def ignored_options(config: Config) -> list[str]:
    """Return a line for each reason why options that were given have no effect."""
    backend = config.backend
    network = config.model.name
    is_fp32 = backend in REGISTRY and REGISTRY[backend].is_fp32
    by_reason: dict[str, list[str]] = {}
    for key, spec in OPTIONS.items():
        value = config.value(key)
        if value == spec.default or not has_no_effect(key, backend, network):
            continue
        if key in BUILT_IN_ONLY:
            cause = f"model.name={network} is not a built-in network"
        elif key == TF32:
            cause = f"backend={backend} always uses TF32"
        elif is_fp32:
            cause = f"backend={backend} is fp32"
        else:
            cause = f"backend={backend} does not scale the loss"
        by_reason.setdefault(cause, []).append(f"{key}={_shown(value)}")
    return [
        f"{', '.join(given)} {'has' if len(given) == 1 else 'have'} no effect: {cause}"
        for cause, given in by_reason.items()
    ]


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value).lower()
