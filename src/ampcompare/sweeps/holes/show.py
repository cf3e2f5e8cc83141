"""The holes of a sweep in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ampcompare.errors import one_line
from ampcompare.program.console import print_line
from ampcompare.report.words import plural
from ampcompare.sweeps.holes.look import Seen
from ampcompare.sweeps.holes.standing import Attempt, Holes, Standing, State

EXIT_HOLES = 3
MOST_ROWS = 200
WIDE = 400  # columns where no terminal says how many: no line is folded that a program may read
STYLES = {State.FAILED: "red", State.CRASHED: "red", State.REFUSED: "red", State.RUNNING: "yellow"}


def show(seen: Seen, console: Console, again: str) -> int:
    """Print the holes and how many there are; returns the exit code: 0 where the sweep is whole, else 3.
    `again` is the command that fills them.
    """
    holes = seen.holes
    if holes.open:
        _table(seen, console)
    for line in _lines(seen):
        print_line(console, one_line(line))
    fillable = [s for s in holes.open if s.state is not State.RUNNING] or holes.not_begun
    if fillable:
        print_line(console, one_line(f"to fill them: {again}"))
    return 0 if holes.is_whole else EXIT_HOLES


def _lines(seen: Seen) -> Iterator[str]:
    yield counted(seen.sweep.name, seen.holes)
    for text in seen.holes.grid.left_out:
        yield f"left out, as they cannot run: {text}"
    yield from seen.remarks


def counted(name: str, holes: Holes) -> str:
    """`compare: 9 points: 7 finished, 1 failed, 1 missing`, and whether that is all."""
    total = len(holes.standings) + (holes.not_begun or 0)
    counts = ", ".join(f"{count} {state.value}" for state, count in holes.counts.items()) or "none"
    end = "; whole" if holes.is_whole else ""
    return f"{name}: {plural(total, 'point')}: {counts}{end}"


def _table(seen: Seen, console: Console) -> None:
    holes = seen.holes
    rows = holes.open[:MOST_ROWS]
    logs = {s.point.place: log for s in rows if s.attempt and (log := seen.log(s.attempt))}
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False)
    heads = ["state", "point", "run", "why", *(["log"] if logs else [])]
    for head in heads:
        table.add_column(head, overflow="fold")
    for standing in rows:
        cells: list[Any] = [
            Text(standing.state.value, style=STYLES.get(standing.state, "")),
            Text(one_line(in_words(standing))),
            Text(one_line(standing.attempt.run_id if standing.attempt else "")),
            Text(one_line(why(standing.attempt))),
        ]
        log = logs.get(standing.point.place)
        cells += [Text(_near(log) if log else "")] if logs else []
        table.add_row(*cells)
    wide = console if console.is_terminal else Console(file=console.file, width=WIDE, highlight=False)
    wide.print(table)
    if len(holes.open) > MOST_ROWS:
        print_line(console, f"and {len(holes.open) - MOST_ROWS:,} more")


def in_words(standing: Standing) -> str:
    """The varied values of a point: `backend=none seed=2`, and which run of the control it is."""
    values = " ".join(f"{key}={value}" for key, value in standing.point.values.items())
    arm = standing.point.arm
    return f"{values} (control, {arm})" if arm else values


def why(attempt: Attempt | None) -> str:
    """What is known of the reason; of a point without a run nothing."""
    return attempt.why if attempt else ""


def _near(path: Path) -> str:
    """The path as one would type it from here."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (OSError, ValueError):
        return str(path)
