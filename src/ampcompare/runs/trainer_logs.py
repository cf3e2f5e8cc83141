"""Tables that trainers write, as runs, with the settings beside them.

They are CSV files with a step column (Lightning's `metrics.csv`, timm's `summary.csv`, or any other), JSON
lines, and Hugging Face's `trainer_state.json`.
"""

import csv
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ampcompare import metrics
from ampcompare.errors import reason
from ampcompare.runs.nested import flatten, is_number, parse_json
from ampcompare.runs.run_record import RunRecord, build_columns
from ampcompare.runs.run_state import RunState
from ampcompare.runs.step_keys import STEP_COLUMNS
from ampcompare.runs.table_format import COMMENT, TableFormat, as_seconds, read_cell, read_format

# File names of trainers; a folder with one of them is one run.
KNOWN_NAMES = ("metrics.csv", "summary.csv", "progress.csv")
MAX_HEAD_BYTES = 1_000_000  # limit of the first line
PANDAS_INDEX = "Unnamed: 0"  # name of pandas' own index when a table is read again
PERCENTAGE = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?) ?%", re.I)
HEAD_LINES = 1_000  # lines of which one must be JSON with the step
STATE_FILE = "trainer_state.json"
EARLY_STOPPING = "EarlyStoppingCallback"  # Hugging Face's callback
OPTIONS = ("train_batch_size", "num_train_epochs", "max_steps", "logging_steps", "eval_steps")
SETTINGS = ("hparams.yaml", "args.yaml", "hparams.yml")  # written by Lightning, timm, accelerate
# Written by users' own loops. They count beside a single log only, because they may belong to several.
CONFIGS = ("config.json", "config.yaml", "config.yml", "hparams.json", "args.json", "params.json")
MAX_BYTES = 4_000_000  # of a settings file
MAX_VALUES = 300_000  # pieces of JSON in a settings file
# The last three: yaml raises them for tags with invalid values, such as `!!bool maybe` or `!!int ""`.
UNREADABLE = (OSError, ValueError, yaml.YAMLError, RecursionError, TypeError, LookupError, AttributeError)


def read_head(path: Path, size: int) -> bytes:
    """Return the first bytes of a file; empty if it is no plain file or cannot be read."""
    try:
        if not path.is_file():  # a pipe would block for ever
            return b""
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        return b""


def step_column(names: Sequence[str], step: str | None) -> int | None:
    """Return the index of the step column.

    It is the column called `step`, else the first of STEP_COLUMNS in any case. None for a table of one
    column, and if there is no such name.
    """
    if len(names) < 2:
        return None
    available = list(names) if step else [name.lower() for name in names]
    for wanted in (step,) if step else STEP_COLUMNS:
        if wanted in available:
            return available.index(wanted)
    return None


def count_objects(head: bytes) -> int:
    """Return how many JSON objects stand in lines of their own, at the beginning of a file."""
    lines = head.decode("utf-8-sig", "replace").splitlines()[:HEAD_LINES]
    return sum(_object_in(line) is not None for line in lines)


def json_step(head: bytes, step: str | None) -> str | None:
    """Return the key of the step in JSON lines that begin like this, None without one."""
    lines = head.decode("utf-8-sig", "replace").splitlines()[:HEAD_LINES]
    objects = [row for row in map(_object_in, lines) if row is not None]
    keys = list(dict.fromkeys(key for row in objects for key, _ in flatten(row)))
    index = step_column(keys, step)
    return None if index is None else keys[index]


def _object_in(line: str) -> dict[str, Any] | None:
    """Return the JSON object in a line, None for any other line.

    A logger may have written time and level before it: `INFO:root:{"step": 1}`.
    """
    begin = line.find("{")
    if begin < 0:
        return None
    try:
        value = parse_json(line[begin:])
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def read_json_lines(paths: Iterable[Path], step: str | None = None) -> list[RunRecord]:
    """Return a run for each file of JSON lines: one object per row, nested keys joined by dots."""
    return [_read_json_lines(path, step) for path in paths]


def _read_json_lines(path: Path, step: str | None) -> RunRecord:
    run = _make_run(path.with_suffix(""), path)
    key = json_step(read_head(path, MAX_BYTES), step)
    if key is None:
        run.problems.append(f"{path.name} has no step.")
        return run
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

    try:
        run.last_write = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        run.rows, run.logged = build_columns(rows())
        _convert_columns(run)
    except OSError as problem:
        run.problems.append(f"Reading {path.name} stopped: {reason(problem)}.")
    if metrics.STEP not in run.logged and key in run.logged:
        run.logged[metrics.STEP] = run.logged[key]
    if bad == 1:
        run.problems.append("1 line is not a JSON object and was skipped.")
    elif bad:
        run.problems.append(f"{bad:,} lines are not JSON objects and were skipped.")
    return run


