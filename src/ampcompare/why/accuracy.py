"""`ampcompare why diff KEY=A,B`: which of two ways to take a step is nearer to fp64.

The same step is taken in both ways and in fp64. A quantity (the loss; gradients or updates of the parameters
of a module, taken together) of one way is less accurate if its error is more than FACTOR times as large as
the larger of the other way's error and of one rounding. If a quantity exceeds this bound, both steps are
repeated from slightly changed weights, and the bound has to be exceeded there as well: a single rounding
error may be small by chance.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ampcompare.data.batch import count_samples
from ampcompare.precision import get_backend
from ampcompare.system.device import (
    allow_tf32,
    random_states,
    set_random_states,
)
from ampcompare.why.diff import NETWORK
from ampcompare.why.fault_location import (
    ProbedNetwork,
    ValueKey,
    locate_fault,
    own_gradients,
    pool,
)
from ampcompare.why.replay import Moment
from ampcompare.why.step_capture import CapturedStep
from ampcompare.why.step_comparison import StepComparison, read_source
from ampcompare.why.step_variants import (
    ValuePair,
)

FACTOR = 4
REPETITIONS = 4  # from changed weights, before a way is called less accurate
LOSS, GRADIENTS, UPDATES = "loss", "gradients", "updates"


class Quantity(NamedTuple):
    """What is judged: the loss, or the gradients or updates of one module's own parameters."""

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
        worst_errors: Its errors.
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
        module: The module whose parameters these are; "" for the network itself, or for the loss.
        errors: Median error of the less accurate way, and largest error of the other one.
        times: How many times as large the error is as the other way's, or as one rounding.
        place: The module at which the way first departs from fp64; None where it was not found.
        value: The first bad value that this module computes, such as `its output`.
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
        loss_fp64: The loss in fp64.
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


def compare_accuracy(
    overrides: Sequence[str], pair: ValuePair, moment: Moment | None = None
) -> AccuracyComparison:
    """Take a step in two ways and in fp64, and compare them.

    Args:
        overrides: Options of a run, without the one that differs. Unused with a moment.
        pair: The option that differs, with its two values.
        moment: The state of a training before the step; None: the first step of an untrained network.

    Raises:
        UserError: For bad options, if fp64 does not fit into memory, or if a step cannot be compiled.
    """
    host = torch.device("cpu")
    states = random_states(host)
    try:
        source = read_source(overrides, moment)
        allow_tf32(False)  # a backend that uses TF32 turns it on for its own step
        comparison = StepComparison(source, pair)
        return judge(comparison)
    finally:
        set_random_states(host, states)


def judge(comparison: StepComparison) -> AccuracyComparison:
    """Return the errors of the two ways, and which way is less accurate."""
    steps = comparison.take()
    fp64, names, config = steps[2], comparison.names, comparison.source.config
    unit = comparison.unit_roundoff
    fault = find_fault(comparison)
    judged = _measure(steps, unit)
    parts = (LOSS, GRADIENTS, UPDATES)
    first, second, _ = steps
    return AccuracyComparison(
        comparison.pair.key,
        names,
        tuple(get_backend(c.backend).label for c in comparison.configs),  # type: ignore[arg-type]
        config.model.name,
        config.data.source,
        sum(count_samples(inputs) for inputs, _ in comparison.source.batches),
        unit,
        (first.loss, second.loss),
        fp64.loss,
        (first.scale, second.scale),
        (first.skipped, second.skipped),
        _group_errors(steps, unit),
        [part for part in parts if not any(quantity.part == part for quantity in judged)],
        [name or NETWORK for name in comparison.left_out],
        fault,
    )


