"""`ampcompare why explain`: dtypes, memory and time of a step under two backends, and their causes."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table

from ampcompare.analysis.statistics.median_interval import MIN_DIFFERENCE, MIN_ROUNDS
from ampcompare.config.load import Config
from ampcompare.config.recipes import describe_recipe
from ampcompare.data.batch import Batch, list_tensors
from ampcompare.errors import UserError
from ampcompare.metrics import ARITHMETIC, COMPUTED_IN_FP32
from ampcompare.precision import get_backend
from ampcompare.precision.registry import PLAIN
from ampcompare.runtime.atomic_files import write_json
from ampcompare.runtime.console import print_line
from ampcompare.runtime.formatting import plural
from ampcompare.system.device import is_cuda
from ampcompare.system.environment import describe_arithmetic
from ampcompare.training.run_context import make_config, prepare_run, with_backend, with_synthetic_data
from ampcompare.training.trainer import Trainer
from ampcompare.why.memory_estimate import StepMemory, describe_memory, estimate_memory, format_mib
from ampcompare.why.op_dtypes import ForwardTrace, trace_forward
from ampcompare.why.op_profile import (
    CASTS,
    IDLE,
    OPTIMIZER,
    OTHER,
    StepTimes,
    is_difference_shown,
    measure_steps,
    speed_ratio,
)
from ampcompare.why.replay import Moment

DEFAULT_BACKEND = "native"  # where the options name no backend other than --against
MAX_OPS = 10  # rows of the table of dtypes
# Smaller fractions of a step are not reported.
MIN_IDLE = 0.15
MIN_CAST = 0.02
SAME_SPEED = 0.05  # from a ratio of 1: no cause is named within it
TIME_LABELS = {
    CASTS: "casts between dtypes",
    OPTIMIZER: "optimizer step",
    OTHER: "other ops",
    IDLE: "no PyTorch op runs",
}
MEMORY_LABELS = {  # fields of StepMemory
    "weights": "weights",
    "masters": "master weights",
    "states": "optimizer states",
    "gradients": "gradients",
    "batch": "batch",
    "activations": "activations",
    "total": "total",
}


@dataclass(frozen=True)
class StepProfile:
    """A step under one backend.

    Attributes:
        config: The run's config.
        trace: The traced forward pass.
        memory: The estimated memory.
        times: The measured times; None where no time was measured.
    """

    config: Config
    trace: ForwardTrace
    memory: StepMemory
    times: StepTimes | None

    @property
    def name(self) -> str:
        """The backend as it is in the config."""
        return self.config.backend

    @property
    def dtype(self) -> str:
        """The dtype of the backend's metadata."""
        return get_backend(self.config.backend).dtype


def run_explain(
    overrides: Sequence[str],
    against: str,
    seconds: float,
    file: Path | None,
    console: Console,
    moment: Moment | None = None,
) -> None:
    """Compare a step under two backends, print the result, and write it where a file is named.

    Args:
        overrides: Options of a run.
        against: The backend that the run's backend is compared with.
        seconds: About how long to measure times; 0 measures none.
        file: File for the whole result as JSON.
        console: Where to print.
        moment: The state of a training before the step; None: the first step of an untrained network.

    Raises:
        UserError: For bad options, or if the file cannot be written.
    """
    comparison = _prepare(overrides, against, moment)
    print_line(console, comparison.heading)
    print_line(console, describe_recipe(comparison.run))
    base, other = _profile_steps(comparison, seconds)
    messages = list(summarize(base, other, comparison.device))
    console.print(_dtype_table(base, other))
    if seconds:
        console.print(_time_table(base, other))
        print_line(
            console, "(Ops: one profiled step. Whole step: median of the rounds, without the profiler.)"
        )
    console.print(_memory_table(base, other))
    for message in messages:
        print_line(console, message)
    if file is not None:
        backends = [_as_json(profile) for profile in (base, other)]
        write_json(file, {"about": comparison.heading, "sentences": messages, "backends": backends})
        print_line(console, f"Written: {file}")


@dataclass(frozen=True)
class _BackendComparison:
    """A step that is about to be taken under two backends.

    Attributes:
        run: The options of the run, under its backend.
        against: The backend that the run's backend is compared with.
        configs: The options of the two steps, that of `against` first. Images of a built-in data set are
            synthetic in them.
        name: What is looked at, for headings.
        batches: The micro-batches of the step.
        build_trainer: Returns a trainer in the state before the step.
    """

    run: Config
    against: str
    configs: tuple[Config, Config]
    name: str
    device: torch.device
    batches: Sequence[Batch]
    build_trainer: Callable[[Config], Trainer]

    @property
    def heading(self) -> str:
        """The first line of the output."""
        inputs, _ = self.batches[0]
        shapes = " and ".join(" x ".join(map(str, tensor.shape)) for tensor in list_tensors(inputs))
        return (
            f"{self.run.backend} compared with {self.against} in {self.name}: "
            f"model {self.run.model.name}, data {self.run.data.source}, batch {shapes}, device {self.device}"
        )


