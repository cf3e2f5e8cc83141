"""From what a user names (folders, files, projects and sweeps of W&B's server) to the runs in it."""

import hashlib
import logging
import math
import os
import pickle
import stat
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from ampcompare.errors import UserError, one_line
from ampcompare.runs.cache import open_cache, trim_cache
from ampcompare.runs.discovery import (
    EVENTS,
    KINDS,
    LINES,
    MAX_LEFT_OUT,
    STATES,
    TABLES,
    WANDB,
    discover,
    nothing_found,
)
from ampcompare.runs.migrations import reason_unreadable
from ampcompare.runs.run_record import STAMP, RunRecord, merge
from ampcompare.runs.run_state import RunState
from ampcompare.runs.tensorboard import read_event_files
from ampcompare.runs.trainer_logs import read_csv_files, read_json_lines, read_trainer_states
from ampcompare.runs.wandb_api import API_PREFIX, parse_source, read_server
from ampcompare.runs.wandb_file import read_wandb_file
from ampcompare.wandb_client import framing

ARM = "arm"  # in the config of a run whose source somebody named: NAME=SOURCE
# The client flushes every 15 s by default; after four misses, or three of its own rows, a run is dead.
RUNNING_SECONDS, RUNNING_ROWS = 60.0, 3
CHECKPOINTS = "checkpoints"  # in an output_dir, beside `wandb`
MOST_CACHED = "1G"
# Reading takes a second for about 40 MB, starting a process about as long.
MOST_PROCESSES, BYTES_A_PROCESS = 8, 40_000_000
MOST_ROWS, MOST_SECONDS = 100, 24 * 3600  # the last rows of a run, and how far apart they may be

log = logging.getLogger(__name__)

Signs = tuple[Any, ...]  # what the cache knows a file by: `_signs`


def load_runs(sources: Iterable[str | Path], *, step: str | None = None) -> list[RunRecord]:
    """Every run in the sources, oldest first.

    A source is a folder, searched for `.wandb` files at any depth, or one such file; or
    `wandb:entity/project`, or `wandb:entity/project/sweep`, read from W&B's server. A file that is found
    twice is read once; files with the same run id become one run. Of a run that is on disk and on the server
    the record with more rows counts, the one on disk where they have as many: it has the exit code and exact
    types. A run that a version before 0.2 recorded under a backend that its options changed is left out with
    a warning.

    Where a source holds no `.wandb` file, what others wrote there is read: TensorBoard's event files, else
    CSV files with a step column (`step`, or the usual names), else Hugging Face's trainer_state.json, else
    JSON lines with a step. What was read and what was there besides is logged, a file that is left out
    with a warning that says why.

    `NAME=SOURCE` names the arm of a comparison that the runs of a source are: it becomes their setting `arm`.
    Then every source has a name, and the runs of the first come first.

    Raises UserError for a source that is not there, cannot be read or holds no run. A file that holds none
    beside others that do raises nothing: a warning tells of it. One that breaks off says so in `problems`.

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
        nameless, known = arms[""][0], ", ".join(arm for arm in arms if arm)
        raise UserError(f"{nameless}: has no name beside {known}; name it, too: NAME={nameless}")
    found: list[RunRecord] = []
    taken: dict[tuple[Path, ...] | str, str] = {}
    for arm, places in arms.items():
        for run in _load(places, step):
            place = tuple(path.resolve() for path in run.paths) or f"{run.entity}/{run.project}/{run.id}"
            if place in taken:
                raise UserError(f"{run.name}: this run is in {taken[place]} and in {arm}; name it once")
            if arm:
                taken[place] = arm
                run = replace(run, config=run.config | {ARM: arm})
            found.append(run)
    return found


def split_arm(source: str | Path) -> tuple[str, str]:
    """The name of a source (`fp32` of `fp32=logs/a`), or nothing, and the source."""
    name, equals, place = str(source).partition("=")
    is_named = equals and name.strip() and place and not set(name) & {"/", os.sep, ":"}
    return (name.strip(), place) if is_named and not os.path.lexists(source) else ("", str(source))


def _load(places: Sequence[str], step: str | None) -> list[RunRecord]:
    """The runs of some places, oldest first."""
    on_server = [place for place in places if place.startswith(API_PREFIX)]
    for place in on_server:
        parse_source(place)  # before anything is read
    runs = _read_folders([place for place in places if place not in on_server], step)
    for place in on_server:
        for run in read_server(place):
            _add(runs, run)
    runs = _leave_out_unreadable(runs)
    return sorted(runs, key=lambda run: (run.started_at.timestamp() if run.started_at else math.inf, run.id))


def _leave_out_unreadable(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the runs whose backends mean what they mean now; log the others. Raises UserError for none."""
    kept = []
    left_out = []
    for run in runs:
        if why := reason_unreadable(run.config, run.environment):
            left_out.append(f"{run.name} ({run.id}): left out: {why}")
        else:
            kept.append(run)
    if left_out and not kept:
        more = f", and {len(left_out) - 1:,} more like it" if left_out[1:] else ""
        raise UserError(f"{left_out[0]}{more}; no run is left to read")
    for line in left_out[:MAX_LEFT_OUT]:
        log.warning(one_line(line))
    if (more_count := len(left_out) - MAX_LEFT_OUT) > 0:
        log.warning(f"{more_count:,} more runs were left out")
    return kept


