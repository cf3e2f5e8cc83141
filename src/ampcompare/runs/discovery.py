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
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ampcompare.errors import UserError, reason
from ampcompare.runs.chart_exports import chart_columns, chart_problem
from ampcompare.runs.table_format import has_header, read_format
from ampcompare.runs.trainer_logs import (
    KNOWN_NAMES,
    STATE_FILE,
    count_objects,
    json_step,
    read_head,
    step_column,
)
from ampcompare.wandb_client.framing import FILE_HEADER

# The kinds of logs, in order of preference if a folder has several.
WANDB, EVENTS, TABLES = ".wandb files", "TensorBoard event files", "CSV files with a step column"
STATES, LINES = STATE_FILE, "JSON lines files with a step"
KINDS = (WANDB, EVENTS, TABLES, STATES, LINES)
SKIPPED_FOLDERS = frozenset({"node_modules", "__pycache__"})
OWN_HIDDEN = ".wandb"  # W&B's folder, where one of that name exists
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
JSON_LINES = (".jsonl", ".ndjson")
TABLE_TEXTS = (".txt", ".log", ".tsv")  # texts that may be tables
TEXTS = (".csv", ".json", *JSON_LINES, *TABLE_TEXTS)
HEAD_BYTES = 65_536
MAX_SUFFIXES, MAX_LEFT_OUT = 4, 5
# Folders of programs whose own formats are not read.
MLFLOW, SACRED = "MLflow (mlruns)", "Sacred (FileStorageObserver)"
EXPORT = "write one CSV file per run, with a column step and a column per metric"
EXPORT_HELP = "docs/reports.md has the lines under 'MLflow and Sacred'"
COPY_OF = r"(?:copy of )?{}(?: ?\(\d+\)|[ _-]*copy[ _-]*\d*(?: ?\(\d+\))?|-checkpoint)?"


@dataclass
class Discovery:
    """The logs of one source.

    Attributes:
        files: The files of each kind, sorted.
        left_out: Files that look like logs and are not read, with the reason.
        tables: CSV and JSON lines files without a step, which may be data. They are named only if nothing
            else is read.
        others: The number of files that are no logs, by suffix. They are named only if nothing is read.
        programs: Programs whose folders were found and are not read, with the first such folder.
    """

    files: dict[str, list[Path]] = field(default_factory=dict)
    left_out: list[tuple[Path, str]] = field(default_factory=list)
    tables: list[tuple[Path, str]] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    programs: dict[str, Path] = field(default_factory=dict)


def discover(source: str, step: str | None) -> Discovery:
    """Return the logs in a folder at any depth, or a single file with the kind that its content has.

    Args:
        source: A path. Hidden folders in it are not searched; linked folders are, each real folder once.
        step: The step column of tables, None for the usual names.

    Raises:
        UserError: The path does not exist, cannot be read, or is a file that is no log.
    """
    top, discovery = Path(source), Discovery()
    try:
        if top.is_dir():
            os.scandir(top).close()  # os.walk silently skips unreadable folders
            for path in _walk(top):
                _classify(path, step, discovery)
                if program := _program_of(path):
                    discovery.programs.setdefault(program, path.parent)
            if top.name == "metrics" and _program_of(top.parent / "meta.yaml"):
                discovery.programs[MLFLOW] = top
            _set_copies_aside(discovery)
        elif top.exists():
            _classify_named(top, step, discovery)
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


class NoRecordError(UserError):
    """A `.wandb` file holds no record of a run: W&B's client had written none when the run was killed."""


def nothing_found(source: str, discovery: Discovery) -> UserError:
    """Return the error for a source without a run: what was left out and why, and what can be read."""
    if discovery.programs:
        program = next(iter(discovery.programs))
        return UserError(
            f"{source}: this is a folder of {program}, whose format is not read; {EXPORT} ({EXPORT_HELP})"
        )
    if Path(source).is_file():
        why = (
            "; ".join(dict.fromkeys(why for _, why in discovery.left_out))
            or "it is not a log of a known format"
        )
        error = NoRecordError if WANDB in discovery.files else UserError
        return error(f"{source}: no run can be read from it: {why}")
    candidates = [*discovery.left_out, *discovery.tables]
    details = [f"{path}: {why}" for path, why in candidates[:MAX_LEFT_OUT]]
    others = [f"{count:,} {suffix}" for suffix, count in discovery.others.most_common(MAX_SUFFIXES)]
    not_read = f"; not read: {', '.join(others)}" if others and not details else ""
    expected = f"looked for {', '.join(KINDS)}, at any depth"
    action = "name the output_dir of a run (wandb.mode=offline or online), or a folder of logs"
    return UserError(f"{source}: no runs in this folder ({expected}{not_read}); {action}", details)


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


def _classify(path: Path, step: str | None, discovery: Discovery) -> None:
    """Add a file of a folder to its kind. Files that are no logs are counted by their suffix."""
    kind, why = _kind_in_folder(path, step)
    if kind:
        discovery.files.setdefault(kind, []).append(path)
    elif why:
        is_table = path.suffix.lower() in (".csv", *JSON_LINES) and path.name not in KNOWN_NAMES
        is_data = is_table and "--step" in why
        (discovery.tables if is_data else discovery.left_out).append((path, why))
    else:
        discovery.others[path.suffix or "without a suffix"] += 1