def read_csv_files(paths: Iterable[Path], step: str | None = None) -> list[RunRecord]:
    """Return a run for each CSV file."""
    return [_read_csv_file(path, step) for path in paths]


def _read_csv_file(path: Path, step: str | None) -> RunRecord:
    """Return one file as a run. What is wrong with it becomes a sentence in `problems`."""
    is_alone = path.name in KNOWN_NAMES and sum((path.parent / name).is_file() for name in KNOWN_NAMES) < 2
    run = _make_run(path.parent if is_alone else path.with_suffix(""), path)
    form = _read_table_format(path)
    column = step_column(form.names, step)
    if column is None:
        expected = f"none is called {step!r}" if step else f"expected one of {', '.join(STEP_COLUMNS)}"
        run.problems.append(f"{path.name} has no step column ({expected}).")
        return run
    try:
        run.last_write = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        _read_rows(run, path, form, column)
    except OSError as problem:
        run.problems.append(f"Reading {path.name} stopped: {reason(problem)}.")
    return run


def _make_run(name: Path, path: Path) -> RunRecord:
    """Return a run with the settings beside its file. The file does not say whether the run ended."""
    config, problems = read_settings_in(path.parent, CONFIGS if _is_only_log(path) else ())
    text = name.as_posix()
    return RunRecord(
        id=text, name=text, state=RunState.FINISHED, paths=(path,), config=config, problems=problems
    )


def _is_only_log(path: Path) -> bool:
    """Return whether the settings in the folder of a log are its own: no other log of its kind is there."""
    if path.name in KNOWN_NAMES:
        return True
    files = (file for file in path.parent.iterdir() if file.name not in CONFIGS)
    return not any(file.suffix == path.suffix and file != path for file in files)


def _read_table_format(path: Path) -> TableFormat:
    """Return the form of a table; without names if the file is no text, or no plain file."""
    try:
        return read_format(read_head(path, MAX_HEAD_BYTES)) or TableFormat(())
    except csv.Error:
        return TableFormat(())


def _read_rows(run: RunRecord, path: Path, form: TableFormat, step: int) -> None:
    """Read the rows of a table.

    If two columns have the same name, the last one counts. The unnamed index of pandas is ignored, and so is
    the header where it stands again: a program that continues a run appends it.
    """
    names = ["" if index == 0 and name == PANDAS_INDEX else name for index, name in enumerate(form.names)]
    columns = [name for index, name in enumerate(names) if index or name]
    if "" in columns or len({*columns}) < len(columns):
        run.problems.append("Columns have no name, or one that another has.")
    irregular = 0

    def rows() -> Iterator[dict[str, Any]]:
        """Yield the rows of the table."""
        nonlocal irregular
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
            for _ in range(form.header):
                file.readline()
            table = csv.reader(file, skipinitialspace=True, strict=True, delimiter=form.separator)
            try:
                next(table, None)
                for row in filter(None, table):
                    is_header = tuple(cell.strip() for cell in row) == form.names
                    if is_header or row[0].startswith(COMMENT):
                        continue
                    irregular += len(row) != len(names)
                    cells = zip(names, row, strict=False)
                    yield {name: read_cell(cell, form.separator) for name, cell in cells if name}
            except csv.Error as problem:
                line = form.header + table.line_num
                run.problems.append(f"Reading {path.name} stopped at line {line:,}: {problem}.")

    run.rows, run.logged = build_columns(rows())
    _convert_columns(run)
    step_name = form.names[step]
    if metrics.STEP not in run.logged and step_name in run.logged:
        run.logged[metrics.STEP] = run.logged[step_name]
    if irregular:
        run.problems.append(f"{irregular:,} rows have another number of cells than there are columns.")
    if not run.rows:
        run.problems.append(f"{path.name} has no row.")


def _convert_columns(run: RunRecord) -> None:
    """Read percentages and times as numbers, report other cells, and drop NaN that means "no evaluation"."""
    for key, (rows, values) in run.logged.items():
        if values.dtype != object:
            is_kept = _find_logged(values)
            run.logged[key] = rows[is_kept], values[is_kept]
            continue
        numbers = _parse_seconds(values)
        if numbers is None:
            numbers = _parse_percentages(run, key, values)
        run.logged[key] = rows, numbers


def _parse_seconds(values: np.ndarray) -> np.ndarray | None:
    """Return a column of durations (`0:21:12`) or of dates with times in seconds, None for another column."""
    seconds = []
    for value in values:
        number = as_seconds(value) if isinstance(value, str) else None
        if number is None:
            return None
        seconds.append(number)
    return np.array(seconds, np.float64)


