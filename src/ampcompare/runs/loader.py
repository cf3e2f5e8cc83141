"""Find and read the runs in what a user names: folders, files, projects and sweeps on W&B's server."""

import hashlib
import logging
import math
import os
import pickle
import stat
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from ampcompare.errors import UserError, one_line
from ampcompare.runs.cache import open_cache, trim_cache
from ampcompare.runs.chart_exports import split_exports
from ampcompare.runs.discovery import (
    EVENTS,
    EXPORT,
    EXPORT_HELP,
    KINDS,
    LINES,
    MAX_LEFT_OUT,
    STATES,
    TABLES,
    WANDB,
    NoRecordError,
    discover,
    nothing_found,
)
from ampcompare.runs.migrations import reason_unreadable
from ampcompare.runs.run_record import TIMESTAMP, RunRecord, merge_parts
from ampcompare.runs.run_state import RunState
from ampcompare.runs.same_run import join_rows, unite_files
from ampcompare.runs.tensorboard import read_event_files
from ampcompare.runs.trainer_logs import read_csv_files, read_json_lines, read_trainer_states
from ampcompare.runs.wandb_api import API_PREFIX, parse_source, read_server
from ampcompare.runs.wandb_file import read_wandb_file
from ampcompare.runtime.file_locks import is_locked
from ampcompare.wandb_client import framing

ARM = "arm"  # config key of the arm in NAME=SOURCE
# The client flushes every 15 s by default. A run is dead after four missed flushes, or three missed rows.
RUNNING_SECONDS, RUNNING_ROWS = 60.0, 3
CHECKPOINTS = "checkpoints"  # folder in an output_dir, next to `wandb`
MAX_CACHE_SIZE = "1G"
# Reading takes a second per 40 MB; starting a process takes about as long.
MAX_GAP_ROWS, MAX_GAP_SECONDS = 100, 24 * 3600  # last rows of a run, and the largest gap that counts

log = logging.getLogger(__name__)

FileSignature = tuple[Any, ...]  # identifies a file in the cache: `_signature`


def load_runs(sources: Iterable[str | Path], *, step: str | None = None) -> list[RunRecord]:
    """Return every run in the sources, oldest first.

    A source is a folder, searched for `.wandb` files at any depth, or one such file. `wandb:entity/project`
    and `wandb:entity/project/sweep` are read from W&B's server. A file that is found twice is read once, and
    files with the same run id become one run. If a run is on disk and on the server, the record with more
    rows counts. If both have the same number of rows, the one on disk counts, because it has the exit code
    and exact types. A run from before version 0.2 is left out with a warning if its options changed what its
    backend is.

    If a source has no `.wandb` file, logs of other programs are read: TensorBoard's event files, else CSV
    files with a step column, else Hugging Face's trainer_state.json, else JSON lines with a step. What was
    read and what else is there is logged. A file that is left out gives a warning with the reason. A run
    whose rows stand in several files or folders counts once; docs/reports.md states the rule.

    `NAME=SOURCE` names the arm of the runs in a source. It becomes their setting `arm`. Then every source
    needs a name, and the runs of the first source come first.

    Args:
        sources: The sources.
        step: The step column of tables and JSON lines. None tries the usual names.

    Raises:
        UserError: A source does not exist, cannot be read, or has no run. Or two logs of an arm are equal,
            and nothing tells whether they are one run. A damaged file gives a sentence in `problems` instead.
            A `.wandb` file without a record, as a killed run may leave it, gives a warning among others.

    >>> from ampcompare import load_runs
    >>> for run in load_runs(["runs"]):
    ...     print(run.option("backend"), run.state, len(run.values("train/loss")), "losses")
    none finished 2 losses
    native finished 2 losses
    """
    arms: dict[str, list[str]] = {}
    for arm, source in map(split_arm, [sources] if isinstance(sources, str | Path) else sources):
        arms.setdefault(arm, []).append(source)
    if "" in arms and len(arms) > 1:
        nameless, names = arms[""][0], ", ".join(arm for arm in arms if arm)
        raise UserError(
            f"{nameless}: has no name, but the other sources have ({names}); name it too: NAME={nameless}"
        )
    runs: list[RunRecord] = []
    arm_of_run: dict[tuple[tuple[Path, ...], str], str] = {}
    for arm, arm_sources in arms.items():
        for run in _load_places(arm_sources, step, arm):
            # A table that was exported from a chart holds several runs.
            name = str(Path(run.id).resolve()) if run.paths else f"{run.entity}/{run.project}/{run.id}"
            key = tuple(path.resolve() for path in run.paths), name
            if key in arm_of_run:
                raise UserError(
                    f"{run.name}: this run is in both {arm_of_run[key]} and {arm}; "
                    "leave it out of one of them"
                )
            if arm:
                arm_of_run[key] = arm
                run = replace(run, config=run.config | {ARM: arm})
            runs.append(run)
    return runs


