"""CSV files and JSON lines of any program (Lightning's `metrics.csv`, timm's `summary.csv`) as runs."""

import csv
import warnings
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ampcompare import metrics
from ampcompare.errors import reason
from ampcompare.runs.chart_exports import split_export
from ampcompare.runs.load_options import NO_STEP, RUNS, ReadingOptions
from ampcompare.runs.missing_input import MissingInput
from ampcompare.runs.nested import flatten, is_number, parse_json
from ampcompare.runs.results_table import check_no_results, describe_missing_step, read_results
from ampcompare.runs.row_order import split_runs
from ampcompare.runs.run_record import RunRecord, build_columns
from ampcompare.runs.run_state import RunState
from ampcompare.runs.settings_files import read_settings_of, run_folder
from ampcompare.runs.step_keys import STEP_COLUMNS
from ampcompare.runs.table_format import COMMENT, UNNAMED, TableFormat, is_number_text, read_format
from ampcompare.runs.values import first_numbers, read_values
from ampcompare.runtime.formatting import printable, short

MAX_HEAD_BYTES = 1_000_000  # limit of the first line
MAX_BYTES = 4_000_000  # of a file of JSON lines, in which the step is searched
HEAD_LINES = 1_000  # lines of which one must be JSON with the step
STEPLESS = "PARAMETER"  # the step that NVIDIA's DLLogger writes beside settings


def read_head(path: Path, size: int) -> bytes:
    """Return the first bytes of a file; empty if it is no plain file or cannot be read."""
    try:
        if not path.is_file():  # a pipe would block for ever
            return b""
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        return b""


def step_columns(names: Sequence[str], step: str | None) -> list[str]:
    """Return the columns that may count the steps, the surest first.

    It is the column called `step`, else those of STEP_COLUMNS in any case. A table of one column has none.
    """
    if len(names) < 2:
        return []
    if step and step != NO_STEP:
        return [step] if step in names else []
    by_name = {name.lower(): name for name in reversed(names)}
    return [by_name[name] for name in STEP_COLUMNS if name in by_name]


def has_step(names: Sequence[str], options: ReadingOptions) -> bool:
    """Return whether a table with these columns can be read: it has a step, or needs none."""
    is_free = options.step == NO_STEP or options.rows == RUNS
    return bool(names) if is_free else bool(step_columns(names, options.step))


def json_keys(head: bytes) -> list[str]:
    """Return the keys of the JSON objects in the lines at the beginning of a file."""
    return list(dict.fromkeys(key for row in json_rows(head) for key in row))


def json_rows(head: bytes) -> list[dict[str, Any]]:
    """Return the JSON objects that stand in lines of their own at the beginning of a file, as flat rows."""
    lines = head.decode("utf-8-sig", "replace").splitlines()[:HEAD_LINES]
    return [dict(flatten(row)) for row in map(_object_in, lines) if row is not None]


def _object_in(line: str) -> dict[str, Any] | None:
    """Return the JSON object in a line, None for any other line.

    A logger may have written time and level before it: `INFO:root:{"step": 1}`. A comma follows it in a list
    with one object per line.
    """
    begin = line.find("{")
    if begin < 0:
        return None
    try:
        value = parse_json(line[begin:].rstrip().removesuffix(","))
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def read_tables(paths: Iterable[Path], options: ReadingOptions, *, are_lines: bool) -> list[RunRecord]:
    """Return the runs in CSV files or in files of JSON lines. What is wrong becomes a sentence in `problems`.

    Raises:
        MissingInput: A file may have several runs, or its step is no number.
        UserError: A file has no column that the user names.
    """
    runs = []
    for path in paths:
        runs += _read_table(path, options, are_lines=are_lines)
    return runs


