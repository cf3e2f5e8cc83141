"""The report of a search without a baseline: a table of its runs, and the metric against each parameter."""

import csv
import html
import io
import json
import math
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ampcompare.analysis.run_ranking import RankedRun, RunRanking, is_quantity, parameter_text
from ampcompare.report.charts.vega import FONT, SCHEMA, draw
from ampcompare.runtime.atomic_files import make_folder, write_file
from ampcompare.runtime.console import print_line
from ampcompare.runtime.formatting import plural, printable

MAX_ROWS = 15  # on the terminal
MAX_CHARTS = 12
ALL_DIGITS = 17  # with which every number is exact
WIDE_RANGE = 30  # from this ratio of the largest to the smallest value on, an axis is logarithmic
NO_CLAIM = "This is a list of runs, not a comparison: the best of many runs is partly the luckiest one."
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem;
       color: #1c2330; background: #fff }
table { border-collapse: collapse; display: block; overflow-x: auto }
th, td { text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid #dfe3e9;
         white-space: nowrap }
figure { display: inline-block; margin: 1rem 1rem 0 0 }
"""


def write_ranking(ranking: RunRanking, folder: Path, console: Console) -> None:
    """Write the page and the table as CSV and JSON, then print the table.

    Raises:
        UserError: If a file cannot be written.
    """
    folder = make_folder(folder, f"the report {str(folder)!r}")
    page = write_file(folder / "index.html", _page(ranking).encode("utf-8", "replace"))
    write_file(folder / "runs.csv", _as_csv(ranking).encode("utf-8", "replace"))
    write_file(folder / "runs.json", _as_json(ranking).encode("utf-8", "replace"))
    print_line(console, ranking.heading)
    table = _terminal_table(ranking)
    natural = console.measure(table, options=console.options.update(max_width=10_000)).maximum
    if console.is_terminal:
        console.print(table)
    else:  # a file has any width
        Console(file=console.file, width=max(natural, 1), highlight=False).print(table)
    if len(ranking.runs) > MAX_ROWS:
        print_line(console, f"{plural(len(ranking.runs) - MAX_ROWS, 'more run')} on the page")
    if ranking.reason:
        print_line(console, f"No comparison: {ranking.reason}")
    print_line(console, NO_CLAIM)
    print_line(console, "also: runs.csv, runs.json")
    print_line(console, f"page: {page}")


def _header(ranking: RunRanking) -> list[str]:
    metric = [ranking.metric] if ranking.metric else []
    return ["rank", *metric, *ranking.keys, "state", "run"]


def _rows(ranking: RunRanking, digits: int = 6) -> Iterator[list[str]]:
    """Yield the rows of the table, with numbers of this many digits."""
    for number, run in enumerate(ranking.runs, 1):
        value = "" if run.value is None else f"{run.value:.{digits}g}"
        metric = [value] if ranking.metric else []
        parameters = [parameter_text(run.parameters.get(key), digits) for key in ranking.keys]
        yield [str(number), *metric, *parameters, run.state.value, run.run_id]


def _terminal_table(ranking: RunRanking) -> Table:
    table = Table(box=None, header_style="dim")
    for head in _header(ranking):
        is_number = head in ("rank", ranking.metric)
        table.add_column(Text(printable(head)), justify="right" if is_number else "left", overflow="fold")
    for row in list(_rows(ranking))[:MAX_ROWS]:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def _as_csv(ranking: RunRanking) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerows([_header(ranking), *_rows(ranking, ALL_DIGITS)])
    return file.getvalue()


def _as_json(ranking: RunRanking) -> str:
    runs = [
        {
            "run": run.run_id,
            "state": run.state.value,
            "value": _finite(run.value),
            "parameters": run.parameters,
        }
        for run in ranking.runs
    ]
    content = {"metric": ranking.metric, "goal": "maximize" if ranking.maximize else "minimize", "runs": runs}
    return json.dumps(content, indent=1, default=str)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _page(ranking: RunRanking) -> str:
    """Return the page: it needs no script and no network."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in _header(ranking))
    rows = "\n".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in _rows(ranking)
    )
    reason = f"<p>No comparison: {html.escape(ranking.reason)}</p>" if ranking.reason else ""
    charts = "\n".join(f"<figure>{svg}</figure>" for svg in _charts(ranking))
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{html.escape(ranking.heading)}</title>
<style>{STYLE}</style>
<h1>{html.escape(ranking.heading)}</h1>
{reason}
<p>{NO_CLAIM}</p>
{charts}
<table>
<tr>{head}</tr>
{rows}
</table>
</html>
"""


def _charts(ranking: RunRanking) -> Iterator[str]:
    """Yield the metric against each parameter, as SVG."""
    measured = [run for run in ranking.runs if _finite(run.value) is not None]
    if not ranking.metric or not measured:
        return
    for key in ranking.keys[:MAX_CHARTS]:
        runs = [run for run in measured if key in run.parameters]
        if runs:
            spec = json.dumps(_chart(ranking, key, runs))
            yield draw(spec, ("svg",), version("vl-convert-python"))["svg"].decode("utf-8")


def _chart(ranking: RunRanking, key: str, runs: list[RankedRun]) -> dict[str, Any]:
    """Return the Vega-Lite specification of the metric against a parameter."""
    values = [run.parameters[key] for run in runs]
    x: dict[str, Any] = {"field": "x", "title": printable(key)}
    if is_quantity(values):
        is_wide = min(values) > 0 and max(values) / min(values) >= WIDE_RANGE
        x |= {"type": "quantitative", "scale": {"type": "log"} if is_wide else {"zero": False}}
    else:
        values = [printable(parameter_text(value)) for value in values]
        x |= {"type": "nominal"}
    y = {"field": "y", "type": "quantitative", "title": printable(ranking.metric), "scale": {"zero": False}}
    colour = {"field": "state", "type": "nominal", "title": None}
    data = [{"x": x, "y": run.value, "state": run.state.value} for x, run in zip(values, runs, strict=True)]
    return {
        "$schema": SCHEMA,
        "width": 280,
        "height": 200,
        "config": {"font": FONT},
        "data": {"values": data},
        "mark": {"type": "point", "filled": True, "opacity": 0.7},
        "encoding": {"x": x, "y": y, "color": colour},
    }
