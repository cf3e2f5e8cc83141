"""Tables that a person exports from a chart: W&B's has a column per run, TensorBoard's a file per tag."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from ampcompare import metrics
from ampcompare.runs.joined_rows import join_rows
from ampcompare.runs.run_record import TIMESTAMP, RunRecord

WANDB_BOUNDS = ("__MIN", "__MAX")  # columns beside each column of a run, in W&B's export
WANDB_SEPARATOR = " - "  # between the name of the run and the key
DOWNLOAD = re.compile(r"run-(?P<run>.+)-tag-(?P<tag>.+?)(?: ?\(\d+\))?\.csv", re.I)
DOWNLOAD_COLUMNS = ("Wall time", "Step", "Value")


def join_exports(runs: Iterable[RunRecord]) -> list[RunRecord]:
    """Return the runs in tables. The charts of several metrics in one folder give one run for each name."""
    by_id: dict[str, list[RunRecord]] = {}
    for run in runs:
        by_id.setdefault(run.id, []).append(run)
    return [parts[0] if len(parts) == 1 else join_rows(parts) for parts in by_id.values()]


def split_export(table: RunRecord) -> list[RunRecord]:
    """Return the runs of a table that was exported from a chart, nothing for another table."""
    return _read_download(table) or _read_chart(table)


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
    """Return the columns of runs (`fp32-1 - val/acc`) in W&B's export of a chart; none in another table.

    Beside each stand two columns with bounds. Where somebody removed these, all columns but the step are of
    one key.
    """
    columns = [name for name in names if WANDB_SEPARATOR in name and not name.endswith(WANDB_BOUNDS)]
    with_bounds = [name for name in columns if all(f"{name}{bound}" in names for bound in WANDB_BOUNDS)]
    others = {*names} - {*columns, metrics.STEP}
    is_of_one_key = len({name.rpartition(WANDB_SEPARATOR)[2] for name in columns}) == 1
    return columns if len(others) <= 1 and is_of_one_key else with_bounds


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
    """Return the runs of W&B's export of a chart, nothing for another table. A run is its whole name."""
    folder = table.paths[0].parent
    keys: dict[str, dict[str, str]] = {}  # by run: the key of each of its columns
    for column in chart_columns(list(table.logged)):
        name, _, key = column.rpartition(WANDB_SEPARATOR)
        keys.setdefault(name, {})[column] = key
    runs = []
    for name, columns in keys.items():
        rows = np.zeros(table.rows, bool)
        for column in columns:
            rows[table.logged[column][0]] = True
        chosen = table.select(rows)
        logged = {key: chosen.logged[column] for column, key in columns.items() if column in chosen.logged}
        logged[metrics.STEP] = chosen.logged[metrics.STEP]
        run_id = f"{folder.as_posix()}/{name}"
        runs.append(replace(chosen, id=run_id, name=name, logged=logged, is_of_chart=True))
    return runs
