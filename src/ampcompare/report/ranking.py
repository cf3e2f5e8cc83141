"""The report of a search without a baseline: a table of its runs, on the terminal, as page and as JSON."""

import json
import math
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ampcompare.analysis.run_ranking import RunRanking, parameter_text
from ampcompare.report.comparison_table import TextRows
from ampcompare.report.page.render import render_ranking
from ampcompare.runtime.atomic_files import make_folder, write_file
from ampcompare.runtime.console import print_line
from ampcompare.runtime.formatting import plural, printable

MAX_ROWS = 15  # on the terminal
MAX_WIDTH = 10_000  # columns of output into a file
NO_CLAIM = "This is a list of runs, not a comparison: the best of many runs is partly the luckiest one."


def write_ranking(ranking: RunRanking, folder: Path, console: Console) -> None:
    """Write the table as page and as JSON, then print its first rows.

    Raises:
        UserError: If a file cannot be written.
    """
    folder = make_folder(folder, f"the report {str(folder)!r}")
    rows = _rows(ranking)
    notes = [f"No comparison: {ranking.reason}"] if ranking.reason else []
    notes.append(NO_CLAIM)
    path = write_file(folder / "index.html", render_ranking(ranking, rows, notes))
    write_file(folder / "runs.json", _as_json(ranking).encode("utf-8", "replace"))
    print_line(console, ranking.heading)
    _print_table(rows[: 1 + MAX_ROWS], 1 + bool(ranking.metric), console)
    if len(ranking.runs) > MAX_ROWS:
        print_line(console, f"{plural(len(ranking.runs) - MAX_ROWS, 'more run')} on the page")
    for note in [*notes, "also: runs.json", f"page: {path}"]:
        print_line(console, note)


def _rows(ranking: RunRanking) -> TextRows:
    """Return a row per run, best first."""
    metric = [ranking.metric] if ranking.metric else []
    rows = [["rank", *metric, *ranking.keys, "state", "run"]]
    for number, run in enumerate(ranking.runs, 1):
        value = "" if run.value is None else f"{run.value:.6g}"
        values = [value] if ranking.metric else []
        parameters = [parameter_text(run.parameters.get(key)) for key in ranking.keys]
        rows.append([str(number), *values, *parameters, run.state.value, run.run_id])
    return [tuple(map(printable, row)) for row in rows]


def _print_table(rows: TextRows, numbers: int, console: Console) -> None:
    """Print a table whose first columns, `numbers` of them, hold numbers."""
    table = Table(box=None, header_style="dim")
    for column, head in enumerate(rows[0]):
        table.add_column(Text(head), justify="right" if column < numbers else "left", overflow="fold")
    for row in rows[1:]:
        table.add_row(*map(Text, row))
    if console.is_terminal:
        console.print(table)
    else:
        Console(file=console.file, width=MAX_WIDTH).print(table)


def _as_json(ranking: RunRanking) -> str:
    runs = [
        {
            "run": run.run_id,
            "state": run.state.value,
            "value": run.value if run.value is not None and math.isfinite(run.value) else None,
            "parameters": run.parameters,
        }
        for run in ranking.runs
    ]
    content = {"metric": ranking.metric, "goal": "maximize" if ranking.maximize else "minimize", "runs": runs}
    return json.dumps(content, indent=1, default=str)
