"""`ampcompare bench overhead`: our loop against the bare one. Free of torch.

Where a process's memory comes to lie makes one loop or the other up to 3 % faster for as long as it lives, so
the rounds are spread over many processes, and what is estimated from is each one's median.
"""

from __future__ import annotations

from collections.abc import Sequence
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
# Step time in ms and the most that our loop may take of it, tracking included.
LIMITS = {1.6: 1.05, 10.0: 1.02}
WITHIN = "within the limits"
STEPS = 50  # a round of one loop: one row
PROCESSES = 12
COLUMNS = ("loop", "ms a step", "ratio, clock", "ratio, CPU time", "limit")


def bench_overhead(rounds: int, out: Path | None, console: Console) -> bool:
    """Measure, print, write; whether every limit is shown to hold."""
    sections, body = [], {}
    judged: list[tuple[Median, float]] = []
    head: dict[str, Any] = {}
    processes = min(PROCESSES, rounds)
    each = -(-rounds // processes)
    for target, limit in LIMITS.items():
        found = _measure(target, processes, each, console)
        first, rows = found[0], []
        for name in first["ms"]:
            clock, cpu = _ratio(found, "ms", name), _ratio(found, "cpu_ms", name)
            is_ours = name.startswith("ours")
            judged += [(clock, limit)] if is_ours else []
            shown = (f"{_median(found, 'ms', name):.3f}", _words(clock), _words(cpu))
            rows.append((name, *shown, f"{limit:.2f}" if is_ours else ""))
        bare = _median(found, "ms", "bare")
        title = f"A step of {bare:.2f} ms (asked: {target:g} ms, batch {first['batch_size']}), 1 thread"
        head = header(first["environment"])
        times = {part: _median(found, "parts_ms", part) for part in first["parts_ms"]}
        parts = "The bare step: " + ", ".join(f"{part} {ms:.3f} ms" for part, ms in times.items()) + "."
        sections.append(f"## {title}\n\n{markdown_table(COLUMNS, rows)}\n\n{parts}")
        body[f"{target:g} ms"] = [
            {k: v for k, v in process.items() if k != "environment"} for process in found
        ]
        table = Table(title=title, box=None)
        for column in COLUMNS:
            table.add_column(column, justify="left" if column == "loop" else "right")
        for row in rows:
            table.add_row(*row)
        console.print(table)
        console.print(parts)
    note = (
        f"{processes} processes with {each} interleaved rounds of {STEPS} steps each; of the ratios to the "
        "bare loop within a round each process's median, of these the median with its 95 % interval. CPU "
        "time is that of the training thread: what other processes on the machine take is not in it."
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
    """Whether ratios are within their limits: a median above one says so only if its whole interval is."""
    over = [(ratio, limit) for ratio, limit in judged if ratio.median > limit]
    if not over:
        return WITHIN
    if any(ratio.low > limit for ratio, limit in over):
        return "above a limit"
    return (
        "not decided: an interval has its limit in it, the machine was too busy; run it again on quiet cores"
    )


def _measure(target: float, processes: int, rounds: int, console: Console) -> list[dict[str, Any]]:
    """What each process found, all at the batch size of the first one."""
    found: list[dict[str, Any]] = []
    with console.status("") as status:
        for number in range(processes):
            what = f"a {target:g} ms step"
            status.update(f"{what}: process {number + 1} of {processes}, {rounds} rounds")
            request = {"target_ms": target, "steps": STEPS, "rounds": rounds}
            request |= {"batch_size": found[0]["batch_size"]} if found else {}
            found.append(measure(MEASURING, request, what, threads=1))
    return found


def _ratio(found: Sequence[dict[str, Any]], kind: str, name: str) -> Median:
    """The ratio to the bare loop within a round: the median of the processes' medians."""
    pairs = ((process[kind][name], process[kind]["bare"]) for process in found)
    return estimate(
        [median(t / bare for t, bare in zip(times, bares, strict=True)) for times, bares in pairs]
    )


def _median(found: Sequence[dict[str, Any]], kind: str, name: str) -> float:
    return median(t for process in found for t in process[kind][name])


def _words(ratio: Median) -> str:
    return f"{ratio.median:.3f} ({ratio.low:.3f}–{ratio.high:.3f})"