def _read_table(path: Path, options: ReadingOptions, *, are_lines: bool) -> list[RunRecord]:
    name = path.with_suffix("") if are_lines else run_folder(path)
    config, problems = read_settings_of(path)
    text = name.as_posix()
    table = RunRecord(
        id=text, name=text, state=RunState.FINISHED, paths=(path,), config=config, problems=problems
    )
    try:
        table.last_write = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        headers = _read_lines(table, path) if are_lines else _read_cells(table, path, options)
    except (OSError, ValueError) as problem:  # pandas' errors are ValueErrors
        problems.append(f"Reading {path.name} stopped: {reason(problem)}.")
        return [table]
    if not table.rows:
        problems.append(f"{path.name} has no row.")
        return [table]
    if options.rows == RUNS:
        return read_results(table, options.run_columns)
    if options.step is None:
        check_no_results(table)
    if not _add_step(table, options):
        return [table]
    exported = split_export(table)
    if exported:
        return [run for part in exported for run in split_runs(part, options)]
    return split_runs(table, options, headers)


def _read_lines(table: RunRecord, path: Path) -> list[int]:
    """Read the rows of a file of JSON lines: one object per row, nested keys joined by dots."""
    bad = 0

    def rows() -> Iterator[dict[str, Any]]:
        """Yield the objects of the file as flat rows."""
        nonlocal bad
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            for line in file:
                row = _object_in(line)
                if row is not None:
                    yield dict(flatten(row))
                elif line.strip():
                    bad += 1

    table.rows, table.logged = build_columns(rows())
    _convert_columns(table)
    if bad == 1:
        table.problems.append("1 line is not a JSON object and was skipped.")
    elif bad:
        table.problems.append(f"{bad:,} lines are not JSON objects and were skipped.")
    return []


def read_table_format(path: Path) -> TableFormat:
    """Return the form of a table; without names if the file is no text, or no plain file."""
    try:
        return read_format(read_head(path, MAX_HEAD_BYTES)) or TableFormat(())
    except csv.Error:
        return TableFormat(())


def _read_cells(table: RunRecord, path: Path, options: ReadingOptions) -> list[int]:
    """Read the rows of a CSV file.

    If two columns have the same name, the last one counts. The unnamed index of pandas is left out unless it
    is the step.

    Returns:
        The rows before which the header stands again, as a program that begins again appends it.
    """
    import pandas as pd  # only for tables

    form = read_table_format(path)
    width = len(form.names)
    if not width:
        raise ValueError("it has no line with the names of its columns")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cells = pd.read_csv(
            path,
            sep=form.separator,
            header=None,
            names=range(width + 1),  # one more, so that longer rows are seen
            skiprows=form.header + 1,
            dtype=str,
            keep_default_na=False,
            skipinitialspace=True,
            engine="python",
            encoding="utf-8-sig",
            encoding_errors="replace",
            index_col=False,
            on_bad_lines=lambda row: row[: width + 1],
        )
    cells = cells[~cells[0].fillna("").str.startswith(COMMENT)]
    is_header = (cells[range(width)].fillna("") == [_text_of(name) for name in form.names]).all(axis=1)
    for _, row in cells[~is_header & (cells.isin([*form.names]).sum(axis=1) > 1)].iterrows():
        names = tuple(row[row.fillna("") != ""])
        if not any(map(is_number_text, names)):
            raise ValueError(f"another header follows ({', '.join(names)}); make one file of each part")
    # The number of the row that follows a header: rows above it that are no header.
    headers = (~is_header).cumsum()[is_header].tolist()
    cells = cells[~is_header]
    columns = [*form.names]
    if columns[0] == f"{UNNAMED}0" != options.step:
        columns[0] = ""
    named = [name for name in columns if name]
    if len({*named}) < len(named) or any(name.startswith(UNNAMED) for name in named[1:]):
        table.problems.append("Columns have no name, or one that another has.")
    is_irregular = cells[range(width)].isna().any(axis=1) | cells[width].notna()
    if is_irregular.any():
        table.problems.append(
            f"{is_irregular.sum():,} rows have another number of cells than there are columns."
        )
    table.rows = len(cells)
    for index, name in enumerate(columns):
        texts = cells[index].fillna("").str.strip()
        rows = np.flatnonzero(texts != "")
        if name and len(rows):
            table.logged[name] = rows, texts.to_numpy(object)[rows]
    _convert_columns(table, decimal_comma=form.separator != ",")
    return headers


