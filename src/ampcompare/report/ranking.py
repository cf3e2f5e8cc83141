"""The report of a search without a baseline: a table of its runs, on the terminal, as page and as JSON."""

import io
import json
import math
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ampcompare.analysis.run_ranking import RunRanking, parameter_text
from ampcompare.runtime.atomic_files import make_folder, write_file
from ampcompare.runtime.console import print_line
from ampcompare.runtime.formatting import plural, printable

MAX_ROWS = 15  # on the terminal
MAX_WIDTH = 10_000  # columns of the page, and of output into a file
NO_CLAIM = "This is a list of runs, not a comparison: the best of many runs is partly the luckiest one."


def write_ranking(ranking: RunRanking, folder: Path, console: Console) -> None:
    """Write the table as page and as JSON, then print its first rows.

    Raises:
        UserError: If a file cannot be written.
    """
    folder = make_folder(folder, f"the report {str(folder)!r}")
    page = Console(file=io.StringIO(), record=True, force_terminal=True, width=MAX_WIDTH)
    _print(ranking, page, len(ranking.runs))
    path = write_file(folder / "index.html", page.export_html().encode("utf-8", "replace"))
    write_file(folder / "runs.json", _as_json(ranking).encode("utf-8", "replace"))
    _print(ranking, console, MAX_ROWS)
    print_line(console, "also: runs.json")
    print_line(console, f"page: {path}")


def _print(ranking: RunRanking, console: Console, max_rows: int) -> None:
    """Print the heading, the first rows of the table, and what the table does not say."""
    print_line(console, ranking.heading)
    table = _table(ranking, max_rows)
    if console.is_terminal:
        console.print(table)
    else:
        Console(file=console.file, width=MAX_WIDTH).print(table)
    if len(ranking.runs) > max_rows:
        print_line(console, f"{plural(len(ranking.runs) - max_rows, 'more run')} on the page")
    if ranking.reason:
        print_line(console, f"No comparison: {ranking.reason}")
    print_line(console, NO_CLAIM)


def _table(ranking: RunRanking, max_rows: int) -> Table:
    metric = [ranking.metric] if ranking.metric else []
    table = Table(box=None, header_style="dim")
    for head in ["rank", *metric, *ranking.keys, "state", "run"]:
        is_number = head in ("rank", ranking.metric)
        table.add_column(Text(printable(head)), justify="right" if is_number else "left", overflow="fold")
    for number, run in enumerate(ranking.runs[:max_rows], 1):
        value = "" if run.value is None else f"{run.value:.6g}"
        values = [value] if ranking.metric else []
        parameters = [parameter_text(run.parameters.get(key)) for key in ranking.keys]
        cells = [str(number), *values, *parameters, run.state.value, run.run_id]
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


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
