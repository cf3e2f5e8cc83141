"""Tables that trainers write, as runs: CSV files with a step column (Lightning's `metrics.csv`, timm's
`summary.csv`, anybody's own), JSON lines, Hugging Face's `trainer_state.json`, and the settings beside them.
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
from ampcompare.runs.run_record import RunRecord, columns_of
from ampcompare.runs.run_state import RunState

STEPS = (metrics.STEP, "step", "_step", "iteration", "iter", "epoch")
KNOWN = (
    "metrics.csv",
    "summary.csv",
    "progress.csv",
)  # of the trainers; a folder with one of them is one run
MOST_HEAD = 1_000_000  # bytes of the first line
PANDAS_INDEX = "Unnamed: 0"  # the name that pandas gives its own index when it reads a table again
PERCENTAGE = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?) ?%", re.I)
HEAD_LINES = 100  # of JSON, in which the step's key has to be
STATE = "trainer_state.json"
EARLY_STOPPING = "EarlyStoppingCallback"  # of Hugging Face's trainer, among a state's callbacks
OPTIONS = ("train_batch_size", "num_train_epochs", "max_steps", "logging_steps", "eval_steps")
SETTINGS = ("hparams.yaml", "args.yaml", "hparams.yml")  # Lightning's, timm's, accelerate's
MAX_BYTES, MOST_VALUES = 4_000_000, 300_000  # of settings; in pieces of JSON
# The last two: yaml's own, of a tag with a value that is none, `!!bool maybe`, `!!int ""`, `!!timestamp x`.
UNREADABLE = (OSError, ValueError, yaml.YAMLError, RecursionError, TypeError, LookupError, AttributeError)


def read_head(path: Path, size: int) -> bytes:
    """Return the first bytes of a file, none of what is no plain file or cannot be read."""
    try:
        if not path.is_file():  # a pipe would block for ever
            return b""
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        return b""


def step_column(names: Sequence[str], step: str | None) -> int | None:
    """Return the place of the step: the column called `step`, else the first of STEPS in any case of letters.

    None for a table of one column, and where there is no such name.
    """
    known = list(names) if step else [name.lower() for name in names]
    wanted = [name for name in ((step,) if step else STEPS) if name in known]
    return known.index(wanted[0]) if wanted and len(known) > 1 else None


def json_step(head: bytes, step: str | None) -> str | None:
    """Return the key of the step in JSON lines that begin like this, None where they hold none."""
    lines = head.decode("utf-8-sig", "replace").splitlines()[:HEAD_LINES]
    found = [row for row in map(_object_in, lines) if row is not None]
    keys = list(dict.fromkeys(key for row in found for key, _ in flatten(row)))
    place = step_column(keys, step)
    return None if place is None else keys[place]


def _object_in(line: str) -> dict[str, Any] | None:
    """Return the object that a line of JSON is, None for any other line."""
    try:
        value = parse_json(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def read_json_lines(paths: Iterable[Path], step: str | None = None) -> list[RunRecord]:
    """Return a run for each file of JSON lines: an object a row, nested keys joined by dots."""
    return [_read_json_lines(path, step) for path in paths]


def _read_json_lines(path: Path, step: str | None) -> RunRecord:
    run = _run(path.with_suffix(""), path)
    key = json_step(read_head(path, MAX_BYTES), step)
    if key is None:
        run.problems.append(f"{path.name} has no step.")
        return run
    bad = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal bad
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            for line in file:
                if (row := _object_in(line)) is not None:
                    yield dict(flatten(row))
                else:
                    bad += bool(line.strip())

    try:
        run.last_write = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        run.rows, run.logged = columns_of(rows())
        _clean(run)
    except OSError as problem:
        run.problems.append(f"Reading {path.name} stopped: {reason(problem)}.")
    if metrics.STEP not in run.logged and key in run.logged:
        run.logged[metrics.STEP] = run.logged[key]
    if bad:
        what = (
            "1 line is no JSON object and was" if bad == 1 else f"{bad:,} lines are no JSON objects and were"
        )
        run.problems.append(f"{what} skipped.")
    return run


def read_csv_files(paths: Iterable[Path], step: str | None = None) -> list[RunRecord]:
    return [_read_csv_file(path, step) for path in paths]


def _read_csv_file(path: Path, step: str | None) -> RunRecord:
    """One file as a run; what is wrong with it becomes a sentence in `problems`. `step` names the column."""
    is_alone = path.name in KNOWN and sum((path.parent / known).is_file() for known in KNOWN) < 2
    run = _run(path.parent if is_alone else path.with_suffix(""), path)
    head = _head(path)
    if (column := step_column(head, step)) is None:
        expected = f"none is called {step!r}" if step else f"expected one of {', '.join(STEPS)}"
        run.problems.append(f"{path.name} has no step column ({expected}).")
        return run
    try:
        run.last_write = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        _fill(run, path, head, column)
    except OSError as problem:
        run.problems.append(f"Reading {path.name} stopped: {reason(problem)}.")
    return run


def _run(name: Path, path: Path) -> RunRecord:
    """A run with the settings beside it. Whether it came to its end is not in the file."""
    config, problems = settings_beside(path.parent)
    said = name.as_posix()
    return RunRecord(
        id=said, name=said, state=RunState.FINISHED, paths=(path,), config=config, problems=problems
    )


def _head(path: Path) -> list[str]:
    """The names of the columns; none of what is no text, or no plain file."""
    try:
        line = read_head(path, MOST_HEAD).partition(b"\n")[0].decode("utf-8-sig", "replace")
        return [name.strip() for name in next(csv.reader([line], skipinitialspace=True))]
    except (csv.Error, StopIteration):
        return []


def _fill(run: RunRecord, path: Path, head: Sequence[str], step: int) -> None:
    """Read the rows; of columns of one name the last counts. The unnamed index of pandas is no column."""
    names = ["" if place == 0 and name == PANDAS_INDEX else name for place, name in enumerate(head)]
    kept = [name for place, name in enumerate(names) if place or name]
    if "" in kept or len({*kept}) < len(kept):
        run.problems.append("Columns have no name, or one that another has.")
    odd = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal odd
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
            table = csv.reader(file, skipinitialspace=True, strict=True)
            try:
                next(table, None)
                for row in filter(None, table):
                    odd += len(row) != len(names)
                    yield {name: _cell(cell) for name, cell in zip(names, row, strict=False) if name}
            except csv.Error as problem:
                run.problems.append(f"Reading {path.name} stopped at line {table.line_num:,}: {problem}.")

    run.rows, run.logged = columns_of(rows())
    _clean(run)
    if metrics.STEP not in run.logged and head[step] in run.logged:
        run.logged[metrics.STEP] = run.logged[head[step]]
    if odd:
        run.problems.append(f"{odd:,} rows have another number of cells than there are columns.")
    if not run.rows:
        run.problems.append(f"{path.name} has no row.")


def _cell(text: str) -> Any:
    word = text.strip()
    try:
        return float(word)
    except ValueError:
        return {"": None, "true": True, "false": False}.get(word.lower(), word)


def _clean(run: RunRecord) -> None:
    """Read percentages as numbers, name cells that are none, drop NaN that stands for no evaluation."""
    for key, (rows, values) in run.logged.items():
        if values.dtype == object:
            run.logged[key] = rows, _percentages(run, key, values)
        else:
            kept = _is_logged(values)
            run.logged[key] = rows[kept], values[kept]


def _percentages(run: RunRecord, key: str, values: np.ndarray) -> np.ndarray:
    """Return the numbers of a column of percentages (`85.3%`), any other column as it is.

    A column in which numbers and other cells stand side by side gets a sentence in `problems`.
    """
    numbers = [value for value in values if is_number(value)]
    texts = [value for value in values if isinstance(value, str)]
    found = [PERCENTAGE.fullmatch(text) for text in texts]
    if texts and len(texts) == len(values) and all(found):
        run.units[key] = "percent"
        return np.array([float(match[1]) for match in found if match])
    if texts and (numbers or any(found)):
        run.problems.append(
            f"Column {key} has cells that are no numbers, such as {texts[0]!r}; these are not read."
        )
    return values


def _is_logged(values: np.ndarray) -> np.ndarray:
    """Return a mask of the values that were logged: a NaN may stand for a row without an evaluation.

    It does where finite values come less often than the rows. The last value stays NaN where an evaluation
    was due: where as many NaN follow the last finite value as lie between two of them.
    """
    finite = np.flatnonzero(np.isfinite(values))
    gaps = np.diff(finite, prepend=-1)
    kept = np.ones(len(values), bool)
    if len(finite) and np.median(gaps) >= 2:
        kept = ~np.isnan(values)
        kept[-1] |= len(values) - 1 - finite[-1] >= gaps.max()
    return kept


def read_trainer_states(paths: Iterable[Path]) -> list[RunRecord]:
    """A run for each output folder: the state that got furthest, of those of its checkpoints and its own."""
    runs: dict[Path, RunRecord] = {}
    for path in sorted(paths):
        folder = path.parent.parent if path.parent.name.startswith("checkpoint-") else path.parent
        # Downloaded states lie beside each other under other names: each is a run.
        folder = folder if path.name == STATE else path.with_suffix("")
        new = _read_state(path, folder)
        if folder not in runs or _reached(new) >= _reached(runs[folder]):
            runs[folder] = new
    return list(runs.values())


def _reached(run: RunRecord) -> float:
    return run.summary_number(metrics.STEP) or -1.0


def _read_state(path: Path, folder: Path) -> RunRecord:
    run = _run(folder, path)
    try:
        if not path.is_file():
            raise OSError("it is not a plain file")
        run.last_write = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        state = json.loads(path.read_bytes())
        log = [row for row in state["log_history"] if isinstance(row, dict)]
    except (OSError, ValueError, RecursionError, LookupError, TypeError) as problem:
        run.problems.append(f"{path.name} cannot be read, or has no log_history: {reason(problem)}.")
        return run
    renamed = ({metrics.STEP if key == "step" else key: v for key, v in row.items()} for row in log)
    run.rows, run.logged = columns_of(renamed)
    run.config |= {key: state[key] for key in OPTIONS if isinstance(state.get(key), int | float | str)}
    callbacks = state.get("stateful_callbacks")
    run.is_early_stopped = isinstance(callbacks, dict) and EARLY_STOPPING in callbacks
    if isinstance(step := state.get(metrics.STEP), int | float):
        run.summary[metrics.STEP] = step
    return run


class _Loader(yaml.SafeLoader):
    """Reads what is tagged as an object of Python (Lightning writes such) as what is in it."""


def _untagged(loader: yaml.SafeLoader, _: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return node.value


_Loader.add_multi_constructor("", _untagged)


def settings_beside(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """What the settings' file in a folder says, and what is wrong with it; both empty where there is none."""
    path = next((path for name in SETTINGS if (path := folder / name).is_file()), None)
    if path is None:
        return {}, []
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES:,} bytes")
        found = yaml.load(path.read_bytes(), _Loader) or {}  # noqa: S506 - a SafeLoader
        if not isinstance(found, dict):
            raise ValueError(f"it is a {type(found).__name__}")
        return _as_json(found), []
    except UNREADABLE as problem:
        return {}, [f"{path.name} cannot be read: {reason(problem)}."]


def _as_json(found: dict[Any, Any]) -> dict[str, Any]:
    """The settings as JSON has them. Raises ValueError for such as contain themselves, or hold more than
    MOST_VALUES when references are written out.
    """
    chunks = list(itertools.islice(json.JSONEncoder(default=str).iterencode(found), MOST_VALUES))
    if len(chunks) == MOST_VALUES:
        raise ValueError(f"it holds more than {MOST_VALUES:,} values")
    return json.loads("".join(chunks))
