"""`ampcompare bench overhead`: our loop against the bare one. Free of torch.

Where a process's memory comes to lie makes one loop or the other up to 3 % faster for as long as it lives, so
the rounds are spread over many processes, and what is estimated from is each one's median.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from ampcompare.bench.child import measure
from ampcompare.bench.results import (
    Median,
    estimate,
    header,
    machine_words,
    markdown_table,
    write_results,
)

MEASURING = Path(__file__).with_name("overhead.py")
BARE_RECORDED, OURS_RECORDED = "bare, W&B offline", "ours, W&B offline"
WITHIN = "within the limits"
STEPS = 50  # a round of one loop
PROCESSES = 12
EXTRA = "CPU over bare with W&B, ms"
COLUMNS = ("loop", "ms a step", "ratio, clock", "ratio, CPU time", EXTRA, "limit")


@dataclass(frozen=True)
class Case:
    """What is measured together, with its limits.

    `ratio` is the most that our loop may take of the bare one's time by the clock, tracking included;
    `extra_ms` how much more of the training thread's CPU time a step ours with W&B may take than the bare
    loop that gives two values to W&B as often. None: shown, not judged.
    """

    step_ms: float
    every: int  # steps between two rows
    ratio: float | None
    extra_ms: float | None

    def __str__(self) -> str:
        return f"{self.step_ms:g} ms, a row every {self.every} steps"


# 0.05 ms of a step of 10 ms is less than one process differs from the next by.
CASES = (Case(1.6, 10, None, 0.05), Case(1.6, 50, 1.05, 0.05), Case(10.0, 50, 1.02, None))


def bench_overhead(rounds: int, out: Path | None, console: Console) -> bool:
    """Measure, print, write; whether every limit is shown to hold."""
    sections, body = [], {}
    judged: list[tuple[Median, float]] = []
    head: dict[str, Any] = {}
    processes = min(PROCESSES, rounds)
    each = -(-rounds // processes)
    for case in CASES:
        found = _measure(case, processes, each, console)
        first = found[0]
        rows = [_row(case, found, name, judged) for name in first["ms"]]
        bare = _median(found, "ms", "bare")
        size = f"asked: {case.step_ms:g} ms, batch {first['batch_size']}"
        title = f"A step of {bare:.2f} ms ({size}), a row every {case.every} steps, 1 thread"
        head = header(first["environment"])
        times = {part: _median(found, "parts_ms", part) for part in first["parts_ms"]}
        parts = "The bare step: " + ", ".join(f"{part} {ms:.3f} ms" for part, ms in times.items()) + "."
        sections.append(f"## {title}\n\n{markdown_table(COLUMNS, rows)}\n\n{parts}")
        body[str(case)] = [{k: v for k, v in process.items() if k != "environment"} for process in found]
        table = Table(title=title, box=None)
        for column in COLUMNS:
            table.add_column(column, justify="left" if column == "loop" else "right")
        for row in rows:
            table.add_row(*row)
        console.print(table)
        console.print(parts)
    note = (
        f"{processes} processes with {each} interleaved rounds of {STEPS} steps each; of the ratios to the "
        "bare loop, and of the differences to the bare loop with two values to W&B, within a round each "
        "process's median, of these the median with its 95 % interval. CPU time is that of the training "
        "thread: what other threads and processes take is not in it, but what they do to its caches is."
    )
    console.print(note)
    console.print(machine_words(head))
    said = verdict(judged)
    console.print(said, style="" if said == WITHIN else "bold")
    if out is not None:
        text = "\n\n".join(["# Overhead of the training loop", *sections, note])
        for path in write_results(
            out,
            "overhead",
            head,
            {"rounds": each, "steps": body, "verdict": said},
            f"{text}\n\n{said.capitalize()}.",
        ):
            console.print(f"wrote {path}", soft_wrap=True, markup=False)
    return said == WITHIN


def verdict(judged: Sequence[tuple[Median, float]]) -> str:
    """Whether figures are within their limits: a median above one says so only if its whole interval is."""
    over = [(figure, limit) for figure, limit in judged if figure.median > limit]
    if not over:
        return WITHIN
    if any(figure.low > limit for figure, limit in over):
        return "above a limit"
    return (
        "not decided: an interval has its limit in it, the machine was too busy; run it again on quiet cores"
    )


def _row(
    case: Case, found: Sequence[dict[str, Any]], name: str, judged: list[tuple[Median, float]]
) -> tuple[str, ...]:
    """A loop's row of the table; what has a limit is added to `judged`."""
    clock, cpu = _ratio(found, "ms", name), _ratio(found, "cpu_ms", name)
    extra = _over(found, "cpu_ms", name, BARE_RECORDED)
    limits = []
    if name.startswith("ours") and case.ratio is not None:
        judged.append((clock, case.ratio))
        limits.append(f"{case.ratio:.2f}")
    if name == OURS_RECORDED and case.extra_ms is not None:
        judged.append((extra, case.extra_ms))
        limits.append(f"{case.extra_ms:g} ms")
    shown = (f"{_median(found, 'ms', name):.3f}", _words(clock), _words(cpu))
    return name, *shown, "" if name == BARE_RECORDED else _words(extra), ", ".join(limits)


def _measure(case: Case, processes: int, rounds: int, console: Console) -> list[dict[str, Any]]:
    """What each process found, all at the batch size of the first one."""
    found: list[dict[str, Any]] = []
    with console.status("") as status:
        for number in range(processes):
            status.update(f"a step of {case}: process {number + 1} of {processes}, {rounds} rounds")
            request = {"target_ms": case.step_ms, "steps": STEPS, "rounds": rounds, "every": case.every}
            request |= {"batch_size": found[0]["batch_size"]} if found else {}
            found.append(measure(MEASURING, request, f"a step of {case}", threads=1))
    return found


def _ratio(found: Sequence[dict[str, Any]], kind: str, name: str) -> Median:
    """The ratio to the bare loop within a round: the median of the processes' medians."""
    pairs = ((process[kind][name], process[kind]["bare"]) for process in found)
    return estimate(
        [median(t / bare for t, bare in zip(times, bares, strict=True)) for times, bares in pairs]
    )


def _over(found: Sequence[dict[str, Any]], kind: str, name: str, other: str) -> Median:
    """The difference to another loop within a round, likewise; ms a step."""
    pairs = ((process[kind][name], process[kind][other]) for process in found)
    return estimate([median(a - b for a, b in zip(ours, theirs, strict=True)) for ours, theirs in pairs])


def _median(found: Sequence[dict[str, Any]], kind: str, name: str) -> float:
    return median(t for process in found for t in process[kind][name])


def _words(figure: Median) -> str:
    return f"{figure.median:.3f} ({figure.low:.3f}–{figure.high:.3f})"
