"""Find the logs in a file or folder that the user names, recognised by their content.

The first bytes of a file say what it is, so a log keeps its kind under any name (`trainer_state (1).json`).
Files that look like logs and contain none (a Git LFS pointer, a copy, a table without a step) are left out,
each with its reason.
"""

import csv
import hashlib
import os
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ampcompare.errors import UserError, reason
from ampcompare.runs.chart_exports import chart_columns, chart_problem
from ampcompare.runs.load_options import NO_STEP, RUNS, ReadingOptions
from ampcompare.runs.missing_input import MissingInput
from ampcompare.runs.results_table import describe_missing_step
from ampcompare.runs.row_order import SEED
from ampcompare.runs.settings_files import CONFIGS, KNOWN_NAMES, SETTINGS
from ampcompare.runs.table_format import has_header, read_format
from ampcompare.runs.tables import has_step, json_keys, json_rows, read_head
from ampcompare.runs.trainer_state import STATE_FILE
from ampcompare.runs.values import read_values
from ampcompare.runtime.formatting import some
from ampcompare.wandb_client.framing import FILE_HEADER

# The kinds of logs, in order of preference if a folder has several.
WANDB = ".wandb files"
EVENTS = "TensorBoard event files"
TABLES = "CSV files with a step column"
STATES = STATE_FILE
LINES = "JSON lines files with a step"
KINDS = (WANDB, EVENTS, TABLES, STATES, LINES)
SKIPPED_FOLDERS = frozenset({"node_modules", "__pycache__"})
OWN_HIDDEN = ".wandb"  # W&B's folder, where one of that name exists
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
JSON_LINES = (".jsonl", ".ndjson")
TABLE_TEXTS = (".txt", ".log", ".tsv")  # texts that may be tables
TEXTS = (".csv", ".json", *JSON_LINES, *TABLE_TEXTS)
HEAD_BYTES = 65_536
MAX_LEFT_OUT = 5  # files that are left out, each with a line
# Folders of programs whose own formats are not read.
MLFLOW = "MLflow (mlruns)"
SACRED = "Sacred (FileStorageObserver)"
EXPORT = "write one CSV file per run, with a column step and a column per metric"
EXPORT_HELP = "docs/reports.md has the lines under 'MLflow and Sacred'"


@dataclass
class Discovery:
    """The logs of one source.

    Attributes:
        files: The files of each kind, sorted.
        left_out: Files that look like logs and are not read, with the reason.
        tables: CSV and JSON lines files without a step, which may be data. They are named only if nothing
            else is read.
        texts: Texts and JSON files that do not begin as logs. They are looked at if nothing else is read.
        programs: Programs whose folders were found and are not read, with the first such folder.
    """

    files: dict[str, list[Path]] = field(default_factory=dict)
    left_out: list[tuple[Path, str]] = field(default_factory=list)
    tables: list[tuple[Path, str]] = field(default_factory=list)
    texts: list[Path] = field(default_factory=list)
    programs: dict[str, Path] = field(default_factory=dict)


def discover(source: str, options: ReadingOptions) -> Discovery:
    """Return the logs in a folder at any depth, or a single file with the kind that its content has.

    Args:
        source: A path. Hidden folders in it are not searched; linked folders are, each real folder once.
        options: What the user says about tables.

    Raises:
        UserError: The path does not exist, cannot be read, or is a file that is no log.
    """
    top = Path(source)
    discovery = Discovery()
    try:
        if top.is_dir():
            _search(top, options, discovery)
        elif top.exists():
            _classify_named(top, options, discovery)
        else:
            kind = "file" if top.suffix and "\0" not in source else "folder"
            raise UserError(
                f"{source}: no such {kind}; name a log, or the output_dir of a run (runs by default)"
            )
    except (OSError, ValueError) as problem:  # ValueError: a NUL in the name
        raise UserError(f"{source}: cannot be read: {reason(problem)}") from None
    for paths in discovery.files.values():
        paths.sort()
    return discovery


def _search(top: Path, options: ReadingOptions, discovery: Discovery) -> None:
    """Add the logs of a folder at any depth, and the programs in whose folders it lies or that lie in it."""
    os.scandir(top).close()  # os.walk silently skips unreadable folders
    for path in _walk(top):
        _classify(path, options, discovery)
        if program := _program_of(path):
            discovery.programs.setdefault(program, path.parent)
    if top.name == "metrics" and _program_of(top.parent / "meta.yaml"):
        discovery.programs[MLFLOW] = top
    if not discovery.files:
        for path in discovery.texts:
            _add(path, _recognize_unknown(path, options), discovery)
    _set_copies_aside(discovery)


class NoRecordError(UserError):
    """A `.wandb` file holds no record of a run: W&B's client had written none when the run was killed."""