def find_fault(comparison: StepComparison) -> Fault | None:
    """Return the worst quantity of the way that is less accurate, and where the way departs from fp64."""
    unit = comparison.unit_roundoff
    draws = [_measure(comparison.take(), unit)]
    if not any(_exceeding(draws, index, unit) for index in (0, 1)):
        return None
    changed = [_change_weights(comparison.weights, unit, seed) for seed in range(REPETITIONS)]
    draws += [_measure(comparison.take(weights), unit) for weights in changed]
    for index in (1, 0):
        exceeding = _exceeding(draws, index, unit)
        if not exceeding:
            continue
        # A fault of the loss or of the gradients shows in the updates, too.
        shown = {q: times for q, times in exceeding.items() if q.part != UPDATES} or exceeding
        quantity = max(shown, key=lambda q: shown[q])
        own, other = _errors_of(draws, quantity, index)
        place: tuple[str, str] | None = None
        if quantity.part != UPDATES:
            place = _locate(comparison, index, changed)
        return Fault(
            index,
            quantity.part,
            quantity.module,
            (statistics.median(own), max(other)),
            shown[quantity],
            *(place or (None, None)),
        )
    return None


Errors = dict[Quantity, tuple[float, float]]  # of the two ways


def _errors_of(draws: Sequence[Errors], quantity: Quantity, index: int) -> tuple[list[float], list[float]]:
    """Return the errors of one way and those of the other one, over the draws that have the quantity."""
    pairs = [draw[quantity] for draw in draws if quantity in draw]
    return [pair[index] for pair in pairs], [pair[1 - index] for pair in pairs]


def _exceeding(draws: Sequence[Errors], index: int, unit: float) -> dict[Quantity, float]:
    """Return the quantities of a way that exceed the bound, and how many times they exceed the other way."""
    result = {}
    for quantity in draws[0]:
        if (times := exceeds(*_errors_of(draws, quantity, index), unit)) is not None:
            result[quantity] = times
    return result


def exceeds(own: Sequence[float], other: Sequence[float], unit: float) -> float | None:
    """Return how many times as large errors are as those of the other way, if that is above the bound.

    Args:
        own: The errors in several draws, of which the median counts.
        other: The errors of the other way, of which the largest counts.
        unit: The relative error of one rounding, which counts if it is larger.

    Returns:
        None for errors within the bound.
    """
    base, error = max(unit, *other), statistics.median(own)
    return error / base if error > FACTOR * base else None


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


def _measure(steps: Sequence[CapturedStep], unit: float) -> Errors:
    """Return the errors of the two ways for every quantity that is finite in fp64 and in one of them."""
    first, second, fp64 = steps
    errors: Errors = {}
    for part, names in _parameters_by(fp64, lambda name: name.rpartition(".")[0], steps):
        whole = _values_of(fp64, part[0])
        floor = unit * _rms(whole.values())
        reference = [whole[name] for name in names]
        size = sum(tensor.numel() for tensor in reference)
        own, other = (
            relative_norm([way.get(name) for name in names], reference, floor * size**0.5)
            for way in (_values_of(step, part[0]) for step in (first, second))
        )
        errors[Quantity(*part)] = (own, other)
    errors[Quantity(LOSS, "")] = (_loss_error(first, fp64), _loss_error(second, fp64))
    return {q: e for q, e in errors.items() if not math.isnan(sum(e)) and min(e) < math.inf}


def _loss_error(step: CapturedStep, fp64: CapturedStep) -> float:
    """Return the relative error of the loss; nan if it is not finite in fp64."""
    if not math.isfinite(fp64.loss):
        return math.nan
    if not math.isfinite(step.loss):
        return math.inf
    error = abs(step.loss - fp64.loss)
    return error / abs(fp64.loss) if fp64.loss else float(error > 0)


def _values_of(step: CapturedStep, part: str) -> dict[str, Tensor]:
    return step.gradients if part == GRADIENTS else step.updates


def _parameters_by(
    fp64: CapturedStep, group_of: Callable[[str], str], steps: Sequence[CapturedStep]
) -> list[tuple[tuple[str, str], list[str]]]:
    """Return the parameters by part and group. A skipped step has no updates."""
    parts = [GRADIENTS] if any(step.skipped for step in steps) else [GRADIENTS, UPDATES]
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for part in parts:
        for name in _values_of(fp64, part):
            if name in fp64.gradients:
                groups[part, group_of(name)].append(name)
    return [*groups.items()]


def _rms(tensors: Iterable[Tensor]) -> float:
    """Return the root mean square of all elements."""
    square = size = 0.0
    for tensor in tensors:
        square += float(tensor.double().square().sum())  # sync: a diagnostic step, not a training loop
        size += tensor.numel()
    return (square / size) ** 0.5 if size else 0.0