def _prepare(overrides: Sequence[str], against: str, moment: Moment | None) -> _BackendComparison:
    """Return the step and its options under both backends.

    Raises:
        UserError: For bad options, or if both backends are the same.
    """
    if moment is not None:
        config = moment.config
        if config.backend == against:
            raise UserError(
                f"--against {against}: {moment.name} trained under this backend; compare it with another "
                f"one, for example --against {DEFAULT_BACKEND if against == PLAIN else PLAIN}"
            )
        return _BackendComparison(
            run=config,
            against=against,
            configs=(with_backend(config, against), config),
            name=moment.name,
            device=moment.context.world.device,
            batches=moment.batches,
            build_trainer=moment.build_trainer,
        )
    config = make_config(overrides)
    if config.backend == against:
        config = make_config(overrides, backend=DEFAULT_BACKEND)
    if config.backend == against:
        raise UserError(
            f"--against {against}: backend={config.backend} is the same backend; compare it with another "
            "one, for example backend=apex_o1"
        )
    base = with_synthetic_data(make_config(overrides, backend=against))
    context = prepare_run(base)
    (batches,) = context.first_steps(1)
    return _BackendComparison(
        run=config,
        against=against,
        configs=(base, with_synthetic_data(config)),
        name="one training step",
        device=context.world.device,
        batches=batches,
        build_trainer=context.build_trainer,
    )


def _profile_steps(comparison: _BackendComparison, seconds: float) -> list[StepProfile]:
    """Return the step under the backend of `--against`, and under the run's."""
    trainers = [comparison.build_trainer(config) for config in comparison.configs]
    traces = [trace_forward(trainer, comparison.batches[0]) for trainer in trainers]
    times: Sequence[StepTimes | None] = (None, None)
    if seconds:
        times = measure_steps(trainers, comparison.batches, comparison.device, seconds)
    return [
        StepProfile(config, trace, estimate_memory(trace, config), own_times)
        for config, trace, own_times in zip(comparison.configs, traces, times, strict=True)
    ]


def summarize(base: StepProfile, other: StepProfile, device: torch.device) -> Iterator[str]:
    """Yield sentences on speed and its cause, casts, idle time and memory."""
    if base.times and other.times:
        yield from _summarize_times(base, other, base.times, other.times, device)
    else:
        yield "Time was not measured (--seconds 0)."
    if other.trace.casts:
        size = format_mib(other.trace.cast_bytes)
        tensors = plural(other.trace.casts, "tensor")
        casts = f"{other.name} casts {tensors} in a forward pass, {size} MiB in total."
        fraction = other.times.fraction(CASTS) if other.times else 0.0
        if fraction >= MIN_CAST:
            casts = f"{casts} All casts of a step take {_percent(fraction)} of its time."
        yield casts
    yield describe_memory(base.name, base.memory, other.name, other.memory)
    if device.type == "cpu":
        yield (
            "The memory here is that of tensors. On a CPU, `ampcompare report` shows the peak of the whole "
            "process, which includes PyTorch itself."
        )


def _summarize_times(
    base: StepProfile, other: StepProfile, base_times: StepTimes, other_times: StepTimes, device: torch.device
) -> Iterator[str]:
    ratio, basis = speed_ratio(base_times.rounds, other_times.rounds)
    yield (
        f"{other.name} trains {ratio:.2f}x as fast as {base.name} ({basis}): the median of the ratios within "
        f"a round. The median step takes {_ms(other_times.median)} ms instead of {_ms(base_times.median)} "
        f"ms, {base_times.median / other_times.median:.2f}x."
    )
    arithmetic = describe_arithmetic(device).get(ARITHMETIC, {}).get(other.dtype)
    if arithmetic == COMPUTED_IN_FP32:
        yield f"This CPU computes {other.dtype} operations in fp32: expect no speed-up from {other.name}."
    rounds = min(len(base_times.rounds), len(other_times.rounds))
    if rounds < MIN_ROUNDS:
        yield (
            f"There is no confidence interval: it takes {MIN_ROUNDS} rounds, of which {rounds} "
            f"{'was' if rounds == 1 else 'were'} measured. A larger --seconds measures more rounds."
        )
        return
    if not is_difference_shown(base_times.rounds, other_times.rounds):
        yield (
            f"This is no evidence for a difference in speed of more than {100 * MIN_DIFFERENCE:g}%. A larger "
            "--seconds measures more rounds."
        )
        return
    if not 1 - SAME_SPEED <= ratio <= 1 + SAME_SPEED:
        yield from _main_cause(base_times, other_times)
    fraction = other_times.fraction(IDLE)
    if fraction >= MIN_IDLE:
        graph = " or execution=cuda_graph" if is_cuda(device) else ""
        yield (
            f"No PyTorch op runs during {_percent(fraction)} of a step of {other.name}. This time usually "
            "goes to Python code and to launching ops, and no dtype makes it shorter. "
            f"Try a larger batch_size, execution=compile{graph}."
        )


