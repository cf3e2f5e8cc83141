"""`ampcompare bench overhead`: our loop against the bare one. Free of torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ampcompare.bench.child import measure
from ampcompare.bench.results import Estimate, estimate, header, machine_words, markdown_table, write_results

# Step time in ms and the most that our loop may take of it, tracking included.
LIMITS = {1.6: 1.05, 10.0: 1.02}
WITHIN = "within the limits"
STEPS = 50  # a round of one loop: one row
COLUMNS = ("loop", "ms a step", "ratio to bare, clock", "ratio, CPU time", "limit")


def bench_overhead(rounds: int, out: Path | None, console: Console) -> bool:
    """Measure, print, write; whether every limit is shown to hold."""
    sections, body = [], {}
    judged: list[tuple[Estimate, float]] = []
    head: dict[str, Any] = {}
    for target, limit in LIMITS.items():
        with console.status(f"{rounds} rounds of a {target:g} ms step"):
            request = {"target_ms": target, "steps": STEPS, "rounds": rounds}
            found = measure("overhead", request, f"a {target:g} ms step", threads=1)
        rows = []
        for name in found["ms"]:
            clock, cpu = _ratio(found["ms"], name), _ratio(found["cpu_ms"], name)
            found.setdefault("ratio", {})[name], found.setdefault("cpu_ratio", {})[name] = clock, cpu
            is_ours = name.startswith("ours")
            judged += [(clock, limit)] if is_ours else []
            shown = (f"{estimate(found['ms'][name]).median:.3f}", _words(clock), _words(cpu))
            rows.append((name, *shown, f"{limit:.2f}" if is_ours else ""))
        median = estimate(found["ms"]["bare"]).median
        title = f"A step of {median:.2f} ms (asked: {target:g} ms, batch {found['batch_size']}), 1 thread"
        head = header(found.pop("environment"))
        times = {part: estimate(ms).median for part, ms in found["parts_ms"].items()}
        parts = "The bare step: " + ", ".join(f"{part} {ms:.3f} ms" for part, ms in times.items()) + "."
        sections.append(f"## {title}\n\n{markdown_table(COLUMNS, rows)}\n\n{parts}")
        body[f"{target:g} ms"] = found
        table = Table(title=title, box=None)
        for column in COLUMNS:
            table.add_column(column, justify="left" if column == "loop" else "right")
        for row in rows:
            table.add_row(*row)
        console.print(table)
        console.print(parts)
    note = (
        f"Medians with 95 % intervals over {rounds} interleaved rounds of {STEPS} steps; ratios within a round. "
        "CPU time is that of the training thread: what other processes on the machine take is not in it."
    )
    console.print(note)
    console.print(machine_words(head))
    said = verdict(judged)
    console.print(said, style="" if said == WITHIN else "bold")
    if out is not None:
        text = "\n\n".join(["# Overhead of the training loop", *sections, note])
        for path in write_results(
            out, "overhead", head, {"rounds": rounds, "steps": body, "verdict": said}, f"{text}\n\n{said.capitalize()}."
        ):
            console.print(f"wrote {path}", soft_wrap=True, markup=False)
    return said == WITHIN


def verdict(judged: Sequence[tuple[Estimate, float]]) -> str:
    """Whether ratios are within their limits: a median above one says so only if its whole interval is."""
    over = [(ratio, limit) for ratio, limit in judged if ratio.median > limit]
    if not over:
        return WITHIN
    if any(ratio.low > limit for ratio, limit in over):
        return "above a limit"
    return "not decided: an interval has its limit in it, the machine was too busy; run it again on quiet cores"


def _ratio(times: dict[str, list[float]], name: str) -> Estimate:
    return estimate([t / bare for t, bare in zip(times[name], times["bare"], strict=True)])


def _words(ratio: Estimate) -> str:
    return f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
