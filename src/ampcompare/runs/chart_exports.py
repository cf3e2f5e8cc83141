"""Tables that a person exports from a chart: W&B's has a column per run, TensorBoard's a file per tag."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from ampcompare import metrics
from ampcompare.runs.run_record import TIMESTAMP, RunRecord
from ampcompare.runs.same_run import join_rows

WANDB_BOUNDS = ("__MIN", "__MAX")  # columns beside each column of a run, in W&B's export
WANDB_SEPARATOR = " - "  # between the name of the run and the key
RUN = "run"  # setting: the name of the run without its last number
DOWNLOAD = re.compile(r"run-(?P<run>.+)-tag-(?P<tag>.+?)(?: ?\(\d+\))?\.csv", re.I)
DOWNLOAD_COLUMNS = ("Wall time", "Step", "Value")


def split_exports(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the runs in tables. A table that was exported from a chart has several runs, or a part of one.

    Tables of one folder that have a run in common (the charts of several metrics) give one run.
    """
    tables: list[RunRecord] = []
    by_id: dict[str, list[RunRecord]] = {}
    for table in runs:
        exported = _read_download(table) or _read_chart(table)
        for run in exported:
            by_id.setdefault(run.id, []).append(run)
        if not exported:
            tables.append(table)
    joined = [parts[0] if len(parts) == 1 else join_rows(parts) for parts in by_id.values()]
    return tables + joined


def _read_download(table: RunRecord) -> list[RunRecord]:
    """Return the run of a table that TensorBoard's page downloads for one tag, nothing for another table."""
    match = DOWNLOAD.fullmatch(table.paths[0].name)
    if match is None or not {*DOWNLOAD_COLUMNS} <= {*table.logged}:
        return []
    name = (table.paths[0].parent / match["run"]).as_posix()
    logged = {
        metrics.STEP: table.logged["Step"],
        TIMESTAMP: table.logged["Wall time"],
        match["tag"]: table.logged["Value"],
    }
    return [replace(table, id=name, name=name, logged=logged)]


def chart_columns(names: Sequence[str]) -> list[str]:
    """Return the columns of runs (`fp32-1 - val/acc`) in W&B's export of a chart; none in another table."""
    return [
        name
        for name in names
        if WANDB_SEPARATOR in name and all(f"{name}{bound}" in names for bound in WANDB_BOUNDS)
    ]


def chart_problem(names: Sequence[str]) -> str:
    """Return why W&B's export of a chart contains no runs, "" if it does, or is another table."""
    columns = chart_columns(names)
    groups = [name for name in columns if re.match(r"[^-]*\w: ", name.rpartition(WANDB_SEPARATOR)[0])]
    if columns and len(groups) == len(columns):
        return (
            "it is a chart of W&B with means over groups of runs; turn the grouping off and export it again"
        )
    return ""


def _read_chart(table: RunRecord) -> list[RunRecord]:
    """Return the runs of W&B's export of a chart, nothing for another table."""
    folder = table.paths[0].parent
    runs: dict[str, RunRecord] = {}
    for column in chart_columns(list(table.logged)):
        name, _, key = column.rpartition(WANDB_SEPARATOR)
        if name not in runs:
            config = table.config | {RUN: without_number(name)}
            path = (folder / name).as_posix()
            runs[name] = replace(table, id=path, name=name, logged={}, config=config)
        runs[name].logged[key] = table.logged[column]
    return [_number_rows(run, table) for run in runs.values()]


def _number_rows(run: RunRecord, table: RunRecord) -> RunRecord:
    """Return the run with the steps of the rows in which it has a value, and without other rows."""
    steps = table.numbers(metrics.STEP)
    rows = sorted({int(row) for numbers, _ in run.logged.values() for row in numbers})
    new = {row: number for number, row in enumerate(rows)}
    logged = {key: (_renumber(numbers, new), values) for key, (numbers, values) in run.logged.items()}
    logged[metrics.STEP] = (_renumber(rows, new), steps[rows])
    return replace(run, rows=len(rows), logged=logged)


def _renumber(numbers: Iterable[int], new: dict[int, int]) -> np.ndarray:
    return np.array([new[int(number)] for number in numbers], np.int64)


def without_number(name: str) -> str:
    """Return the name of a run without the number, or the seed and its number, at its end."""
    bare = re.sub(r"[-_. ]*(?:seed|run|rep|trial|s|v)?[-_.= ]*\d+$", "", name, flags=re.I)
    return bare or name
