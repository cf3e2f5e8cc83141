"""`ampcompare why diff KEY=A,B`: which of two ways to take a step is nearer to fp64.

The same step is taken in both ways and in fp64. Judged are the loss, the gradients of each module's own
parameters, and all updates together. One way is less accurate if its error is more than FACTOR times as large
as the larger of the other way's error and of one rounding.

If an error exceeds this bound, both steps are repeated from slightly changed weights, because a single error
may be small by chance. The step in fp64 is repeated with random rounding, because a sum that cancels out
amplifies rounding. The median error then has to be more than FACTOR times as large as the root mean square of
each of them.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ampcompare.data.batch import count_samples
from ampcompare.precision import get_backend
from ampcompare.system.device import allow_tf32
from ampcompare.why.capture import TakenStep
from ampcompare.why.errors import relative_error
from ampcompare.why.fp64_reference import fp64_arithmetic
from ampcompare.why.nonfinite import NETWORK
from ampcompare.why.own_errors import (
    GRADIENT,
    OUTPUT,
    PASSED,
    WEIGHTS,
    measure_own_errors,
    weight_gradient_error,
)
from ampcompare.why.step import StepState
from ampcompare.why.step_comparison import StepComparison
from ampcompare.why.value_pair import ValuePair

FACTOR = 4
REPETITIONS = 4  # from changed weights, before a way is called less accurate
LOSS, GRADIENTS, UPDATES = "loss", "gradients", "updates"
# What a module computes, in messages.
VALUES = {
    OUTPUT: "its output",
    PASSED: "what it passes to its modules",
    GRADIENT: "the gradient of its input",
    WEIGHTS: "the gradients of its weights",
}


class Quantity(NamedTuple):
    """What is judged: the loss, the gradients of one module's own parameters, or all updates."""

    part: str
    module: str


@dataclass(frozen=True)
class GroupErrors:
    """The errors of both ways for a group of parameters, relative to fp64.

    Attributes:
        part: `loss`, `gradients` or `updates`.
        group: The first part of the parameters' names; "" for the loss, or for all parameters.
        errors: The errors of the two ways.
        worst: The parameter with the largest error in either way; None for the loss.
    """

    part: str
    group: str
    errors: tuple[float, float]
    worst: str | None = None
    worst_errors: tuple[float, float] | None = None


@dataclass(frozen=True)
class Fault:
    """A quantity that is less accurate in one way.

    Attributes:
        variant: The index of the less accurate way, 0 or 1.
        part: `loss`, `gradients` or `updates`.
        module: The module whose parameters these are; "" for the network itself, the loss, and the updates.
        errors: Median error of the less accurate way, and root mean square of the other way's errors.
        times: How many times as large the error is as the other way's, or as one rounding.
        place: The module whose own error is too large, alone and with the same inputs; None where none is.
        value: The value of the module that is wrong, such as `its output`.
    """

    variant: int
    part: str
    module: str
    errors: tuple[float, float]
    times: float
    place: str | None = None
    value: str | None = None


@dataclass(frozen=True)
class AccuracyComparison:
    """Two ways to take a step, compared with fp64.

    Attributes:
        option: The option that differs.
        names: How the two ways are named.
        backends: The labels of the backends of the two ways.
        network: The network's name.
        data: The data source.
        samples: Number of samples in the step.
        unit_roundoff: The relative error of one rounding, of the first way's dtype.
        losses: The losses of the two ways.
        scales: The loss scales.
        skipped: Which of the two skipped the optimizer step.
        groups: The errors by group; the group "" is the whole network.
        not_judged: Parts whose values are inf or nan in both ways, or in fp64.
        left_out: The modules whose random draws differ; they ran without them.
        fault: The worst quantity of the less accurate way; None if no way is less accurate.
    """

    option: str
    names: tuple[str, str]
    backends: tuple[str, str]
    network: str
    data: str
    samples: int
    unit_roundoff: float
    losses: tuple[float, float]
    loss_fp64: float
    scales: tuple[float, float]
    skipped: tuple[bool, bool]
    groups: list[GroupErrors]
    not_judged: list[str]
    left_out: list[str]
    fault: Fault | None


def compare_accuracy(state: StepState, pair: ValuePair) -> AccuracyComparison:
    """Take a step in two ways and in fp64, and compare them.

    Args:
        pair: The option that differs, with its two values.

    Raises:
        UserError: If fp64 does not fit into memory, or if a step cannot be compiled.
    """
    allow_tf32(False)  # a backend that uses TF32 turns it on for its own step
    return judge(StepComparison(state, pair))