def _add(runs: list[RunRecord], new: RunRecord) -> None:
    """Take a run of the server's in, or keep the same run as it is known already."""
    for number, known in enumerate(runs):
        pairs = ((known.project, new.project), (known.entity, new.entity))
        if known.id != new.id or any(a != b and a and b for a, b in pairs):
            continue
        if new.rows > known.rows:
            runs[number] = new
        return
    runs.append(new)


def _read_folders(given: Sequence[str], step: str | None) -> list[RunRecord]:
    """The runs of folders and files."""
    reader = _SourceReader(step)
    parts = [part for source in given for part in reader.read(source)]
    reader.close()
    return [merge(some) for some in _by_run(parts)]


class _SourceReader:
    """Reads the parts of runs in folders and files, each file once."""

    def __init__(self, step: str | None) -> None:
        self.step = step
        self._read: set[str] = set()  # real places of files

    @cached_property
    def _memory(self) -> Any:
        return open_cache("runs")

    def close(self) -> None:
        """Keep the cache small, if it was used."""
        if "_memory" in vars(self):
            trim_cache(self._memory, MOST_CACHED)

    def read(self, source: str) -> list[RunRecord]:
        """Return the parts of runs in one folder or file.

        A program may log one run in several ways, so the first kind that holds a run is taken, and in a
        folder whose files of that kind hold none, the next kind. Logs what was read, left out, or there
        besides. Raises UserError where nothing is read.
        """
        found = discover(source, self.step)
        every = {os.path.realpath(path) for paths in found.files.values() for path in paths}
        parts: list[RunRecord] = []
        taken, places = "", set[Path]()  # the kind that is read, and the folders that have no run of it
        for kind in (kind for kind in KINDS if kind in found.files):
            paths = [path for path in found.files[kind] if not taken or path.parent in places]
            paths = [path for path in paths if os.path.realpath(path) not in self._read]
            good, bad = self._parts(kind, paths)
            nothing = "it holds no run record" if kind == WANDB else "it holds no value"
            found.left_out += [(part.paths[0], " ".join(part.problems) or nothing) for part in bad]
            if good and kind != WANDB:
                runs = "1 run" if len(good) == 1 else f"{len(good)} runs"
                log.info(f"read {runs} from {kind}; whether a run came to its end is not in them")
            if taken and (beside := len(found.files[kind]) - len(paths)):
                there = "is 1 file" if beside == 1 else f"are {beside:,} files"
                todo = "not read: name their folder or file for it"
                log.info(one_line(f"{source}: read {taken}; there {there} of {kind} too, {todo}"))
            parts += good
            places |= {path.parent for part in bad for path in part.paths}
            places -= {path.parent for part in good for path in part.paths}
            taken = taken or (kind if good else "")
        if not parts and not every & self._read:
            raise nothing_found(source, found)
        for path, why in found.left_out[:MAX_LEFT_OUT]:
            log.warning(one_line(f"{path}: left out: {why}"))
        if (more := len(found.left_out) - MAX_LEFT_OUT) > 0:
            log.warning(one_line(f"{source}: {more:,} more files were left out"))
        self._read |= every
        return parts

    def _parts(self, kind: str, paths: Sequence[Path]) -> tuple[list[RunRecord], list[RunRecord]]:
        """Return the parts of runs in files of one kind, and what is none."""
        readers: Mapping[str, Callable[[Sequence[Path]], list[RunRecord]]] = {
            WANDB: lambda paths: _read_wandb_files(paths, self._memory),
            EVENTS: read_event_files,
            TABLES: partial(read_csv_files, step=self.step),
            STATES: read_trainer_states,
            LINES: partial(read_json_lines, step=self.step),
        }
        read = readers[kind](paths) if paths else []
        if kind == WANDB and any(part.rows or part.is_named for part in read):
            return read, []  # a torn file of W&B is a run that was begun
        return [part for part in read if part.rows], [part for part in read if not part.rows]