def _kind_in_folder(path: Path, step: str | None) -> tuple[str, str]:
    """Return the kind of a file, or "" and the reason why a file that looks like a log is not read."""
    name, suffix = path.name, path.suffix.lower()
    is_event = is_event_file(name)
    if not (is_event or suffix == ".wandb" or suffix in TEXTS or name == STATE_FILE):
        return "", ""
    head = read_head(path, HEAD_BYTES)
    if head.startswith(LFS_POINTER):
        return "", "it is a Git LFS pointer and not the log; run `git lfs pull`"
    if is_event:
        return EVENTS, ""
    if suffix == ".wandb":
        is_in_run = os.path.basename(os.path.realpath(path.parent)).startswith(("offline-run-", "run-"))
        is_wandb = head.startswith(FILE_HEADER[:4]) or (is_in_run and name.startswith("run-"))
        return (WANDB, "") if is_wandb else ("", "it does not begin like a .wandb file")
    if suffix == ".csv":
        why = table_problem(head, step)
        return ("", why) if why else (TABLES, "")
    kind = kind_of_content(head, step)
    if suffix in TABLE_TEXTS and kind == TABLES:
        return TABLES, ""
    if suffix == ".json" and kind == LINES and count_objects(head) < 2:
        return "", ""  # the summary of a run, which many programs write beside its log
    if suffix in JSON_LINES and kind not in (STATES, LINES):
        row = f"a JSON object with {step or 'a step'} and a value"
        return "", f"none of its first lines is {row}; --step KEY names the step"
    return (STATES, "") if name == STATE_FILE else (kind if kind in (STATES, LINES) else "", "")


def _classify_named(path: Path, step: str | None, discovery: Discovery) -> None:
    """Add a file that the user named, whatever its name is."""
    kind, why = _kind_in_folder(path, step)
    if (
        not kind
        and not why
        and path.parent.name == "metrics"
        and _program_of(path.parent.parent / "meta.yaml")
    ):
        discovery.programs[MLFLOW] = path
        return
    if not kind and not why and path.is_file():
        kind = kind_of_content(read_head(path, HEAD_BYTES), step)
        why = "" if kind else f"{path.suffix or 'such'} files are not read; expected {', '.join(KINDS)}"
    if not kind and not path.is_file():
        kind, why = WANDB, ""  # the reader reports a pipe
    if kind:
        discovery.files[kind] = [path]
    else:
        discovery.left_out.append((path, why))


def is_event_file(name: str) -> bool:
    """Return whether a file is named as TensorBoard's writers name event files."""
    return "events.out.tfevents." in name or name.endswith(".tfevents")


def kind_of_content(head: bytes, step: str | None) -> str:
    """Return the kind of log that begins with these bytes, "" for none."""
    if head.startswith(FILE_HEADER[:4]):
        return WANDB
    if _is_record_file(head):
        return EVENTS
    if head.lstrip()[:1] == b"{":
        if b'"log_history"' in head:
            return STATES
        return LINES if json_step(head, step) is not None else ""
    if json_step(head, step) is not None:  # after lines of text
        return LINES
    return "" if table_problem(head, step) else TABLES


def _is_record_file(head: bytes) -> bool:
    """Return whether this is a TFRecord file: a length and a masked checksum, then `brain.Event`."""
    return len(head) >= 24 and b"brain.Event:" in head[:64] and struct.unpack_from("<Q", head)[0] < 2**20


def table_problem(head: bytes, step: str | None) -> str:
    """Return why a CSV file with this beginning contains no run, "" if it may contain one."""
    if b"\0" in head:
        return "it is not text"
    try:
        form = read_format(head)
    except csv.Error:
        return "its first line is not a row of a table"
    if form is None:
        return "it is empty"
    if not has_header(form.names):
        return "it has no header: its first line is all numbers; write the names of the columns above them"
    if why := chart_problem(form.names):
        return why
    if step_column(form.names, step) is None:
        if chart_columns(form.names):
            axis = form.names[0]
            return f"it is a chart of W&B over {axis!r}; set the x axis to Step and export it again"
        problem = f"none of its columns is called {step!r}" if step else "none of its columns is a step"
        return f"{problem}; --step COLUMN names it (columns: {', '.join(form.names[:8])})"
    lines = head.decode("utf-8-sig", "replace").splitlines()[form.header :]
    if not any(line.strip(" ,;\t") for line in lines[1:]) and len(head) < HEAD_BYTES:
        return "it has a header and no row"
    return ""


def _set_copies_aside(discovery: Discovery) -> None:
    """Leave out copies.

    A copy has the same bytes and a copy's name in the same folder. In another folder it has the same bytes
    and the unique name that W&B and TensorBoard give to a file.
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
        discovery.left_out += [(copy, f"it is a copy of {original}") for copy, original in copies.items()]


def _copies_in(paths: Sequence[Path], kind: str) -> dict[Path, Path]:
    originals: dict[bytes, list[Path]] = {}
    copies: dict[Path, Path] = {}
    paths = [path for path in paths if path.is_file()]  # a pipe would block for ever
    for path in paths if len(paths) > 1 else ():
        originals_of_digest = originals.setdefault(_digest(path), [])
        is_unique = kind in (WANDB, EVENTS)
        original = next(
            (
                candidate
                for candidate in originals_of_digest
                if is_unique or _is_copys_name(path.stem, candidate.stem)
            ),
            None,
        )
        if original is None:
            originals_of_digest.append(path)
        elif os.path.realpath(original) != os.path.realpath(path):
            copies[path] = original
    return copies


def _is_copys_name(name: str, original: str) -> bool:
    return name != original and re.fullmatch(COPY_OF.format(re.escape(original)), name, re.I) is not None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # its reader says what is wrong
        return -1


def _digest(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return str(path).encode()