def judge(comparison: StepComparison) -> AccuracyComparison:
    """Return the errors of the two ways, and which way is less accurate."""
    steps = comparison.take()
    first, second, fp64 = steps
    config = comparison.state.config
    unit = comparison.unit_roundoff
    fault = find_fault(comparison)
    judged_parts = {quantity.part for quantity in _measure(steps, unit)}
    first_backend, second_backend = (get_backend(way.backend) for way in comparison.configs)
    return AccuracyComparison(
        option=comparison.pair.key,
        names=comparison.names,
        backends=(first_backend.label, second_backend.label),
        network=config.model.name,
        data=config.data.source,
        samples=sum(count_samples(inputs) for inputs, _ in comparison.batches),
        unit_roundoff=unit,
        losses=(first.loss, second.loss),
        loss_fp64=fp64.loss,
        scales=(first.scale, second.scale),
        skipped=(first.skipped, second.skipped),
        groups=_group_errors(steps, unit),
        not_judged=[part for part in (LOSS, GRADIENTS, UPDATES) if part not in judged_parts],
        left_out=[name or NETWORK for name in comparison.left_out],
        fault=fault,
    )


def find_fault(comparison: StepComparison) -> Fault | None:
    """Return the worst quantity of the way that is less accurate, and where the way departs from fp64."""
    unit = comparison.unit_roundoff
    errors = _measure(comparison.take(), unit)
    if not any(exceeds([pair], index, unit) for pair in errors.values() for index in (0, 1)):
        return None
    starts = [comparison.weights]
    starts += [_change_weights(comparison.weights, unit, seed) for seed in range(REPETITIONS)]
    draws: dict[Quantity, list[Errors]] = defaultdict(list)
    for weights in starts:
        first, second, fp64 = comparison.take(weights)
        rounded = comparison.take_rounded(weights)
        for quantity, measured in _measure([first, second, rounded, fp64], unit).items():
            draws[quantity].append(measured)
    for index in (1, 0):
        bad = {quantity: each for quantity, each in draws.items() if exceeds(each, index, unit)}
        if bad:
            return _name_fault(comparison, index, bad)
    return None


def _name_fault(
    comparison: StepComparison,
    index: int,
    bad: Mapping[Quantity, Sequence[Errors]],
) -> Fault:
    """Return the worst of the bad quantities of a way, and the module that causes it.

    Args:
        index: The less accurate way, 0 or 1.
        bad: Its quantities that are less accurate, with the errors in several draws.
    """
    unit = comparison.unit_roundoff
    # A fault of the loss or of the gradients shows in the updates, too.
    shown = [quantity for quantity in bad if quantity.part != UPDATES] or [*bad]
    sizes = {quantity: _sizes(bad[quantity], index) for quantity in shown}
    times = {quantity: own / max(other, unit) for quantity, (own, other) in sizes.items()}
    worst = max(times, key=lambda quantity: times[quantity])
    fault = Fault(index, worst.part, worst.module, sizes[worst], times[worst])
    location = None if worst.part == UPDATES else _locate(comparison, index)
    if location is None:
        return fault
    place, value = location
    return dataclasses.replace(fault, place=place, value=value)


# Of the two ways, and of the step in fp64 with random rounding, where it is known.
Errors = tuple[float, ...]


def exceeds(draws: Sequence[Errors], index: int, unit: float) -> bool:
    """Return whether the errors of a way are above what rounding and the other way explain.

    Args:
        draws: The errors in several draws. Of the way itself the median counts; of the other way and of
            random rounding, the root mean square.
        index: The way, 0 or 1.
        unit: The relative error of one rounding, which counts if it is larger.
    """
    own, other = _sizes(draws, index)
    amplified = _root_mean_square([draw[2] for draw in draws if len(draw) > 2])
    return own > FACTOR * max(unit, other, amplified)


def _sizes(draws: Sequence[Errors], index: int) -> tuple[float, float]:
    """Return the median error of a way, and the root mean square of the other way's errors."""
    own = statistics.median(draw[index] for draw in draws)
    return own, _root_mean_square([draw[1 - index] for draw in draws])


def _root_mean_square(values: Sequence[float]) -> float:
    return statistics.fmean(value**2 for value in values) ** 0.5 if values else 0.0


def _change_weights(weights: Sequence[Tensor], unit: float, seed: int) -> list[Tensor]:
    """Return the weights with random changes of a few roundings, so that a step rounds in other places."""
    generator = torch.Generator().manual_seed(seed)
    changed = []
    for weight in weights:
        if not weight.is_floating_point():
            changed.append(weight)
            continue
        noise = torch.rand(weight.shape, generator=generator, dtype=torch.float64) * 2 - 1
        factor = (1 + FACTOR * unit * noise).to(weight.device)
        changed.append((weight.double() * factor).to(weight.dtype))
    return changed


def _measure(steps: Sequence[TakenStep], unit: float) -> dict[Quantity, Errors]:
    """Return the errors of steps for every quantity that is finite in fp64 and in one of the two ways.

    Args:
        steps: The steps; the last one is that in fp64.
        unit: The relative error of one rounding.
    """
    *ways, fp64 = steps
    errors: dict[Quantity, Errors] = {}
    groups = [
        *_parameters_by(GRADIENTS, fp64, lambda name: name.rpartition(".")[0], steps),
        # The update of a single number may be all wrong, as Adam's is where the gradient is almost 0.
        *_parameters_by(UPDATES, fp64, lambda name: "", steps),
    ]
    for (part, module), names in groups:
        whole = _values_of(fp64, part)
        reference = [whole[name] for name in names]
        floor = unit * _rms(whole.values()) * sum(tensor.numel() for tensor in reference) ** 0.5
        errors[Quantity(part, module)] = tuple(
            _error_of([_values_of(way, part).get(name) for name in names], reference, floor) for way in ways
        )
    errors[Quantity(LOSS, "")] = tuple(_loss_error(way, fp64) for way in ways)
    return {q: e for q, e in errors.items() if not math.isnan(sum(e)) and min(e[:2]) < math.inf}