def split_arm(source: str | Path) -> tuple[str, str]:
    """Return the arm's name (`fp32` in `fp32=logs/a`), "" without one, and the source."""
    name, equals, path = str(source).partition("=")
    is_named = equals and name.strip() and path and not set(name) & {"/", os.sep, ":"}
    return (name.strip(), path) if is_named and not os.path.lexists(source) else ("", str(source))


def _load_places(sources: Sequence[str], step: str | None, arm: str) -> list[RunRecord]:
    """Return the runs of the sources of one arm, oldest first."""
    server_sources = [source for source in sources if source.startswith(API_PREFIX)]
    for source in server_sources:
        parse_source(source)  # check all sources before reading
    local_sources = [source for source in sources if source not in server_sources]
    named_files = {Path(source).resolve() for source in local_sources if os.path.isfile(source)}
    runs = unite_files(_read_folders(local_sources, step), arm, named_files)
    for source in server_sources:
        for run in read_server(source):
            _add(runs, run)
    runs = _leave_out_unreadable(runs)
    return sorted(runs, key=lambda run: (run.started_at.timestamp() if run.started_at else math.inf, run.id))


def _leave_out_unreadable(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the runs that this version can compare, and log the others.

    Raises:
        UserError: None is left.
    """
    readable = []
    left_out = []
    for run in runs:
        if why := reason_unreadable(run.config, run.environment):
            left_out.append(f"{run.name} ({run.id}): left out: {why}")
        else:
            readable.append(run)
    if left_out and not readable:
        rest = f", and {len(left_out) - 1:,} more like it" if left_out[1:] else ""
        raise UserError(f"{left_out[0]}{rest}; no run is left to read")
    for line in left_out[:MAX_LEFT_OUT]:
        log.warning(one_line(line))
    if (more_count := len(left_out) - MAX_LEFT_OUT) > 0:
        log.warning(f"{more_count:,} more runs were left out")
    return readable


def _add(runs: list[RunRecord], new: RunRecord) -> None:
    """Add a run from the server unless the same run on disk has as many rows."""
    for number, known in enumerate(runs):
        pairs = ((known.project, new.project), (known.entity, new.entity))
        if known.id != new.id or any(a != b and a and b for a, b in pairs):
            continue
        if new.rows > known.rows:
            runs[number] = new
        return
    runs.append(new)


def _read_folders(sources: Sequence[str], step: str | None) -> list[RunRecord]:
    """Return the runs of folders and files."""
    reader = _SourceReader(step)
    parts: list[RunRecord] = []
    refused: list[UserError] = []
    for source in sources:
        try:
            parts += reader.read(source)
        except NoRecordError as error:
            refused.append(error)
    reader.close()
    if refused and not parts:
        raise refused[0]
    for problem in refused[:MAX_LEFT_OUT]:
        log.warning(one_line(f"left out: {problem}"))
    if len(refused) > MAX_LEFT_OUT:
        log.warning(f"{len(refused) - MAX_LEFT_OUT:,} more files without a run were left out")
    return [_joined(parts_of_run) for parts_of_run in _group_by_run(parts)]


def _joined(parts: Sequence[RunRecord]) -> RunRecord:
    """Return the parts of a run as one run. Tables of one run have its metrics; none continues another."""
    is_of_tables = all(path.suffix.lower() == ".csv" for part in parts for path in part.paths)
    return join_rows(parts) if is_of_tables and len(parts) > 1 else merge_parts(parts)


class _SourceReader:
    """Reads the parts of runs in folders and files, each file once."""

    def __init__(self, step: str | None) -> None:
        self.step = step
        self._read: set[str] = set()  # real paths of files

    @cached_property
    def _memory(self) -> Any:
        return open_cache("runs")

    def close(self) -> None:
        """Trim the cache if it was used."""
        if "_memory" in vars(self):
            trim_cache(self._memory, MAX_CACHE_SIZE)

    def read(self, source: str) -> list[RunRecord]:
        """Return the parts of runs in one folder or file.

        A program may log one run in several formats. So the first kind that has a run is read; the next kind
        is read in folders whose files of the first kind have none. What was read, left out, or also there is
        logged.

        Raises:
            NoRecordError: The source is a `.wandb` file without a record.
            UserError: The source is another file or a folder without a run, or cannot be read.
        """
        discovery = discover(source, self.step)
        real_paths = {os.path.realpath(path) for paths in discovery.files.values() for path in paths}
        parts: list[RunRecord] = []
        taken = ""  # the kind that is read
        folders_without_run: set[Path] = set()
        for kind in (kind for kind in KINDS if kind in discovery.files):
            paths = [
                path for path in discovery.files[kind] if not taken or path.parent in folders_without_run
            ]
            paths = [path for path in paths if os.path.realpath(path) not in self._read]
            with_runs, without_runs = self._parts(kind, paths)
            no_run_text = "it holds no run record" if kind == WANDB else "it holds no value"
            discovery.left_out += [
                (part.paths[0], " ".join(part.problems) or no_run_text) for part in without_runs
            ]
            if with_runs and kind != WANDB:
                runs = "1 run" if len(with_runs) == 1 else f"{len(with_runs)} runs"
                log.info(f"read {runs} from {kind}; these files do not say whether a run finished")
            if taken and (unread := len(discovery.files[kind]) - len(paths)):
                count_text = "is 1 file" if unread == 1 else f"are {unread:,} files"
                action = "not read: name their folder or file for it"
                log.info(one_line(f"{source}: read {taken}; there {count_text} of {kind} too, {action}"))
            parts += with_runs
            folders_without_run |= {path.parent for part in without_runs for path in part.paths}
            folders_without_run -= {path.parent for part in with_runs for path in part.paths}
            taken = taken or (kind if with_runs else "")
        if not parts and not real_paths & self._read:
            raise nothing_found(source, discovery)
        for program, folder in discovery.programs.items():
            log.warning(one_line(f"{folder}: not read: a folder of {program}; {EXPORT} ({EXPORT_HELP})"))
        for path, why in discovery.left_out[:MAX_LEFT_OUT]:
            log.warning(one_line(f"{path}: left out: {why}"))
        if (more := len(discovery.left_out) - MAX_LEFT_OUT) > 0:
            log.warning(one_line(f"{source}: {more:,} more files were left out"))
        self._read |= real_paths
        return parts

    def _parts(self, kind: str, paths: Sequence[Path]) -> tuple[list[RunRecord], list[RunRecord]]:
        """Return the parts of runs in files of one kind, and the parts without a run."""
        readers: Mapping[str, Callable[[Sequence[Path]], list[RunRecord]]] = {
            WANDB: lambda paths: _read_wandb_files(paths, self._memory),
            EVENTS: read_event_files,
            TABLES: lambda paths: split_exports(read_csv_files(paths, self.step)),
            STATES: read_trainer_states,
            LINES: partial(read_json_lines, step=self.step),
        }
        read = readers[kind](paths) if paths else []
        if kind == WANDB and any(part.rows or part.is_named for part in read):
            return read, []  # a damaged W&B file is still a run that started
        return [part for part in read if part.rows], [part for part in read if not part.rows]


def _read_wandb_files(paths: Sequence[Path], memory: Any) -> list[RunRecord]:
    """Return the part of a run in each file, in order.

    Files that may still be written to are not cached.
    """
    now = time.time()
    cached_read = memory.cache(_read_pickled)
    read = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on a full disk nothing is cached
        for path in paths:
            signature = _signature(path, now)
            read.append(_unpickled(cached_read(*signature)) if signature else read_wandb_file(path))
    for run in read:
        if run.exit_code is None and _is_running(run, now):
            run.state, run.ended_as = RunState.RUNNING, ""
    return read


def _signature(path: Path, now: float) -> FileSignature:
    """Return what identifies a file in the cache; empty for a file that may be written to."""
    try:
        status = path.stat()
    except OSError:  # its reader says what is wrong
        return ()
    if not stat.S_ISREG(status.st_mode) or status.st_mtime > now - RUNNING_SECONDS:
        return ()
    return str(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns, _version()


def _read_pickled(path: str, size: int, written: int, changed: int, version: str) -> bytes:
    """Return the pickled result of `read_wandb_file`; the other arguments are part of the cache key.

    It is pickled here because joblib would read the pickle of an object in Python, five times slower.
    """
    return pickle.dumps(read_wandb_file(Path(path)), pickle.HIGHEST_PROTOCOL)


def _unpickled(pickled: bytes) -> RunRecord:
    run: RunRecord = pickle.loads(pickled)  # noqa: S301 - pickled above, and joblib's cache is one of pickles
    return run


@cache
def _version() -> str:
    """Return a hash of the source text of the readers, which identifies their version in the cache."""
    folders = (Path(__file__).parent, Path(framing.__file__).parent)
    texts = [file.read_bytes() for folder in folders for file in sorted(folder.glob("*.py"))]
    return hashlib.sha256(b"".join(texts)).hexdigest()


def _is_running(run: RunRecord, now: float) -> bool:
    """Return whether a run without an exit record is still running.

    It is if its checkpoints are locked, or if its file changed within the last minute or within three of its
    own logging intervals (50 steps of 5 s are four minutes).
    """
    if run.last_write is None:
        return False
    lock = run.paths[0].absolute().parent.parent.parent / CHECKPOINTS / run.id / "lock"
    with suppress(OSError):  # the lock belongs to another user
        if is_locked(lock):
            return True
    _, timestamps = run.logged_numbers(TIMESTAMP)
    gaps = np.diff(timestamps[np.isfinite(timestamps)][-MAX_GAP_ROWS:])
    gaps = gaps[(gaps > 1) & (gaps < MAX_GAP_SECONDS)]  # the row of an evaluation follows at once
    pause = RUNNING_ROWS * float(np.median(gaps)) if len(gaps) else 0.0
    return abs(now - run.last_write.timestamp()) <= max(RUNNING_SECONDS, pause)


def _group_by_run(parts: Iterable[RunRecord]) -> Iterator[list[RunRecord]]:
    """Yield the parts of each run: the same id and, if known, the same project."""
    by_id: dict[str, list[RunRecord]] = {}
    for part in parts:
        by_id.setdefault(part.id, []).append(part)
    for parts_of_id in by_id.values():
        # Two runs may share an id by chance. A part without its beginning belongs to the last of them.
        projects = list(dict.fromkeys(part.project for part in parts_of_id if part.is_named)) or [""]
        for project in projects:
            yield [
                part for part in parts_of_id if (part.project if part.is_named else projects[-1]) == project
            ]