def _read_wandb_files(paths: Sequence[Path], memory: Any) -> list[RunRecord]:
    """The part of a run in each file, in order. What was not written just now is kept in the cache, which is
    safe to delete.
    """
    now = time.time()
    kept = memory.cache(_read_as_it_is)
    signs = [_signs(path, now) for path in paths]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a cache on a full disk: the run is read again next time
        new = _read_in_processes(kept, [sign for sign in signs if sign])
        read = [
            new.get(sign) or (_unpickled(kept(*sign)) if sign else read_wandb_file(path))
            for path, sign in zip(paths, signs, strict=True)
        ]
    for run in read:
        if run.exit_code is None and _is_going_on(run, now):
            run.state, run.ended_as = RunState.RUNNING, ""
    return read


def _read_in_processes(kept: Any, signs: Sequence[Signs]) -> dict[Signs, RunRecord]:
    """Return what the cache lacks, read in a process a processor; nothing where one process is enough."""
    import joblib
    from joblib.externals.loky import ProcessPoolExecutor  # needs no `if __name__ == "__main__"` of a user

    lacking = [sign for sign in signs if not kept.check_call_in_cache(*sign)]
    size = sum(size for _, size, *_ in lacking)
    count = min(joblib.cpu_count(), MOST_PROCESSES, len(lacking), size // BYTES_A_PROCESS)
    if count < 2:
        return {}
    with ProcessPoolExecutor(count) as processes:
        pickled = processes.map(kept, *zip(*lacking, strict=True))
        return {sign: _unpickled(one) for sign, one in zip(lacking, pickled, strict=True)}


def _signs(path: Path, now: float) -> Signs:
    """What the cache knows a file by; nothing for one that may be written to."""
    try:
        status = path.stat()
    except OSError:  # its reader says what is wrong
        return ()
    if not stat.S_ISREG(status.st_mode) or status.st_mtime > now - RUNNING_SECONDS:
        return ()
    return str(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns, _version()


def _read_as_it_is(path: str, size: int, written: int, changed: int, version: str) -> bytes:
    """What is kept: `read_wandb_file`, with what it depends on; pickled here, for joblib reads the pickle of
    an object in Python, five times slower.
    """
    return pickle.dumps(read_wandb_file(Path(path)), pickle.HIGHEST_PROTOCOL)


def _unpickled(kept: bytes) -> RunRecord:
    run: RunRecord = pickle.loads(kept)  # noqa: S301 - pickled above, and joblib's cache is one of pickles
    return run


@cache
def _version() -> str:
    """What tells this program's readers from those of another version: a hash of their text."""
    rooms = (Path(__file__).parent, Path(framing.__file__).parent)
    texts = [file.read_bytes() for room in rooms for file in sorted(room.glob("*.py"))]
    return hashlib.sha256(b"".join(texts)).hexdigest()


def _is_going_on(run: RunRecord, now: float) -> bool:
    """Whether a run without an end goes on: somebody has its checkpoints locked, or its file changed within a
    minute, or within three of its own rows (fifty steps of 5 s are four minutes).
    """
    if run.last_write is None:
        return False
    lock = run.paths[0].absolute().parent.parent.parent / CHECKPOINTS / run.id / "lock"
    try:
        if lock.is_file():
            with FileLock(lock, blocking=False):
                pass
    except Timeout:
        return True
    except OSError:  # another user's
        pass
    _, stamps = run.logged_numbers(STAMP)
    gaps = np.diff(stamps[np.isfinite(stamps)][-MOST_ROWS:])
    gaps = gaps[(gaps > 1) & (gaps < MOST_SECONDS)]  # an evaluation's row follows at once
    quiet = RUNNING_ROWS * float(np.median(gaps)) if len(gaps) else 0.0
    return abs(now - run.last_write.timestamp()) <= max(RUNNING_SECONDS, quiet)


def _by_run(parts: Iterable[RunRecord]) -> Iterator[list[RunRecord]]:
    """Parts of one run together: same id and, where it is known, same project."""
    by_id: dict[str, list[RunRecord]] = {}
    for part in parts:
        by_id.setdefault(part.id, []).append(part)
    for some in by_id.values():
        # Two runs may happen to share an id. A part whose beginning is lost goes to the last of them.
        projects = list(dict.fromkeys(part.project for part in some if part.is_named)) or [""]
        for project in projects:
            yield [part for part in some if (part.project if part.is_named else projects[-1]) == project]