def _error_of(tensors: Sequence[Tensor | None], reference: Sequence[Tensor], floor: float = 0.0) -> float:
    """Return the size of an error; None counts as zeros. nan where the reference is not finite."""
    known = [torch.zeros_like(r) if t is None else t for t, r in zip(tensors, reference, strict=True)]
    error = relative_error(known, reference, floor=floor)
    return math.nan if error is None else error.size


def _loss_error(step: TakenStep, fp64: TakenStep) -> float:
    return _error_of([_as_tensor(step.loss)], [_as_tensor(fp64.loss)])


def _as_tensor(number: float) -> Tensor:
    return torch.tensor(number, dtype=torch.float64)


def _values_of(step: TakenStep, part: str) -> dict[str, Tensor]:
    return step.gradients if part == GRADIENTS else step.updates


def _parameters_by(
    part: str, fp64: TakenStep, group_of: Callable[[str], str], steps: Sequence[TakenStep]
) -> list[tuple[tuple[str, str], list[str]]]:
    """Return the parameters of each group, by part and group. A skipped step has no updates."""
    if part == UPDATES and any(step.skipped for step in steps):
        return []
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in fp64.gradients:
        groups[part, group_of(name)].append(name)
    return [*groups.items()]


def _rms(tensors: Iterable[Tensor]) -> float:
    """Return the root mean square of all elements."""
    square = size = 0.0
    for tensor in tensors:
        square += float(tensor.abs().double().square().sum())  # sync: a diagnostic step, not a training loop
        size += tensor.numel()
    return (square / size) ** 0.5 if size else 0.0


def _group_errors(steps: Sequence[TakenStep], unit: float) -> list[GroupErrors]:
    """Return the errors by group: the loss, all parameters together, and the groups of the network."""
    first, second, fp64 = steps
    rows = [GroupErrors(LOSS, "", (_loss_error(first, fp64), _loss_error(second, fp64)))]
    for part in (GRADIENTS, UPDATES):
        groups = [
            *_parameters_by(part, fp64, lambda name: "", steps),
            *_parameters_by(part, fp64, lambda name: name.partition(".")[0], steps),
        ]
        rows += [_errors_of_group(part, group, names, steps, unit) for (_, group), names in groups]
    return rows


def _errors_of_group(
    part: str, group: str, names: Sequence[str], steps: Sequence[TakenStep], unit: float
) -> GroupErrors:
    """Return the errors of a group of parameters, and of the worst parameter in it."""
    first, second, fp64 = (_values_of(step, part) for step in steps)
    floor = unit * _rms(fp64.values())

    def error(values: Mapping[str, Tensor], own_names: Sequence[str], floor: float = 0.0) -> float:
        return _error_of([values.get(n) for n in own_names], [fp64[n] for n in own_names], floor)

    each = {}
    for name in names:
        own_floor = floor * fp64[name].numel() ** 0.5
        each[name] = error(first, [name], own_floor), error(second, [name], own_floor)
    worst = max(each, key=lambda name: max(each[name]))
    return GroupErrors(part, group, (error(first, names), error(second, names)), worst, each[worst])


def _locate(comparison: StepComparison, index: int) -> tuple[str, str] | None:
    """Return the module whose own error is too large in a way, and the value that is wrong.

    Args:
        index: The less accurate way, 0 or 1.
    """
    reference, model = comparison.take_fp64_calls()
    of_reference = measure_own_errors(reference, reference, model, fp64_arithmetic)
    ways: list[dict[tuple[str, str], float]] = []
    for number in (0, 1):
        step = comparison.take_calls(number)
        own = measure_own_errors(step, reference, model, fp64_arithmetic, of_reference)
        sizes: dict[tuple[str, str], float] = {}
        for (name, _), errors in own.errors.items():
            for value, error in errors.items():
                sizes[name, value] = max(error.size, sizes.get((name, value), 0.0))
            of_weights = weight_gradient_error(name, step, own, reference, of_reference)
            if of_weights is not None:
                sizes[name, WEIGHTS] = of_weights.size
        ways.append(sizes)
    unit = comparison.unit_roundoff
    times = {
        key: size / max(unit, ways[1 - index][key])
        for key, size in ways[index].items()
        if ways[1 - index].get(key, math.inf) < math.inf  # where both are inf, none is worse
    }
    name, value = max(times, key=lambda key: times[key], default=("", ""))
    if not times.get((name, value), 0.0) > FACTOR:
        return None
    return name, VALUES[value]