def _text_of(name: str) -> str:
    return "" if name.startswith(UNNAMED) else name


def _convert_columns(table: RunRecord, *, decimal_comma: bool = False) -> None:
    """Read texts as numbers, report other cells, and drop NaN that means "no evaluation"."""
    for key, (rows, values) in table.logged.items():
        numbers, unit, other = read_values(values, decimal_comma=decimal_comma)
        if unit:
            table.units[key] = unit
        if other:
            table.problems.append(
                f"Column {key} has cells that are no numbers, such as {other!r}; these are not read."
            )
        is_kept = _find_logged(numbers) if numbers.dtype != object else np.ones(len(rows), bool)
        table.logged[key] = rows[is_kept], numbers[is_kept]


def _find_logged(values: np.ndarray) -> np.ndarray:
    """Return a mask of the values that were logged: a NaN may mean "no evaluation in this row".

    It does if finite values are less frequent than rows. The last value stays NaN if an evaluation was due:
    if as many NaN follow the last finite value as lie between two finite values.
    """
    finite = np.flatnonzero(np.isfinite(values))
    gaps = np.diff(finite, prepend=-1)
    is_kept = np.ones(len(values), bool)
    if len(finite) and np.median(gaps) >= 2:
        is_kept = ~np.isnan(values)
        is_kept[-1] |= len(values) - 1 - finite[-1] >= gaps.max()
    return is_kept


def _leave_out_rows(table: RunRecord, with_step: np.ndarray) -> None:
    """Leave out the values in rows without a step of each column that has values in rows with a step."""
    for key, (rows, values) in table.logged.items():
        has_step = np.isin(rows, with_step)
        if has_step.any() and not has_step.all():
            table.logged[key] = rows[has_step], values[has_step]
            table.problems.append(f"Column {key} has values in rows without a step; these are not read.")


def _add_step(table: RunRecord, options: ReadingOptions) -> bool:
    """Store the step of each row under our name, and return whether there is one.

    Raises:
        MissingInput: The step falls from row to row, or is no number and its meaning is not plain.
    """
    if options.step == NO_STEP:
        counted = np.arange(table.rows)
        table.logged[metrics.STEP] = counted, counted + 1.0
        return True
    path = table.paths[0]
    names = [name for name in step_columns(list(table.logged), options.step) if name in table.logged]
    problem = ""
    for name in names:
        rows, values = table.logged[name]
        if values.dtype == object:
            is_step = np.array([value not in ("", STEPLESS, []) for value in values], bool)
            rows = rows[is_step]
            numbers = first_numbers(values[is_step])
            if numbers is None:
                sample = short(
                    printable(next(value for value in values[is_step] if not is_number(value))), 24
                )
                problem = problem or f"{printable(name)} has values such as {sample!r}, which are no numbers"
                continue
            values = numbers
        falls = np.diff(values)
        if len(values) > 1 and (falls < 0).any() and not (falls > 0).any():
            problem = problem or f"{printable(name)} falls from row to row, so it counts no steps"
            continue
        _leave_out_rows(table, rows)
        table.logged[metrics.STEP] = rows, values
        if name != metrics.STEP and values is not table.logged[name][1]:
            table.logged[name] = rows, values
        return True
    if not problem:
        missing = describe_missing_step(list(table.logged), options.step)
        table.problems.append(f"{path.name} has no step column: {missing}.")
        return False
    question = (
        f"step: {path}: {problem}: add --step COLUMN to name another column, --step {NO_STEP} to take the "
        f"order of the rows, or --rows {RUNS} if each row is a run"
    )
    texts = [key for key, (_, values) in table.logged.items() if values.dtype == object and key not in names]
    raise MissingInput([question], ["--rows", RUNS] if texts else ["--step", NO_STEP])
