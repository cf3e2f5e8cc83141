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
from ampcompare.why.errors import flat_in_fp64, relative_error
from ampcompare.why.fp64_reference import fp64_arithmetic
from ampcompare.why.nonfinite import NETWORK
from ampcompare.why.own_errors import (
    GRADIENT,
    OUTPUT,
    PASSED,
    WEIGHTS,
    OwnErrors,
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


# Of the two ways, and of the step in fp64 with random rounding, where it is known.
Errors = tuple[float, ...]


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
    errors: Errors
    worst: str | None = None
    worst_errors: Errors | None = None


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
    comparison = StepComparison(state, pair)
    steps = comparison.take()
    first, second, fp64 = steps
    config = state.config
    errors = StepErrors(steps, comparison.unit_roundoff)
    judged = _measure(errors)
    judged_parts = {quantity.part for quantity in judged}
    first_backend, second_backend = (get_backend(way.backend) for way in comparison.configs)
    return AccuracyComparison(
        option=pair.key,
        names=comparison.names,
        backends=(first_backend.label, second_backend.label),
        network=config.model.name,
        data=config.data.source,
        samples=sum(count_samples(inputs) for inputs, _ in comparison.batches),
        unit_roundoff=comparison.unit_roundoff,
        losses=(first.loss, second.loss),
        loss_fp64=fp64.loss,
        scales=(first.scale, second.scale),
        skipped=(first.skipped, second.skipped),
        groups=_group_errors(errors),
        not_judged=[part for part in (LOSS, GRADIENTS, UPDATES) if part not in judged_parts],
        left_out=[name or NETWORK for name in comparison.left_out],
        fault=judge(comparison, judged),
    )


class StepErrors:
    """The errors of steps relative to the same step in fp64.

    Args:
        steps: The steps; the last one is that in fp64.
        unit: The relative error of one rounding.
    """

    def __init__(self, steps: Sequence[TakenStep], unit: float) -> None:
        *self._ways, self._fp64 = steps
        self._has_updates = not any(step.skipped for step in steps)
        # Where a gradient cancels out, its rounding errors are those of other gradients.
        self._floors = {
            part: unit * _root_mean_square(_values_of(self._fp64, part)) for part in (GRADIENTS, UPDATES)
        }

    def list_parameters(self, part: str) -> list[str]:
        """Return the names of the parameters with a gradient, or with an update: a skipped step has none."""
        return [*self._fp64.gradients] if part == GRADIENTS or self._has_updates else []

    def of_loss(self) -> Errors:
        """Return the error of the loss in each way; nan where it is not finite in fp64."""
        *losses, fp64 = (torch.tensor(step.loss, dtype=torch.float64) for step in (*self._ways, self._fp64))
        return tuple(_error_of([loss], [fp64]) for loss in losses)

    def of_parameters(self, part: str, names: Sequence[str]) -> Errors:
        """Return the error of parameters together in each way; nan where none is finite in fp64."""
        reference = [_values_of(self._fp64, part)[name] for name in names]
        floor = self._floors[part] * sum(tensor.numel() for tensor in reference) ** 0.5
        values = [[_values_of(way, part).get(name) for name in names] for way in self._ways]
        return tuple(_error_of(of_way, reference, floor) for of_way in values)


def _values_of(step: TakenStep, part: str) -> dict[str, Tensor]:
    return step.gradients if part == GRADIENTS else step.updates


def _error_of(tensors: Sequence[Tensor | None], reference: Sequence[Tensor], floor: float = 0.0) -> float:
    """Return the size of an error; None counts as zeros. nan where the reference is not finite."""
    known = [torch.zeros_like(r) if t is None else t for t, r in zip(tensors, reference, strict=True)]
    error = relative_error(known, reference, floor=floor)
    return math.nan if error is None else error.size


def _root_mean_square(tensors: Mapping[str, Tensor]) -> float:
    numbers = [flat_in_fp64(tensor) for tensor in tensors.values()]
    return float(torch.cat(numbers).square().mean() ** 0.5) if numbers else 0.0


def _measure(errors: StepErrors) -> dict[Quantity, Errors]:
    """Return the errors of every quantity that is finite in fp64 and in one of the two ways."""
    measured = {Quantity(LOSS, ""): errors.of_loss()}
    # The update of a single number may be all wrong, as Adam's is where the gradient is almost 0.
    for part, owner in ((GRADIENTS, lambda name: name.rpartition(".")[0]), (UPDATES, lambda name: "")):
        for module, names in _group(errors.list_parameters(part), owner):
            measured[Quantity(part, module)] = errors.of_parameters(part, names)
    return {q: e for q, e in measured.items() if not math.isnan(sum(e)) and min(e[:2]) < math.inf}


def _group_errors(errors: StepErrors) -> list[GroupErrors]:
    """Return the errors by group: the loss, all parameters together, and the groups of the network."""
    rows = [GroupErrors(LOSS, "", errors.of_loss())]
    for part in (GRADIENTS, UPDATES):
        every = errors.list_parameters(part)
        for group, names in (
            *_group(every, lambda name: ""),
            *_group(every, lambda name: name.partition(".")[0]),
        ):
            each = {name: errors.of_parameters(part, [name]) for name in names}
            worst = max(each, key=lambda name: max(each[name]))
            rows.append(GroupErrors(part, group, errors.of_parameters(part, names), worst, each[worst]))
    return rows


def _group(names: Iterable[str], key: Callable[[str], str]) -> list[tuple[str, list[str]]]:
    """Return the names by their key, in the order of the first of each."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[key(name)].append(name)
    return [*groups.items()]


def judge(comparison: StepComparison, first_errors: Mapping[Quantity, Errors]) -> Fault | None:
    """Return the worst quantity of the way that is less accurate, and where the way departs from fp64.

    Args:
        first_errors: The errors of the steps from the weights as they are.
    """
    unit = comparison.unit_roundoff
    if not any(exceeds([each], index, unit) for each in first_errors.values() for index in (0, 1)):
        return None
    starts = [comparison.weights]
    starts += [_change_weights(comparison.weights, unit, seed) for seed in range(REPETITIONS)]
    draws: dict[Quantity, list[Errors]] = defaultdict(list)
    for weights in starts:
        first, second, fp64 = comparison.take(weights)
        rounded = comparison.take_rounded(weights)
        for quantity, errors in _measure(StepErrors([first, second, rounded, fp64], unit)).items():
            draws[quantity].append(errors)
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
    location = None if worst.part == UPDATES else _locate(comparison, index)
    place, value = location or (None, None)
    return Fault(index, worst.part, worst.module, sizes[worst], times[worst], place, value)


def exceeds(draws: Sequence[Errors], index: int, unit: float) -> bool:
    """Return whether the errors of a way are above what rounding and the other way explain.

    Args:
        draws: The errors in several draws. Of the way itself the median counts; of the other way and of
            random rounding, the root mean square.
        index: The way, 0 or 1.
        unit: The relative error of one rounding, which counts if it is larger.
    """
    own, other = _sizes(draws, index)
    amplified = _mean_size(draw[2] for draw in draws if len(draw) > 2)
    return own > FACTOR * max(unit, other, amplified)


def _sizes(draws: Sequence[Errors], index: int) -> tuple[float, float]:
    """Return the median error of a way, and the root mean square of the other way's errors."""
    own = statistics.median(draw[index] for draw in draws)
    return own, _mean_size(draw[1 - index] for draw in draws)


def _mean_size(errors: Iterable[float]) -> float:
    """Return the root mean square, 0 without any error."""
    squares = [error**2 for error in errors]
    return statistics.fmean(squares) ** 0.5 if squares else 0.0


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


def _locate(comparison: StepComparison, index: int) -> tuple[str, str] | None:
    """Return the module whose own error is too large in a way, and the value that is wrong.

    Args:
        index: The less accurate way, 0 or 1.
    """
    reference, model = comparison.take_fp64_calls()
    of_reference = measure_own_errors(reference, reference, model, fp64_arithmetic)
    sizes = []
    for way in (index, 1 - index):
        step = comparison.take_calls(way)
        own = measure_own_errors(step, reference, model, fp64_arithmetic, of_reference)
        sizes.append(_largest_own_errors(own, step, reference, of_reference))
    bad, other = sizes
    times = {
        key: size / max(comparison.unit_roundoff, other[key])
        for key, size in bad.items()
        if other.get(key, math.inf) < math.inf  # where both are inf, none is worse
    }
    worst = max(times, key=lambda key: times[key], default=("", ""))
    if not times.get(worst, 0.0) > FACTOR:
        return None
    name, value = worst
    return name, VALUES[value]


def _largest_own_errors(
    own: OwnErrors, step: TakenStep, reference: TakenStep, of_reference: OwnErrors
) -> dict[tuple[str, str], float]:
    """Return the largest own error of each module in each of its values."""
    sizes: dict[tuple[str, str], float] = {}
    for (name, _), errors in own.errors.items():
        for value, error in errors.items():
            sizes[name, value] = max(error.size, sizes.get((name, value), 0.0))
        of_weights = weight_gradient_error(name, step, own, reference, of_reference)
        if of_weights is not None:
            sizes[name, WEIGHTS] = of_weights.size
    return sizes
