"""`ampcompare why diff KEY=A,B`: which of two ways to take a step is nearer to fp64.

The same step is taken in both ways and in fp64. A quantity (the loss; gradients or updates of the parameters
of a module, taken together) of one way is less accurate if its error is more than FACTOR times as large as
the larger of the other way's error and of one rounding. If a quantity exceeds this bound, both steps are
repeated from slightly changed weights, and the bound has to be exceeded there as well: a single rounding
error may be small by chance.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from ampcompare.config.load import Config
from ampcompare.config.recipes import describe_recipe
from ampcompare.data.batch import Batch, count_samples
from ampcompare.errors import UserError
from ampcompare.precision import get_backend
from ampcompare.precision.registry import PLAIN
from ampcompare.runtime.atomic_files import write_json
from ampcompare.runtime.console import print_line
from ampcompare.runtime.formatting import plural, printable, some
from ampcompare.system.device import (
    allow_tf32,
    is_channels_last,
    is_host,
    is_out_of_memory,
    random_states,
    seed_process,
    set_random_states,
)
from ampcompare.training.run_context import make_config, prepare_run, with_backend
from ampcompare.training.trainer import Trainer
from ampcompare.why.diff import format_error
from ampcompare.why.fault_location import (
    CallOrder,
    ProbedNetwork,
    ValueKey,
    locate_fault,
    own_gradients,
    pool,
    read_call_order,
)
from ampcompare.why.fp64_reference import (
    available_bytes,
    batches_in_fp64,
    check_memory,
    convert_to_fp64,
    fp64_arithmetic,
    out_of_memory,
)
from ampcompare.why.random_draws import RandomModules, are_equal, eager_draws
from ampcompare.why.replay import Moment
from ampcompare.why.step_capture import CapturedStep
from ampcompare.why.step_variants import (
    RepeatableStep,
    ValuePair,
    build_configs,
    lay_out,
    name_variant,
)

FACTOR = 4
REPETITIONS = 4  # from changed weights, before a way is called less accurate
TF32_ROUNDOFF = 2.0**-11
SAMPLES = 8  # of the batch, unless the options set batch_size
MAX_GROUPS = 15  # rows for each part without --all
LOSS, GRADIENTS, UPDATES = "loss", "gradients", "updates"
NETWORK = "(network)"  # PyTorch calls the network ""


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


@dataclass
class StepSource:
    """The step before it is taken: how to build its trainers, its batches and its random states."""

    config: Config
    name: str
    device: torch.device
    batches: list[Batch]
    build_trainer: Callable[[Config], Trainer]
    set_random_states: Callable[[], None]


def read_source(overrides: Sequence[str], moment: Moment | None) -> StepSource:
    if moment is not None:
        device = moment.context.world.device
        return StepSource(
            moment.config, moment.name, device, moment.batches, moment.build_trainer, moment.set_random_states
        )
    context = prepare_run(make_config(overrides))
    has_batch_size = any(word.lstrip("-+").startswith("batch_size=") for word in overrides)
    (batches,) = context.first_steps(1, samples=None if has_batch_size else SAMPLES)
    return StepSource(
        context.config,
        "one training step",
        context.world.device,
        batches,
        context.build_trainer,
        partial(seed_process, context.config.seed),
    )


class StepComparison:
    """A step that can be taken in two ways and in fp64, from any weights.

    Args:
        source: The step.
        pair: The option with two values.

    Attributes:
        left_out: The modules that run without their random draws, because these differ between the ways.
    """

    def __init__(self, source: StepSource, pair: ValuePair) -> None:
        self.source, self.pair = source, pair
        self.names = name_variant(pair, 0), name_variant(pair, 1)
        self.configs = build_configs(source.config, pair, source.device)
        self._plain = with_backend(dataclasses.replace(source.config, execution="eager"), PLAIN)
        first = source.batches[0]
        self._need = check_memory(source.build_trainer(self._plain), first, self._plain, source.device)
        self.weights = [p.detach().clone() for p in source.build_trainer(self._plain).model.parameters()]
        metadata = get_backend(self.configs[0].backend)
        dtype = getattr(torch, metadata.dtype)
        self.unit_roundoff = TF32_ROUNDOFF if metadata.uses_tf32 else torch.finfo(dtype).eps / 2
        self.left_out: list[str] = []
        self._is_random = False
        modules = self._find_random_modules()
        # On other devices the draws of dropout depend on the dtype.
        if self._is_random and not is_host(source.device):
            self.left_out = modules
        self._steps = self._build_steps()
        self._first = self._take(None)
        if self._is_random and not self._draws_are_equal() and modules and not self.left_out:
            self.left_out = modules
            self._steps = self._build_steps()
            self._first = self._take(None)
        if self._is_random and not self._draws_are_equal():
            where = some([name or NETWORK for name in modules]) or LOSS
            raise UserError(
                f"{pair.key}={','.join(pair.values)}: the steps draw other random numbers in {where}, also "
                "in evaluation mode, so they cannot be compared; draw only if self.training"
            )

    def take(self, weights: Sequence[Tensor] | None = None) -> list[CapturedStep]:
        """Return the two steps and the one in fp64.

        Args:
            weights: The weights to start from; None: those of the source.
        """
        return self._first if weights is None else self._take(weights)

    def restart(self, weights: Sequence[Tensor], batches: Sequence[Batch]) -> None:
        """Begin with other weights and micro-batches, of the same shapes, from now on."""
        self.weights, self.source.batches = [*weights], [*batches]
        for step, config in zip(self._steps, [*self.configs, None], strict=True):
            step.batches = self._batches_for(config)
        self._first = self._take(self.weights)

    def build_step(self, index: int) -> RepeatableStep:
        """Return one of the two steps (0 or 1), or the one in fp64 (2), ready to be taken."""
        source = self.source
        if index == 2:
            trainer = source.build_trainer(self._plain)
            convert_to_fp64(trainer)
            config, context = None, fp64_arithmetic
        else:
            config = self.configs[index]
            trainer = source.build_trainer(config)
            context = partial(eager_draws, config, is_random=self._is_random)  # type: ignore[assignment]
        self._leave_out(trainer)
        return RepeatableStep(
            trainer, self._batches_for(config), source.set_random_states, source.device, context
        )

    def _build_steps(self) -> list[RepeatableStep]:
        return [self.build_step(index) for index in range(3)]

    def _batches_for(self, config: Config | None) -> list[Batch]:
        batches, device = self.source.batches, self.source.device
        if config is None:
            return batches_in_fp64(batches)
        return lay_out(batches, channels_last=is_channels_last(config.memory_format, device))

    def _take(self, weights: Sequence[Tensor] | None) -> list[CapturedStep]:
        first, second, fp64 = self._steps
        return [first.take(weights), second.take(weights), self._take_fp64(fp64, weights)]

    def _take_fp64(self, step: RepeatableStep, weights: Sequence[Tensor] | None = None) -> CapturedStep:
        try:
            return step.take(weights)
        except Exception as problem:
            if is_out_of_memory(problem):
                free = available_bytes(self.source.device)
                raise out_of_memory(self._need, free, self.source.device) from None
            raise

    def read_order(self, index: int, batch: Batch) -> CallOrder:
        """Return the calls of a forward pass under the options of a step; see `build_step`."""
        config = self._plain if index == 2 else dataclasses.replace(self.configs[index], execution="eager")
        trainer = self.source.build_trainer(config)
        self._leave_out(trainer)
        if index == 2:
            convert_to_fp64(trainer)
        self.source.set_random_states()
        with fp64_arithmetic() if index == 2 else nullcontext():
            return read_call_order(trainer, batch)

    def _leave_out(self, trainer: Trainer) -> None:
        """Turn off the random draws of the modules that are left out."""
        for name in self.left_out:
            trainer.model.get_submodule(name).training = False

    def _draws_are_equal(self) -> bool:
        reference = self._steps[2].draws
        return all(are_equal(step.draws, reference) for step in self._steps)

    def _find_random_modules(self) -> list[str]:
        """Return the modules that draw random numbers in an eager forward pass."""
        source, modules = self.source, RandomModules(self.source.device)
        step = self.build_step(2)
        with modules.watching(step.trainer.model):
            self._take_fp64(step)
        source.set_random_states()
        self._is_random = not are_equal(step.draws, random_states(source.device))
        return modules.names


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


def describe_verdict(result: AccuracyComparison) -> str:
    """Return in one line which way is less accurate, or that none is."""
    fault = result.fault
    if fault is None:
        return _describe_no_fault(result)
    less, other = result.names[fault.variant], result.names[1 - fault.variant]
    of = f" of {fault.module or NETWORK}" if fault.part != LOSS else ""
    errors = f"{format_error(fault.errors[0])} and {format_error(fault.errors[1])}"
    times = f"{fault.times:,.2g} times" if math.isfinite(fault.times) else "inf or nan"
    start = f"{less} is less accurate than {other}: {times}"
    if fault.part == UPDATES:
        return f"{start}, in the updates{of} only ({errors}); its gradients are no less accurate"
    if fault.place is None:
        return (
            f"{start}, most in the {fault.part}{of} ({errors}); which module causes it is unknown, because "
            "the error is gone when the values between the modules are kept"
        )
    place = f"first at {fault.place or NETWORK} in {fault.value}"
    return f"{start}, {place}; most in the {fault.part}{of} ({errors})"


def _describe_no_fault(result: AccuracyComparison) -> str:
    first, second = result.names
    whole = {row.part: row.errors for row in result.groups if not row.group}
    shown = next((part for part in (GRADIENTS, LOSS) if part not in result.not_judged), None)
    if shown is None:
        return f"neither {second} nor {first} can be judged: loss and gradients are inf or nan"
    errors = f"{format_error(whole[shown][1])} and {format_error(whole[shown][0])}"
    if shown == LOSS:
        return f"the loss of {second} is no less accurate than that of {first} ({errors})"
    return f"{second} is no less accurate than {first} ({errors})"


def summarize_accuracy(result: AccuracyComparison) -> list[str]:
    """Return what the table does not show, as sentences; the verdict is the last one."""
    messages = []
    first, second = result.names
    if result.left_out:
        messages.append(f"left out, because their random draws differ: {some(result.left_out)}")
    for name, skipped, scale in zip(result.names, result.skipped, result.scales, strict=True):
        if skipped:
            messages.append(
                f"{name} skipped the optimizer step, with a loss scale of {scale:,.6g}, so no updates are "
                "compared; try a smaller one: precision.init_scale=256"
            )
    if GRADIENTS in result.not_judged:
        messages.append(f"the gradients are inf or nan in {first} and {second}, so they are not judged")
    return [*messages, describe_verdict(result)]


def run_accuracy(
    overrides: Sequence[str],
    pair: ValuePair,
    console: Console,
    *,
    every: bool = False,
    file: Path | None = None,
    moment: Moment | None = None,
) -> None:
    """Compare two ways to take a step with fp64, print the result, and write it where a file is named.

    Args:
        overrides: Options of a run, without the one that differs.
        pair: The option that differs.
        console: Where to print.
        every: Whether to print every group, not the MAX_GROUPS with the largest errors.
        file: File for the whole result as JSON.
        moment: The state of a training before the step; None: the first step of an untrained network.

    Raises:
        UserError: For bad options, or if the file cannot be written.
    """
    result = compare_accuracy(overrides, pair, moment)
    first, second = result.names
    setting = f"model {result.network}, data {result.data}, {plural(result.samples, 'sample')}"
    where = "one training step" if moment is None else moment.name
    under = "" if pair.key == "backend" else f" under {result.backends[0]}"
    print_line(console, f"{first} and {second} compared with fp64{under} in {where}: {setting}")
    print_line(
        console,
        describe_recipe(
            make_config([*overrides, f"{pair.key}={pair.values[0]}"]) if moment is None else moment.config
        ),
    )
    table = Table(
        title="Errors relative to fp64",
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=None,
    )
    for head in ("of", first, second, "worst parameter"):
        is_text = head in ("of", "worst parameter")
        table.add_column(head, justify="left" if is_text else "right", overflow="fold")
    shown = result.groups if every else _largest_groups(result.groups)
    for row in shown:
        cells = [f"{row.part}, {row.group}" if row.group else row.part, *map(format_error, row.errors), ""]
        if row.worst is not None and row.worst_errors is not None:
            cells[-1] = f"{row.worst}: {' and '.join(map(format_error, row.worst_errors))}"
        table.add_row(*(Text(printable(cell)) for cell in cells))
    console.print(table)
    if len(shown) < len(result.groups):
        print_line(console, f"{plural(len(result.groups) - len(shown), 'more group')} with --all")
    bound = f"{FACTOR} times the error of the other or one rounding ({format_error(result.unit_roundoff)})"
    print_line(console, f"less accurate: an error above {bound}, whichever is larger, in repeated steps")
    for message in summarize_accuracy(result):
        print_line(console, f"- {message}")
    if file is not None:
        write_json(file, dataclasses.asdict(result))
        print_line(console, f"Written: {file}")


def _largest_groups(groups: Sequence[GroupErrors]) -> list[GroupErrors]:
    """Return the rows of the loss and of all parameters, and the groups with the largest errors."""
    kept = []
    for part in (LOSS, GRADIENTS, UPDATES):
        rows = [row for row in groups if row.part == part and row.group]
        largest = sorted(rows, key=lambda row: -max(row.errors))[:MAX_GROUPS]
        kept += [row for row in groups if row.part == part and (not row.group or row in largest)]
    return kept
