"""`ampcompare why explain`: dtypes, memory and time of a step under two backends, and their causes."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.table import Table

from ampcompare.analysis.statistics.median_interval import MIN_DIFFERENCE, MIN_ROUNDS
from ampcompare.config.load import Config
from ampcompare.data.batch import list_tensors
from ampcompare.errors import UserError
from ampcompare.metrics import ARITHMETIC, COMPUTED_IN_FP32
from ampcompare.precision import get_backend
from ampcompare.precision.registry import PLAIN
from ampcompare.runtime.formatting import plural
from ampcompare.system.device import is_cuda
from ampcompare.system.environment import describe_arithmetic
from ampcompare.training.run_context import make_config, with_backend, with_synthetic_data
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
from ampcompare.why.output import Answer, make_table
from ampcompare.why.step import StepState, from_config

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


def explain_step(state: StepState, configs: Sequence[Config], seconds: float) -> Answer:
    """Compare the cost of a step under two backends.

    Args:
        configs: The options of the two steps. The first is what the second, the run's, is compared with.
        seconds: About how long to measure times; 0 measures none.
    """
    base_config, config = configs
    inputs, _ = state.batches[0]
    shapes = " and ".join(" x ".join(map(str, tensor.shape)) for tensor in list_tensors(inputs))
    heading = (
        f"{config.backend} compared with {base_config.backend} in {state.title}: "
        f"model {config.model.name}, data {config.data.source}, batch {shapes}, device {state.device}"
    )
    base, other = _profile_steps(state, configs, seconds)
    parts: list[Table | str] = [_dtype_table(base, other)]
    if seconds:
        parts += [
            _time_table(base, other),
            "(Ops: one profiled step. Whole step: median of the rounds, without the profiler.)",
        ]
    messages = [*summarize(base, other, state.device)]
    backends = [_as_json(profile) for profile in (base, other)]
    content = {"about": heading, "sentences": messages, "backends": backends}
    return Answer(heading, config, [*parts, _memory_table(base, other), *messages], content)


def choose_configs(
    overrides: Sequence[str], against: str, state: StepState | None
) -> tuple[StepState, tuple[Config, Config]]:
    """Return the step, and its options under the backend of `--against` and under the run's.

    Args:
        overrides: Options of a run. Unused with a state.
        state: A step of a recorded run or with trained weights; None: the first step of an untrained network,
            on synthetic images where the data set is a built-in one.

    Raises:
        UserError: For bad options, or if both backends are the same.
    """
    if state is not None:
        config = state.config
        if config.backend == against:
            raise UserError(
                f"--against {against}: {state.title} trained under this backend; compare it with another "
                f"one, for example --against {DEFAULT_BACKEND if against == PLAIN else PLAIN}"
            )
        return state, (with_backend(config, against), config)
    config = make_config(overrides)
    if config.backend == against:
        config = make_config(overrides, backend=DEFAULT_BACKEND)
    if config.backend == against:
        raise UserError(
            f"--against {against}: backend={config.backend} is the same backend; compare it with another "
            "one, for example backend=apex_o1"
        )
    state = from_config(with_synthetic_data(make_config(overrides, backend=against)))
    return state, (state.config, with_synthetic_data(config))


def _profile_steps(state: StepState, configs: Sequence[Config], seconds: float) -> list[StepProfile]:
    trainers = [state.build_trainer(config) for config in configs]
    traces = [trace_forward(trainer, state.batches[0]) for trainer in trainers]
    times: Sequence[StepTimes | None] = (None, None)
    if seconds:
        times = measure_steps(trainers, state.batches, state.device, seconds)
    return [
        StepProfile(config, trace, estimate_memory(trace, config), own_times)
        for config, trace, own_times in zip(configs, traces, times, strict=True)
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


def _dtype_table(base: StepProfile, other: StepProfile) -> Table:
    """Return a row per function with the dtypes of its ops; functions that differ come first."""
    columns = ("function", base.name, other.name, f"reason under {other.name}")
    table = make_table("Dtypes in the forward pass", *columns, left=4)
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
    table = make_table("Time of a step, ms", "", base.name, other.name, "ratio", left=1)
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
    table = make_table("Memory of a step, MiB (estimate)", "", base.name, other.name, "ratio", left=1)
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
