"""`ampcompare why explain`: dtypes, memory and time of a step under two backends, and their causes."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table

from ampcompare.config.load import Config
from ampcompare.data.batch import list_tensors
from ampcompare.errors import UserError
from ampcompare.metrics import ARITHMETIC, COMPUTED_IN_FP32
from ampcompare.precision import get_backend
from ampcompare.runtime.atomic_files import write_json
from ampcompare.runtime.console import print_line
from ampcompare.runtime.formatting import whole_percent
from ampcompare.system.environment import describe_arithmetic
from ampcompare.training.run_context import make_config, prepare_run, with_synthetic_data
from ampcompare.why.memory_estimate import MIB, StepMemory, describe_memory, estimate_memory
from ampcompare.why.op_dtypes import ForwardTrace, trace_forward
from ampcompare.why.op_profile import (
    CASTS,
    IDLE,
    StepTimes,
    is_difference_shown,
    measure_steps,
    speed_ratio,
)

DEFAULT_BACKEND = "native"  # where the options name no backend other than --against
MAX_OPS = 10  # rows of the table of dtypes
MIN_IDLE, MIN_CAST = 0.15, 0.02  # smaller fractions of a step are not reported
SAME_SPEED = 0.05  # from a ratio of 1: no cause is named within it


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
    overrides: Sequence[str], against: str, seconds: float, file: Path | None, console: Console
) -> None:
    """Compare a step under two backends, print the result, and write it where a file is named.

    Args:
        overrides: Options of a run.
        against: The backend that the run's backend is compared with.
        seconds: About how long to measure times; 0 measures none.
        file: File for the whole result as JSON.
        console: Where to print.

    Raises:
        UserError: For bad options, or if the file cannot be written.
    """
    other = make_config(overrides)
    if other.backend == against:
        other = make_config(overrides, backend=DEFAULT_BACKEND)
    if other.backend == against:
        raise UserError(f"--against {against}: the same backend; name another one, as backend=apex_o1")
    configs = [with_synthetic_data(config) for config in (make_config(overrides, backend=against), other)]
    context = prepare_run(configs[0])
    device, batches = context.world.device, context.first_steps(1)[0]
    trainers = [context.build_trainer(config) for config in configs]
    traces = [trace_forward(trainer, batches[0]) for trainer in trainers]
    shapes = " and ".join(" x ".join(map(str, t.shape)) for t in list_tensors(batches[0][0]))
    step = f"A step of {other.model.name} on {other.data.source} ({shapes}), {device}"
    heading = f"{step}: {other.backend} beside {against}"
    print_line(console, heading)
    times: Sequence[StepTimes | None] = (None, None)
    if seconds:
        times = measure_steps(trainers, batches, device, seconds)
    base_profile, other_profile = profiles = [
        StepProfile(config, trace, estimate_memory(trace, config), own_times)
        for config, trace, own_times in zip(configs, traces, times, strict=True)
    ]
    messages = list(summarize(base_profile, other_profile, device))
    console.print(_dtype_table(base_profile, other_profile))
    console.print(_cost_table(base_profile, other_profile))
    for message in messages:
        print_line(console, message)
    if file is not None:
        backends = [_as_json(profile) for profile in profiles]
        write_json(file, {"about": heading, "sentences": messages, "backends": backends})
        print_line(console, f"Written: {file}")


def summarize(base: StepProfile, other: StepProfile, device: torch.device) -> Iterator[str]:
    """Yield sentences on speed and its cause, casts, idle time and memory."""
    if base.times and other.times:
        yield from _summarize_times(base, other, base.times, other.times, device)
    else:
        yield "No time was measured (--seconds 0)."
    if other.trace.casts:
        cost = ""
        if other.times and (fraction := other.times.fraction(CASTS)) >= MIN_CAST:
            cost = f"; all casts of a step take {whole_percent(fraction)} of it"
        size = other.trace.cast_bytes / MIB
        yield f"{other.name} casts {other.trace.casts} tensors in a forward, to {size:,.1f} MiB{cost}."
    yield describe_memory(base.memory, other.memory)
    if device.type == "cpu":
        yield "That is of tensors; a report on a CPU has the peak of the whole process, PyTorch and all."


def _summarize_times(
    base: StepProfile, other: StepProfile, base_times: StepTimes, other_times: StepTimes, device: torch.device
) -> Iterator[str]:
    ratio, basis = speed_ratio(base_times.rounds, other_times.rounds)
    took = f"{other.name} takes {_ms(other_times.median)} ms a step, {base.name} {_ms(base_times.median)}"
    yield f"{took}: {ratio:.2f} times as fast ({basis})."
    if not is_difference_shown(base_times.rounds, other_times.rounds):
        yield "No difference in time is shown; more --seconds may show one."
        return
    if not 1 - SAME_SPEED <= ratio <= 1 + SAME_SPEED:
        yield _main_cause(base_times, other_times, other.dtype, device)
    if (fraction := other_times.fraction(IDLE)) >= MIN_IDLE:
        yield (
            f"In {whole_percent(fraction)} of a step no op runs: it waits for Python and for launching, "
            "which no type makes faster. A larger batch_size, execution=compile or cuda_graph do."
        )


def _main_cause(base: StepTimes, other: StepTimes, dtype: str, device: torch.device) -> str:
    """Return which kind of ops makes most of the difference."""
    sign = 1 if other.median > base.median else -1
    kinds = [kind for kind in {**base.kinds, **other.kinds} if kind != IDLE]
    kind = max(kinds, key=lambda kind: sign * (other.kinds.get(kind, 0.0) - base.kinds.get(kind, 0.0)))
    cause = f"{kind}, {_ms(base.kinds.get(kind, 0.0))} > {_ms(other.kinds.get(kind, 0.0))} ms"
    if sign > 0 and describe_arithmetic(device).get(ARITHMETIC, {}).get(dtype) == COMPUTED_IN_FP32:
        return f"This CPU computes {dtype} in fp32: {cause}."
    return f"Most of the difference is {cause}."


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _table(title: str, first: str, *columns: str, justify: Literal["left", "right"]) -> Table:
    table = Table(first, title=title, title_justify="left", title_style="bold", header_style="", box=None)
    for column in columns:
        table.add_column(column, justify=justify)
    return table


def _dtype_table(base: StepProfile, other: StepProfile) -> Table:
    """Return a row per function with the dtypes of its ops; functions that differ come first."""
    reason_head = f"why, under {other.name}"
    table = _table("Types of the forward", "op", base.name, other.name, reason_head, justify="left")
    rows = []
    for name in dict.fromkeys(op.name for profile in (other, base) for op in profile.trace.ops):
        reasons = dict.fromkeys(op.why for op in other.trace.ops if op.name == name)
        rows.append((name, _count_dtypes(base, name), _count_dtypes(other, name), "; ".join(reasons)))
    rows.sort(key=lambda row: row[1] == row[2])
    for row in rows[:MAX_OPS]:
        table.add_row(*row)
    if rows[MAX_OPS:]:
        table.add_row(f"and {len(rows) - MAX_OPS} more", "", "", "")
    return table


def _count_dtypes(profile: StepProfile, name: str) -> str:
    counts = Counter(op.dtype for op in profile.trace.ops if op.name == name)
    return ", ".join(f"{count} {dtype}" for dtype, count in counts.items()) or "-"


def _cost_table(base: StepProfile, other: StepProfile) -> Table:
    table = _table("What it costs", "", base.name, other.name, "of it", justify="right")
    if (base_times := base.times) and (other_times := other.times):
        kinds = {**base_times.kinds, **other_times.kinds}
        for kind in sorted(kinds, key=lambda kind: -other_times.kinds.get(kind, 0.0)):
            pair = base_times.kinds.get(kind, 0.0), other_times.kinds.get(kind, 0.0)
            table.add_row(f"{kind}, ms", *map(_ms, pair), _fraction(*pair))
        medians = base_times.median, other_times.median
        table.add_row("median step, ms", *map(_ms, medians), _fraction(*medians))
        table.add_section()
    parts = [field.name for field in dataclasses.fields(StepMemory) if field.name != "copies"]
    for name in (*parts, "total"):
        sizes = getattr(base.memory, name), getattr(other.memory, name)
        if any(sizes):
            table.add_row(
                f"{name}, about, MiB" if name == "total" else f"{name}, MiB",
                *(f"{size / MIB:,.1f}" for size in sizes),
                _fraction(*sizes),
            )
    return table


def _fraction(base: float, other: float) -> str:
    return whole_percent(other / base) if base else "-"


def _as_json(profile: StepProfile) -> dict[str, Any]:
    ops, trace = Counter(profile.trace.ops), profile.trace
    return {
        "backend": profile.name,
        "dtype": profile.dtype,
        "ops": [{**dataclasses.asdict(op), "count": count} for op, count in ops.items()],
        "casts": {"tensors": trace.casts, "bytes": trace.cast_bytes},
        "memory": dataclasses.asdict(profile.memory) | {"total": profile.memory.total},
        "activations": dict(trace.saved),
        "ms": profile.times and {"rounds": profile.times.rounds, "kinds": profile.times.kinds},
    }
