"""`ampcompare why explain`: types, memory and time of a step under two backends, and what that comes to."""

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
from ampcompare.why import memory_estimate
from ampcompare.why.memory_estimate import MIB, Memory, memory_of
from ampcompare.why.op_dtypes import Watched, watch_forward
from ampcompare.why.op_profile import CASTS, IDLE, Times, is_shown, measure, ratio

EXPLAINED = "native"  # where the words name no other backend than the one to compare with
MOST_OPS = 10  # rows of a table
MUCH_IDLE, MUCH_CAST = 0.15, 0.02  # of a step, from which it is said
SAME = 0.05  # of a ratio about 1, within which no cause is told


@dataclass(frozen=True)
class Side:
    """One backend of the two. `times` is None where no time was measured."""

    config: Config
    seen: Watched
    memory: Memory
    times: Times | None

    @property
    def name(self) -> str:
        """As it was typed."""
        return self.config.backend

    @property
    def dtype(self) -> str:
        """Return the dtype of the backend's metadata."""
        return get_backend(self.config.backend).dtype


def run_explain(
    words: Sequence[str], against: str, seconds: float, file: Path | None, console: Console
) -> None:
    """Explain a step. Raises UserError."""
    other = make_config(words)
    if other.backend == against:
        other = make_config(words, backend=EXPLAINED)
    if other.backend == against:
        raise UserError(f"--against {against}: the same backend; name another one, as backend=apex_o1")
    configs = [with_synthetic_data(config) for config in (make_config(words, backend=against), other)]
    setting = prepare_run(configs[0])
    device, batches = setting.world.device, setting.first_steps(1)[0]
    trainers = [setting.build_trainer(config) for config in configs]
    seen = [watch_forward(trainer, batches[0]) for trainer in trainers]
    shapes = " and ".join(" x ".join(map(str, t.shape)) for t in list_tensors(batches[0][0]))
    what = f"A step of {other.model.name} on {other.data.source} ({shapes}), {device}"
    head = f"{what}: {other.backend} beside {against}"
    print_line(console, head)
    times: Sequence[Times | None] = (None, None)
    if seconds:
        times = measure(trainers, batches, device, seconds)
    one, two = sides = [
        Side(config, watched, memory_of(watched, config), timed)
        for config, watched, timed in zip(configs, seen, times, strict=True)
    ]
    said = list(sentences(one, two, device))
    console.print(_types(one, two))
    console.print(_costs(one, two))
    for line in said:
        print_line(console, line)
    if file is not None:
        backends = [_as_json(side) for side in sides]
        write_json(file, {"about": head, "sentences": said, "backends": backends})
        print_line(console, f"Written: {file}")


def sentences(base: Side, other: Side, device: torch.device) -> Iterator[str]:
    """What it comes to: the speed and its cause, casts, idle time, memory."""
    if base.times and other.times:
        yield from _on_time(base, other, base.times, other.times, device)
    else:
        yield "No time was measured (--seconds 0)."
    if other.seen.casts:
        took = ""
        if other.times and (share := other.times.share(CASTS)) >= MUCH_CAST:
            took = f"; all casts of a step take {whole_percent(share)} of it"
        size = other.seen.cast_bytes / MIB
        yield f"{other.name} casts {other.seen.casts} tensors in a forward, to {size:,.1f} MiB{took}."
    yield memory_estimate.sentence(base.memory, other.memory)
    if device.type == "cpu":
        yield "That is of tensors; a report on a CPU has the peak of the whole process, PyTorch and all."


def _on_time(base: Side, other: Side, one: Times, two: Times, device: torch.device) -> Iterator[str]:
    value, how = ratio(one.rounds, two.rounds)
    took = f"{other.name} takes {_ms(two.median)} ms a step, {base.name} {_ms(one.median)}"
    yield f"{took}: {value:.2f} times as fast ({how})."
    if not is_shown(one.rounds, two.rounds):
        yield "No difference in time is shown; more --seconds may show one."
        return
    if not 1 - SAME <= value <= 1 + SAME:
        yield _cause(one, two, other.dtype, device)
    if (share := two.share(IDLE)) >= MUCH_IDLE:
        yield (
            f"In {whole_percent(share)} of a step no op runs: it waits for Python and for launching, "
            "which no type makes faster. A larger batch_size, execution=compile or cuda_graph do."
        )


def _cause(one: Times, two: Times, dtype: str, device: torch.device) -> str:
    """Which ops make most of the difference."""
    sign = 1 if two.median > one.median else -1
    kinds = [kind for kind in {**one.kinds, **two.kinds} if kind != IDLE]
    kind = max(kinds, key=lambda kind: sign * (two.kinds.get(kind, 0.0) - one.kinds.get(kind, 0.0)))
    cause = f"{kind}, {_ms(one.kinds.get(kind, 0.0))} > {_ms(two.kinds.get(kind, 0.0))} ms"
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


def _types(base: Side, other: Side) -> Table:
    """A row a function: how many of its ops ran in which type; what differs first."""
    why = f"why, under {other.name}"
    table = _table("Types of the forward", "op", base.name, other.name, why, justify="left")
    rows = []
    for name in dict.fromkeys(op.name for side in (other, base) for op in side.seen.ops):
        reasons = dict.fromkeys(op.why for op in other.seen.ops if op.name == name)
        rows.append((name, _of(base, name), _of(other, name), "; ".join(reasons)))
    rows.sort(key=lambda row: row[1] == row[2])
    for row in rows[:MOST_OPS]:
        table.add_row(*row)
    if rows[MOST_OPS:]:
        table.add_row(f"and {len(rows) - MOST_OPS} more", "", "", "")
    return table


def _of(side: Side, name: str) -> str:
    found = Counter(op.dtype for op in side.seen.ops if op.name == name)
    return ", ".join(f"{count} {dtype}" for dtype, count in found.items()) or "-"


def _costs(base: Side, other: Side) -> Table:
    table = _table("What it costs", "", base.name, other.name, "of it", justify="right")
    if (one := base.times) and (two := other.times):
        kinds = sorted({**one.kinds, **two.kinds}, key=lambda kind: -two.kinds.get(kind, 0.0))
        for kind in kinds:
            pair = one.kinds.get(kind, 0.0), two.kinds.get(kind, 0.0)
            table.add_row(f"{kind}, ms", *map(_ms, pair), _share(*pair))
        medians = one.median, two.median
        table.add_row("median step, ms", *map(_ms, medians), _share(*medians))
        table.add_section()
    parts = [field.name for field in dataclasses.fields(Memory) if field.name != "copies"]
    for name in (*parts, "total"):
        sizes = getattr(base.memory, name), getattr(other.memory, name)
        if any(sizes):
            table.add_row(
                f"{name}, about, MiB" if name == "total" else f"{name}, MiB",
                *(f"{size / MIB:,.1f}" for size in sizes),
                _share(*sizes),
            )
    return table


def _share(one: float, two: float) -> str:
    return whole_percent(two / one) if one else "-"


def _as_json(side: Side) -> dict[str, Any]:
    ops = Counter(side.seen.ops)
    return {
        "backend": side.name,
        "dtype": side.dtype,
        "ops": [{**dataclasses.asdict(op), "count": count} for op, count in ops.items()],
        "casts": {"tensors": side.seen.casts, "bytes": side.seen.cast_bytes},
        "memory": dataclasses.asdict(side.memory) | {"total": side.memory.total},
        "activations": dict(side.seen.saved),
        "ms": side.times and {"rounds": side.times.rounds, "kinds": side.times.kinds},
    }