def _main_cause(base: StepTimes, other: StepTimes) -> Iterator[str]:
    """Yield which part of the step explains most of the difference, if a part changed in its direction."""
    sign = 1 if other.median > base.median else -1
    changes = {
        kind: sign * (other.kinds.get(kind, 0.0) - base.kinds.get(kind, 0.0))
        for kind in {**base.kinds, **other.kinds}
    }
    kind = max(changes, key=changes.__getitem__, default="")
    if kind and changes[kind] > 0:
        before, after = (_ms(times.kinds.get(kind, 0.0)) for times in (base, other))
        yield f"Largest change: {TIME_LABELS.get(kind, kind)}, from {before} ms to {after} ms."


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f}%"


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _table(title: str, first: str, *columns: str, justify: Literal["left", "right"]) -> Table:
    table = Table(first, title=title, title_justify="left", title_style="bold", header_style="", box=None)
    for column in columns:
        table.add_column(column, justify=justify)
    return table


def _dtype_table(base: StepProfile, other: StepProfile) -> Table:
    """Return a row per function with the dtypes of its ops; functions that differ come first."""
    columns = ("function", base.name, other.name, f"reason under {other.name}")
    table = _table("Dtypes in the forward pass", *columns, justify="left")
    rows = []
    for name in dict.fromkeys(op.name for profile in (other, base) for op in profile.trace.ops):
        reasons = dict.fromkeys(op.why for op in other.trace.ops if op.name == name)
        rows.append((name, _count_dtypes(base, name), _count_dtypes(other, name), "; ".join(reasons)))
    rows.sort(key=lambda row: row[1] == row[2])
    for row in rows[:MAX_OPS]:
        table.add_row(*row)
    if rows[MAX_OPS:]:
        table.add_row(f"{len(rows) - MAX_OPS} more", "", "", "")
    return table


def _count_dtypes(profile: StepProfile, name: str) -> str:
    counts = Counter(op.dtype for op in profile.trace.ops if op.name == name)
    return ", ".join(f"{count} {dtype}" for dtype, count in counts.items()) or "-"


def _time_table(base: StepProfile, other: StepProfile) -> Table:
    """Return a row per kind of op, the largest first, and one for the whole step."""
    table = _table("Time of a step, ms", "", base.name, other.name, "ratio", justify="right")
    if base.times and other.times:
        base_kinds = base.times.kinds
        other_kinds = other.times.kinds
        for kind in sorted({**base_kinds, **other_kinds}, key=lambda kind: -other_kinds.get(kind, 0.0)):
            pair = base_kinds.get(kind, 0.0), other_kinds.get(kind, 0.0)
            table.add_row(TIME_LABELS.get(kind, kind), *map(_ms, pair), _ratio(*pair))
        medians = base.times.median, other.times.median
        table.add_row("whole step", *map(_ms, medians), _ratio(*medians))
    return table


def _memory_table(base: StepProfile, other: StepProfile) -> Table:
    table = _table("Memory of a step, MiB (estimate)", "", base.name, other.name, "ratio", justify="right")
    for name, label in MEMORY_LABELS.items():
        sizes = getattr(base.memory, name), getattr(other.memory, name)
        if any(sizes):
            table.add_row(label, *map(format_mib, sizes), _ratio(*sizes))
    return table


def _ratio(base: float, other: float) -> str:
    return f"{other / base:.2f}x" if base else "-"


def _as_json(profile: StepProfile) -> dict[str, Any]:
    trace = profile.trace
    return {
        "backend": profile.name,
        "dtype": profile.dtype,
        "ops": [{**dataclasses.asdict(op), "count": count} for op, count in Counter(trace.ops).items()],
        "casts": {"tensors": trace.casts, "bytes": trace.cast_bytes},
        "memory": dataclasses.asdict(profile.memory) | {"total": profile.memory.total},
        "activations": dict(trace.saved),
        "ms": profile.times and {"rounds": profile.times.rounds, "kinds": profile.times.kinds},
    }
