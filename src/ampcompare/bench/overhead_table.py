"""`ampcompare bench overhead`: our loop against the bare one. Free of torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ampcompare.bench.child import measure
from ampcompare.bench.results import estimate, header, machine_words, markdown_table, write_results

# Step time in ms and the most that our loop may take of it, tracking included.
LIMITS = {1.6: 1.05, 10.0: 1.02}
STEPS = 100
COLUMNS = ("loop", "ms a step", "ratio to bare", "95 % interval", "limit")


def bench_overhead(rounds: int, out: Path | None, console: Console) -> bool:
    """Measure, print, write; whether every limit holds."""
    sections, body, holds = [], {}, True
    head: dict[str, Any] = {}
    for target, limit in LIMITS.items():
        with console.status(f"{rounds} rounds of a {target:g} ms step"):
            request = {"target_ms": target, "steps": STEPS, "rounds": rounds}
            found = measure("overhead", request, f"a {target:g} ms step", threads=1)
        bare = found["ms"]["bare"]
        rows = []
        for name, times in found["ms"].items():
            ratio = estimate([t / b for t, b in zip(times, bare, strict=True)])
            found.setdefault("ratio", {})[name] = ratio
            is_ours = name.startswith("ours")
            holds = holds and not (is_ours and ratio.median > limit)
            shown = (f"{estimate(times).median:.3f}", f"{ratio.median:.3f}", f"{ratio.low:.3f} to {ratio.high:.3f}")
            rows.append((name, *shown, f"{limit:.2f}" if is_ours else ""))
        title = (
            f"A step of {estimate(bare).median:.2f} ms (asked: {target:g} ms, batch {found['batch_size']}), 1 thread"
        )
        head = header(found.pop("environment"))
        sections.append(f"## {title}\n\n{markdown_table(COLUMNS, rows)}")
        body[f"{target:g} ms"] = found
        table = Table(title=title, box=None)
        for column in COLUMNS:
            table.add_column(column, justify="left" if column == "loop" else "right")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    note = f"Medians over {rounds} interleaved rounds of {STEPS} steps; ratios within a round."
    console.print(note)
    console.print(machine_words(head))
    console.print("within the limits" if holds else "above a limit", style="" if holds else "bold")
    if out is not None:
        text = "\n\n".join(["# Overhead of the training loop", *sections, note])
        for path in write_results(out, "overhead", head, {"rounds": rounds, "steps": body, "holds": holds}, text):
            console.print(f"wrote {path}", soft_wrap=True, markup=False)
    return holds