def nothing_found(source: str, discovery: Discovery) -> UserError:
    """Return the error for a source without a run: what was left out and why, and what can be read.

    It is a MissingInput where there are tables without a step and nothing else.
    """
    if discovery.programs:
        program = next(iter(discovery.programs))
        return UserError(
            f"{source}: this is a folder of {program}, whose format is not read; {EXPORT} ({EXPORT_HELP})"
        )
    if discovery.tables and not discovery.files:
        of_problem: dict[str, list[str]] = {}
        for path, problem in discovery.tables:
            of_problem.setdefault(problem, []).append(str(path))
        questions = [f"step: {some(paths, 1)}: {problem}" for problem, paths in of_problem.items()]
        return MissingInput(questions[:MAX_LEFT_OUT], _proposed_reading(discovery.tables[0][0]))
    if Path(source).is_file():
        problems = dict.fromkeys(problem for _, problem in discovery.left_out)
        reasons = "; ".join(problems) or "it is not a log of a known format"
        error = NoRecordError if WANDB in discovery.files else UserError
        return error(f"{source}: no run can be read from it: {reasons}")
    candidates = [*discovery.left_out, *discovery.tables]
    details = [f"{path}: {problem}" for path, problem in candidates[:MAX_LEFT_OUT]]
    return UserError(
        f"{source}: no runs in this folder (looked for {', '.join(KINDS)}, at any depth); "
        "name the output_dir of a run (wandb.mode=offline or online), or a folder of logs",
        details,
    )


def _program_of(path: Path) -> str:
    """Return the program in whose folder a file lies, as its name and those beside it say; "" for none."""
    folder = path.parent
    if path.name == "mlflow.db" or (path.name == "meta.yaml" and (folder / "metrics").is_dir()):
        return MLFLOW
    is_sacred = path.name == "run.json" and (folder / "config.json").is_file()
    if is_sacred and any((folder / name).is_file() for name in ("metrics.json", "cout.txt")):
        return SACRED
    return ""


def _walk(top: Path) -> Iterator[Path]:
    visited: set[str] = set()
    for folder, inner, files in os.walk(top, followlinks=True):
        real = os.path.realpath(folder)
        if real in visited:
            inner.clear()
            continue
        visited.add(real)
        inner[:] = sorted(name for name in inner if _is_searched(name))
        yield from (Path(folder, name) for name in sorted(files) if not name.startswith("."))


def _is_searched(folder: str) -> bool:
    return folder == OWN_HIDDEN or not (folder.startswith(".") or folder in SKIPPED_FOLDERS)


def _classify(path: Path, options: ReadingOptions, discovery: Discovery) -> None:
    """Add a file of a folder to its kind."""
    form = _recognize(path, options)
    if form == _NO_LOG:
        if path.suffix.lower() in TEXTS and path.name not in (*SETTINGS, *CONFIGS):
            discovery.texts.append(path)
    else:
        is_trainers = path.name in KNOWN_NAMES
        _add(path, form._replace(lacks_step=form.lacks_step and not is_trainers), discovery)


class _FileForm(NamedTuple):
    """What a file is, by its name and its first bytes. A file that is no log has neither kind nor problem.

    Attributes:
        kind: One of KINDS; "" for a file that is not read.
        problem: Why a file that looks like a log is not read.
        lacks_step: Whether the problem is the missing step, so that the file may be data.
    """

    kind: str = ""
    problem: str = ""
    lacks_step: bool = False


_NO_LOG = _FileForm()


def _add(path: Path, form: _FileForm, discovery: Discovery) -> None:
    """Add a file to those of its form."""
    if form.kind:
        discovery.files.setdefault(form.kind, []).append(path)
    elif form.lacks_step:
        discovery.tables.append((path, form.problem))
    else:
        discovery.left_out.append((path, form.problem))


def _recognize(path: Path, options: ReadingOptions) -> _FileForm:
    """Return what a file is that was found in a folder."""
    suffix = path.suffix.lower()
    is_event = is_event_file(path.name)
    if not (is_event or suffix == ".wandb" or suffix in TEXTS or path.name == STATE_FILE):
        return _NO_LOG
    head = read_head(path, HEAD_BYTES)
    if head.startswith(LFS_POINTER):
        return _FileForm(problem="it is a Git LFS pointer and not the log; run `git lfs pull`")
    if is_event:
        return _FileForm(EVENTS)
    if suffix == ".wandb":
        return _recognize_wandb_file(path, head)
    if suffix == ".csv":
        return _recognize_table(head, options)
    return _recognize_text(path, head, options)