def relative_norm(tensors: Sequence[Tensor | None], reference: Sequence[Tensor], floor: float = 0.0) -> float:
    """Return the norm of the difference divided by the norm of the reference.

    Args:
        tensors: The tensors; None counts as zeros.
        reference: The same in fp64.
        floor: A smaller norm of the reference counts as this one. Where a gradient cancels out, rounding
            errors have no relation to its size.

    Returns:
        nan if the reference is not finite, infinity if only the tensors are not.
    """
    expected = torch.cat([r.detach().cpu().double().flatten() for r in reference])
    values = torch.cat(
        [
            torch.zeros(r.numel(), dtype=torch.float64) if t is None else t.detach().cpu().double().flatten()
            for t, r in zip(tensors, reference, strict=True)
        ]
    )
    if not bool(expected.isfinite().all()):
        return math.nan
    if not bool(values.isfinite().all()):
        return math.inf
    error, size = float((values - expected).norm()), max(float(expected.norm()), floor)
    return error / size if size else float(error > 0)


def _group_errors(steps: Sequence[CapturedStep], unit: float) -> list[GroupErrors]:
    """Return the errors by group: the loss, all parameters together, and the groups of the network."""
    first, second, fp64 = steps
    rows = [GroupErrors(LOSS, "", (_loss_error(first, fp64), _loss_error(second, fp64)))]
    groups = _parameters_by(fp64, lambda name: "", steps)
    groups += _parameters_by(fp64, lambda name: name.partition(".")[0], steps)
    for (part, group), names in sorted(groups, key=lambda item: item[0][0]):
        reference = _values_of(fp64, part)
        floor = unit * _rms(reference.values())
        # A list of pairs, not a sum of squares, so that the worst parameter is known.
        each = {
            name: tuple(
                relative_norm(
                    [_values_of(step, part).get(name)],
                    [reference[name]],
                    floor * reference[name].numel() ** 0.5,
                )
                for step in (first, second)
            )
            for name in names
        }
        both = tuple(
            relative_norm([_values_of(step, part).get(n) for n in names], [reference[n] for n in names])
            for step in (first, second)
        )
        worst = max(each, key=lambda name: max(each[name]))
        rows.append(GroupErrors(part, group, both, worst, each[worst]))  # type: ignore[arg-type]
    return rows


def _locate(
    comparison: StepComparison, index: int, changed: Sequence[Sequence[Tensor]]
) -> tuple[str, str] | None:
    """Take the steps with probes, and return the module at which a way first departs from fp64."""
    unit = comparison.unit_roundoff
    probed, orders = [], []
    for number in range(3):
        step = comparison.build_step(number)
        step.batches = step.batches[:1]
        order = comparison.read_order(number, step.batches[0])
        network = ProbedNetwork(step.trainer.model, order)
        step.trainer.forward = type(step.trainer.forward)(network, step.trainer.task.loss)
        probed.append((step, network))
        orders.append(order)
    errors: dict[ValueKey, list[tuple[float, float]]] = defaultdict(list)
    for weights in (None, *changed):
        values = []
        for (step, network), order in zip(probed, orders, strict=True):
            network.clear_gradients()
            captured = step.take(weights)
            values.append(pool(network.read(captured.scale) | own_gradients(captured, order)))
        for key, reference in values[2].items():
            if all(_are_alike(way.get(key), reference) for way in values[:2]):
                pair = tuple(relative_norm(way[key], reference) for way in values[:2])
                if not math.isnan(sum(pair)):
                    errors[key].append(pair)  # type: ignore[arg-type]

    def is_bad(key: ValueKey) -> bool:
        if not errors[key]:
            return False
        own, other = ([pair[i] for pair in errors[key]] for i in (index, 1 - index))
        return exceeds(own, other, unit) is not None

    return locate_fault(orders[2], is_bad)


def _are_alike(tensors: Sequence[Tensor] | None, reference: Sequence[Tensor]) -> bool:
    return bool(tensors and reference) and [t.shape for t in tensors or ()] == [r.shape for r in reference]
