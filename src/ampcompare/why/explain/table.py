"""What was explained, in the terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from ampcompare.program.console import print_line
from ampcompare.report.words import of_all
from ampcompare.why.explain.census import Census
from ampcompare.why.explain.duration import in_ms
from ampcompare.why.explain.explained import Explained, Side
from ampcompare.why.explain.groups import grouping, summed
from ampcompare.why.explain.memory import MIB, Memory
from ampcompare.why.explain.reasons import WORDS

SHOWN = 12  # kinds of ops that the table of times has
PARTS: tuple[tuple[str, Callable[[Memory], int]], ...] = (
    ("weights", lambda m: m.weights + m.buffers),
    ("fp32 masters", lambda m: m.masters),
    ("optimizer's states", lambda m: m.states),
    ("gradients", lambda m: m.gradients),
    ("the batch", lambda m: m.batch),
    ("activations for the backward", lambda m: m.activations),
    ("passing results at the peak", lambda m: m.workspace),
    ("peak", lambda m: m.peak),
)


def show(found: Explained, console: Console) -> None:
    """Print it all: types, memory, time, by module, and the sentences on them."""
    base, other = found.sides
    shapes = " and ".join(" x ".join(map(str, shape)) for shape in found.batch)
    times = f", {found.accumulate} times a step" if found.accumulate > 1 else ""

    def say(line: str) -> None:
        print_line(console, line)

    say(f"A step of {found.model} on {found.source} ({shapes}{times}): {_name(other)} against {_name(base)}")
    console.print(_types(base, other))
    for line in _casts(other):
        say(line)
    for line in _differences(found):
        say(line)
    console.print(_memory(base, other))
    say(found.about_memory)
    say(f"Forecast of the time on {found.device}; {found.error}.")
    console.print(_times(base, other))
    console.print(_modules(base, other))
    for line in (*found.about_time, *found.hints, *_measured(found)):
        say(line)
    for line in found.remarks:
        say(f"note: {line}")


def _name(side: Side) -> str:
    return f"{side.backend} ({side.words}, {side.dtype})"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table


def _types(base: Side, other: Side) -> Table:
    table = Table(
        title="Types of the forward's ops", title_justify="left", title_style="bold", header_style=""
    )
    for column in ("op", base.backend, other.backend, f"why, under {other.backend}"):
        table.add_column(column)
    names = dict.fromkeys(kind.function for side in (other, base) for kind in side.census.kinds)
    for name in names:
        reasons = dict.fromkeys(WORDS[kind.why] for kind in other.census.kinds if kind.function == name)
        table.add_row(name, _of(base.census, name), _of(other.census, name), "; ".join(reasons))
    return table


def _of(census: Census, function: str) -> str:
    found: dict[str, int] = {}
    for kind in census.kinds:
        if kind.function == function:
            found[kind.dtype] = found.get(kind.dtype, 0) + kind.count
    return ", ".join(f"{count} {dtype}" for dtype, count in found.items()) or "-"


def _differences(found: Explained) -> list[str]:
    """Where two backends that cast take different types; beside plain fp32 the table says it all."""
    base, other = found.sides
    if base.dtype == "float32":
        return []
    said = []
    for one in found.differences:
        types = [
            ", ".join(f"{dtype} ({why})" for dtype, why in dict.fromkeys(p)) or "-"
            for p in (one.other, one.one)
        ]
        said.append(f"{one.function}: {other.backend} {types[0]}; {base.backend} {types[1]}.")
    return said


def _casts(side: Side) -> list[str]:
    found = [
        f"{c.tensors} in the {c.phase} ({c.size / MIB:,.1f} MiB)" for c in side.census.casts if c.tensors
    ]
    if not found:
        return [f"{side.backend} casts nothing."]
    cost = side.time.by_kind.get("casts")
    took = f"; together {in_ms(cost.seconds)} ms" if cost else ""
    return [f"Tensors that {side.backend} casts, with what that reads and writes: {', '.join(found)}{took}."]


def _memory(base: Side, other: Side) -> Table:
    table = _table("Memory, MiB", "", base.backend, other.backend, "of it")
    for words, read in PARTS:
        pair = [read(side.memory) for side in (base, other)]
        if any(pair):
            bound = (
                ""
                if other.memory.exact or words not in ("peak", "passing results at the peak")
                else " at most"
            )
            table.add_row(words + bound, *(f"{size / MIB:,.1f}" for size in pair), _ratio(pair[1], pair[0]))
    return table


def _times(base: Side, other: Side) -> Table:
    columns = ("op", base.backend, other.backend, "times as fast", "of the bytes", "bound by")
    table = _table("Time of a step, ms", *columns)
    names = dict.fromkeys([*other.time.by_kind, *base.time.by_kind])
    for name in list(names)[:SHOWN]:
        one, two = base.time.by_kind.get(name), other.time.by_kind.get(name)
        row = [in_ms(part.seconds if part else 0.0) for part in (one, two)]
        faster = f"{one.seconds / two.seconds:.2f}" if one and two and two.seconds else "-"
        share = of_all(two.size / other.time.size) if two and other.time.size else "-"
        bound = ("memory" if two.moving > 0.5 * two.seconds else "arithmetic") if two else "-"
        table.add_row(name, *row, faster, share, bound)
    if other.time.seconds:
        row = [in_ms(side.time.seconds) for side in (base, other)]
        table.add_row("all", *row, f"{base.time.seconds / other.time.seconds:.2f}", "100%", "", style="bold")
    return table


def _modules(base: Side, other: Side) -> Table:
    names = [name for side in (base, other) for name in (*side.census.modules, *side.time.by_module)]
    groups = grouping(sorted(dict.fromkeys(names), key=lambda name: name.startswith("(")))
    memory, seconds = (
        [summed(values, groups) for values in pair]
        for pair in (
            [{k: float(v) for k, v in side.memory.by_module.items()} for side in (base, other)],
            [{k: part.seconds for k, part in side.time.by_module.items()} for side in (base, other)],
        )
    )
    columns = [f"{what} {side.backend}" for what in ("MiB", "ms") for side in (base, other)]
    table = _table("By module: activations and time", "module", "types", *columns)
    for group in dict.fromkeys(groups.values()):
        types = dict.fromkeys(
            dtype
            for name, found in other.census.modules.items()
            if groups.get(name) == group
            for dtype in found
        )
        cells = [f"{known.get(group, 0.0) / MIB:,.1f}" for known in memory]
        cells += [in_ms(known.get(group, 0.0)) for known in seconds]
        table.add_row(group, ", ".join(types) or "-", *cells)
    return table


def _measured(found: Explained) -> list[str]:
    if found.measured is None:
        return []
    said: list[str] = []
    for side, median, rounds, peak in zip(
        found.sides, found.measured.medians, found.measured.rounds, found.measured.peaks, strict=True
    ):
        off = side.time.seconds / median - 1
        line = f"Measured here, {side.backend}: {in_ms(median)} ms, the median of {len(rounds)} rounds; "
        line += f"the forecast is {of_all(abs(off))} {'above' if off > 0 else 'below'}"
        if peak:
            off = side.memory.peak / peak - 1
            line += f"; the allocator's peak is {peak / MIB:,.1f} MiB, the forecast of it {off:+.1%} off"
        said.append(f"{line}.")
    return said


def _ratio(one: float, other: float) -> Any:
    return of_all(one / other) if other else "-"