def _recognize_wandb_file(path: Path, head: bytes) -> _FileForm:
    """Return a run's file as one even if its beginning is damaged: its reader says what is wrong."""
    folder = os.path.basename(os.path.realpath(path.parent))
    is_of_run = folder.startswith(("offline-run-", "run-")) and path.name.startswith("run-")
    if is_of_run or head.startswith(FILE_HEADER[:4]):
        return _FileForm(WANDB)
    return _FileForm(problem="it does not begin like a .wandb file")


def _recognize_text(path: Path, head: bytes, options: ReadingOptions) -> _FileForm:
    """Return what a text is that may be a table, JSON lines or a trainer's state."""
    suffix = path.suffix.lower()
    kind = kind_of_content(head, options)
    # Any text may be a table without a step; it is read as one where the user names it.
    if suffix in TABLE_TEXTS and kind_of_content(head, ReadingOptions(step=_named_step(options))) == TABLES:
        return _FileForm(TABLES)
    if suffix == ".json" and kind == LINES and len(json_rows(head)) < 2:
        return _NO_LOG  # the summary of a run, which many programs write beside its log
    if suffix in JSON_LINES and kind not in (STATES, LINES):
        names = json_keys(head)
        problem = (
            describe_missing_step(names, options.step) if names else "none of its lines is a JSON object"
        )
        return _FileForm(problem=problem, lacks_step=bool(names))
    if path.name == STATE_FILE:
        return _FileForm(STATES)
    return _FileForm(kind) if kind in (STATES, LINES) else _NO_LOG


def _named_step(options: ReadingOptions) -> str | None:
    return None if options.step == NO_STEP else options.step


def _classify_named(path: Path, options: ReadingOptions, discovery: Discovery) -> None:
    """Add a file that the user named, whatever its name is."""
    form = _recognize(path, options)
    is_of_mlflow = path.parent.name == "metrics" and _program_of(path.parent.parent / "meta.yaml")
    if form == _NO_LOG and is_of_mlflow:
        discovery.programs[MLFLOW] = path
        return
    if not path.is_file() and not form.kind:
        form = _FileForm(WANDB)  # the reader reports a pipe
    elif form == _NO_LOG:
        form = _recognize_unknown(path, options)
    _add(path, form, discovery)


def _recognize_unknown(path: Path, options: ReadingOptions) -> _FileForm:
    """Return what a file is whose name and beginning are those of no log, or what it lacks."""
    head = read_head(path, HEAD_BYTES)
    kind = kind_of_content(head, options)
    suffix = path.suffix.lower()
    is_table = _has_equal_rows(head) and suffix != ".json"
    if kind and (kind != TABLES or is_table):
        return _FileForm(kind)
    if suffix == ".json":
        return _recognize_json(head, options)
    if suffix not in TEXTS:
        return _FileForm(problem=f"{suffix or 'such'} files are not read; expected {', '.join(KINDS)}")
    if is_table:
        return _recognize_table(head, options)
    return _FileForm(
        problem="it has neither lines of JSON with a step nor a table, whose rows have as many cells as its "
        "header"
    )


def _recognize_json(head: bytes, options: ReadingOptions) -> _FileForm:
    """Return what a JSON file lacks: the step in its lines, or the lines.

    An object after a name (`"train": {...}`) is a part of one JSON value that has several lines.
    """
    whole = b"\n".join(line for line in head.splitlines() if line.lstrip().startswith(b"{"))
    if len(json_rows(whole)) > 1:
        return _FileForm(problem=describe_missing_step(json_keys(head), options.step), lacks_step=True)
    return _FileForm(
        problem="it is no log of JSON lines: write one JSON object per line, each with a step and its values"
    )


def _rows_of_table(head: bytes) -> tuple[Sequence[str], list[list[Any]]]:
    """Return the names of the columns and the cells of the rows in the beginning of a table."""
    try:
        table = read_format(head)
        if table is None:
            return (), []
        lines = [
            line for line in head.decode("utf-8-sig", "replace").splitlines()[table.header + 1 :] if line
        ]
        whole = lines[:-1] if len(head) == HEAD_BYTES else lines  # the last one may be cut
        return table.names, list(csv.reader(whole, skipinitialspace=True, delimiter=table.separator))
    except csv.Error:
        return (), []


def _has_equal_rows(head: bytes) -> bool:
    """Return whether a text is a table: several columns, and as many cells in each row."""
    names, rows = _rows_of_table(head)
    return len(names) > 1 and bool(rows) and all(len(row) == len(names) for row in rows)


def _proposed_reading(path: Path) -> list[str]:
    """Return how a table without a step is read in an example: rows with a text or a seed as runs."""
    head = read_head(path, HEAD_BYTES)
    objects = json_rows(head)
    names, rows = (
        _rows_of_table(head) if not objects else (json_keys(head), [[*row.values()] for row in objects])
    )
    values = [value for row in rows for value in read_values(np.array([*row, None], object)[:-1])[0]]
    has_settings = SEED in names or any(isinstance(value, str) and value for value in values)
    return ["--rows", RUNS] if has_settings else ["--step", NO_STEP]