def _parse_percentages(run: RunRecord, key: str, values: np.ndarray) -> np.ndarray:
    """Return the numbers of a column of percentages (`85.3%`), any other column as it is.

    A column with numbers and other cells gets a sentence in `problems`.
    """
    numbers = [value for value in values if is_number(value)]
    texts = [value for value in values if isinstance(value, str)]
    matches = [PERCENTAGE.fullmatch(text) for text in texts]
    if texts and len(texts) == len(values) and all(matches):
        run.units[key] = "percent"
        return np.array([float(match[1]) for match in matches if match])
    if texts and (numbers or any(matches)):
        run.problems.append(
            f"Column {key} has cells that are no numbers, such as {texts[0]!r}; these are not read."
        )
    return values


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


def read_trainer_states(paths: Iterable[Path]) -> list[RunRecord]:
    """Return a run for each output folder, from the most advanced of its state and its checkpoints."""
    runs: dict[Path, RunRecord] = {}
    for path in sorted(paths):
        if path.name != STATE_FILE:  # downloaded states have other names in one folder: each is a run
            folder = path.with_suffix("")
        elif path.parent.name.startswith("checkpoint-"):
            folder = path.parent.parent
        else:
            folder = path.parent
        new = _read_state(path, folder)
        if folder not in runs or _last_step(new) >= _last_step(runs[folder]):
            runs[folder] = new
    return list(runs.values())


def _last_step(run: RunRecord) -> float:
    return run.summary_number(metrics.STEP) or -1.0


def _read_state(path: Path, folder: Path) -> RunRecord:
    run = _make_run(folder, path)
    if folder.is_dir() and folder != path.parent:  # the state is that of a checkpoint in the folder
        settings, problems = read_settings_in(folder)
        run.config |= settings
        run.problems += problems
    try:
        if not path.is_file():
            raise OSError("it is not a plain file")
        run.last_write = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        state = json.loads(path.read_bytes())
        log = [row for row in state["log_history"] if isinstance(row, dict)]
    except (OSError, ValueError, RecursionError, LookupError, TypeError) as problem:
        run.problems.append(f"{path.name} cannot be read, or has no log_history: {reason(problem)}.")
        return run
    rows = ({metrics.STEP if key == "step" else key: value for key, value in row.items()} for row in log)
    run.rows, run.logged = build_columns(rows)
    run.config |= {key: state[key] for key in OPTIONS if isinstance(state.get(key), int | float | str)}
    callbacks = state.get("stateful_callbacks")
    run.is_early_stopped = isinstance(callbacks, dict) and EARLY_STOPPING in callbacks
    step = state.get(metrics.STEP)
    if isinstance(step, int | float):
        run.summary[metrics.STEP] = step
    return run


class _Loader(yaml.SafeLoader):
    """A loader that reads YAML tagged as a Python object (Lightning writes such) as plain values."""


def _construct_untagged(loader: yaml.SafeLoader, _: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return node.value


_Loader.add_multi_constructor("", _construct_untagged)


def read_settings_in(folder: Path, configs: Sequence[str] = ()) -> tuple[dict[str, Any], list[str]]:
    """Return the settings in the settings file of a folder, and its problems; both empty without one.

    Args:
        folder: The folder of a log.
        configs: Further names of settings files, read if there is none of a known trainer.
    """
    path = next((folder / name for name in (*SETTINGS, *configs) if (folder / name).is_file()), None)
    if path is None:
        return {}, []
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES:,} bytes")
        settings = _parse_settings(path)
        if not isinstance(settings, dict):
            raise ValueError(f"it is a {type(settings).__name__}")
        return _as_json(settings), []
    except UNREADABLE as problem:
        return {}, [f"{path.name} cannot be read: {reason(problem)}."]


def _parse_settings(path: Path) -> Any:
    """Return the content of a settings file; an empty one has no settings."""
    text = path.read_bytes()
    if path.suffix == ".json":  # not all JSON is YAML: tabs, and numbers such as 1e-05
        return json.loads(text)
    return yaml.load(text, _Loader) or {}  # noqa: S506 - a SafeLoader


def _as_json(settings: dict[Any, Any]) -> dict[str, Any]:
    """Return the settings as JSON values.

    Raises:
        ValueError: They contain themselves, or have more than MAX_VALUES values with references written out.
    """
    chunks = list(itertools.islice(json.JSONEncoder(default=str).iterencode(settings), MAX_VALUES))
    if len(chunks) == MAX_VALUES:
        raise ValueError(f"it holds more than {MAX_VALUES:,} values")
    return json.loads("".join(chunks))