def is_event_file(name: str) -> bool:
    """Return whether a file is named as TensorBoard's writers name event files."""
    return "events.out.tfevents." in name or name.endswith(".tfevents")


def kind_of_content(head: bytes, options: ReadingOptions) -> str:
    """Return the kind of log that begins with these bytes, "" for none."""
    if head.startswith(FILE_HEADER[:4]):
        return WANDB
    if _is_record_file(head):
        return EVENTS
    if head.lstrip()[:1] == b"{":
        if b'"log_history"' in head:
            return STATES
        return LINES if has_step(json_keys(head), options) else ""
    if has_step(json_keys(head), options):  # after lines of text
        return LINES
    return _recognize_table(head, options).kind


def _is_record_file(head: bytes) -> bool:
    """Return whether this is a TFRecord file: a length and a masked checksum, then `brain.Event`."""
    if len(head) < 24 or b"brain.Event:" not in head[:64]:
        return False
    length = struct.unpack_from("<Q", head)[0]
    return length < 2**20


def _recognize_table(head: bytes, options: ReadingOptions) -> _FileForm:
    """Return a CSV file with this beginning as a table of a run, or why it contains no run."""
    if b"\0" in head:
        return _FileForm(problem="it is not text in UTF-8, such as text in UTF-16; save it as UTF-8")
    try:
        table = read_format(head)
    except csv.Error:
        return _FileForm(problem="its first line is not a row of a table")
    if table is None:
        return _FileForm(problem="it is empty")
    if not has_header(table.names):
        return _FileForm(
            problem="it has no header: its first line is all numbers; "
            "write the names of the columns above them"
        )
    if problem := chart_problem(table.names):
        return _FileForm(problem=problem)
    if not has_step(table.names, options):
        return _describe_missing_step(table.names, options)
    lines = head.decode("utf-8-sig", "replace").splitlines()[table.header :]
    has_rows = any(line.strip(" ,;\t") for line in lines[1:])
    if not has_rows and len(head) < HEAD_BYTES:
        return _FileForm(problem="it has a header and no row")
    return _FileForm(TABLES)


def _describe_missing_step(names: Sequence[str], options: ReadingOptions) -> _FileForm:
    if chart_columns(names):
        return _FileForm(
            problem=f"it is a chart of W&B over {names[0]!r}; set the x axis to Step and export it again"
        )
    return _FileForm(problem=describe_missing_step(names, options.step), lacks_step=True)


def _set_copies_aside(discovery: Discovery) -> None:
    """Leave out copies: files with the same bytes.

    They lie in one folder, and their names differ in more than a number (`scalars.json`, `metrics (1).csv`);
    or they have the unique name that W&B and TensorBoard give to a file.
    """
    for kind, paths in discovery.files.items():
        groups: dict[tuple[str, int], list[Path]] = {}
        for path in paths:
            if kind == WANDB and _size(path) <= len(FILE_HEADER):
                continue  # parts that were killed before their first row are equal, but no copies
            key = path.name if kind in (WANDB, EVENTS) else str(path.parent)
            groups.setdefault((key, _size(path)), []).append(path)
        copies: dict[Path, Path] = {}
        for group in groups.values():
            copies |= _copies_in(sorted(group, key=lambda path: (len(path.name), str(path))), kind)
        discovery.files[kind] = [path for path in paths if path not in copies]
        discovery.left_out += [(copy, f"it has the bytes of {original}") for copy, original in copies.items()]


def _copies_in(paths: Sequence[Path], kind: str) -> dict[Path, Path]:
    """Return the copies among files of one size, each with its original, which comes first in `paths`."""
    plain = [path for path in paths if path.is_file()]  # a pipe would block for ever
    if len(plain) < 2:
        return {}
    by_digest: dict[bytes, list[Path]] = {}
    copies: dict[Path, Path] = {}
    for path in plain:
        same = by_digest.setdefault(digest(path), [])
        originals = [one for one in same if kind in (WANDB, EVENTS) or not differ_in_number(one, path)]
        if not originals:
            same.append(path)
        elif os.path.realpath(originals[0]) != os.path.realpath(path):
            copies[path] = originals[0]
    return copies


def differ_in_number(one: Path, other: Path) -> bool:
    """Return whether the names of two files differ in a number alone, as those of two runs do."""
    return re.sub(r"\d+", "", one.name) == re.sub(r"\d+", "", other.name)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # its reader says what is wrong
        return -1


def digest(path: Path) -> bytes:
    """Return a hash of the bytes of a file; of its name if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return str(path).encode()
