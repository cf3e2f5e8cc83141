"""From what a user names (folders, files, projects and sweeps of W&B's server) to the runs in it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ampcompare.errors import UserError, reason
from ampcompare.records.others import READERS
from ampcompare.records.pool import read_fragments
from ampcompare.records.run import Fragment, RunRecord, merge
from ampcompare.records.server import API_PREFIX, parse_source, read_server

SKIPPED_FOLDERS = frozenset({".git", ".venv", "node_modules", "__pycache__"})

Say = Callable[[str], None]


def load_runs(
    sources: Iterable[str | Path], *, step: str | None = None, say: Say = lambda line: None
) -> list[RunRecord]:
    """Every run in the sources, oldest first.

    A source is a folder, searched for `offline-run-*/run-*.wandb` and `run-*/run-*.wandb` at any depth, or
    one `.wandb` file; or `wandb:entity/project`, or `wandb:entity/project/sweep`, read from W&B's server. A
    file that is found twice is read once; files with the same run id become one run. Of a run that is on disk
    and on the server the record with more rows counts, the one on disk where they have as many: it has the
    exit code and exact types.

    Where a source holds no `.wandb` file, what others wrote there is read: TensorBoard's event files, else
    CSV files with a step column (`step`, or the usual names), else Hugging Face's trainer_state.json. `say`
    is told what was read and what was there besides.

    Raises UserError for a source that is not there, cannot be read or holds no run. A broken file inside a
    folder raises nothing: its run says so in `problems`.

    >>> from ampcompare.records import load_runs
    >>> for run in load_runs(["runs"]):
    ...     print(run.option("backend"), run.state, run.history["train/loss"].count(), "losses")
    none finished 2 losses
    native finished 2 losses
    """
    named = [sources] if isinstance(sources, str | Path) else list(sources)
    on_server = [str(source) for source in named if str(source).startswith(API_PREFIX)]
    for source in on_server:
        parse_source(source)  # before anything is read
    runs = _read_folders([source for source in named if not str(source).startswith(API_PREFIX)], step, say)
    for source in on_server:
        for run in read_server(source):
            _add(runs, run)
    return sorted(runs, key=lambda run: (run.started_at.timestamp() if run.started_at else math.inf, run.id))


def _add(runs: list[RunRecord], new: RunRecord) -> None:
    """Take a run of the server's in, or keep the same run as it is known already."""
    for number, known in enumerate(runs):
        if not _is_same(known, new):
            continue
        rows, more = len(known.history), len(new.history)
        if known.paths and rows != more:  # of two sources of the server's nothing need be said
            both = f"It has {rows:,} rows on disk and {more:,} on W&B's server; the longer record is shown."
            known.problems.append(both)
            new.problems.append(both)
        if more > rows:
            runs[number] = new
        return
    runs.append(new)


def _is_same(one: RunRecord, other: RunRecord) -> bool:
    """The same id and, where they are known, the same project and entity."""
    pairs = ((one.project, other.project), (one.entity, other.entity))
    return one.id == other.id and all(a == b or not a or not b for a, b in pairs)


def _read_folders(given: list[str | Path], step: str | None, say: Say) -> list[RunRecord]:
    """The runs of folders and files."""
    found: dict[str, Path] = {}
    others: dict[str, dict[str, Path]] = {}  # what reads it, then as above
    for source in given:
        paths, kind = _files(source, step, say)
        files = found if kind is None else others.setdefault(kind, {})
        for path in paths:
            files.setdefault(os.path.realpath(path), path)
    named = {os.path.realpath(source) for source in given}
    fragments = []
    for (real, path), fragment in zip(found.items(), read_fragments(list(found.values())), strict=True):
        if real in named and not fragment.has_run_record and not fragment.rows:
            raise UserError(f"{path}: no run can be read from it: {' '.join(fragment.problems)}")
        fragments.append(fragment)
    for kind, files in others.items():
        read = READERS[kind].read(list(files.values()), step)
        for fragment in read:
            if os.path.realpath(fragment.path) in named and not fragment.rows:
                raise UserError(f"{fragment.path}: no run can be read from it: {' '.join(fragment.problems)}")
        runs = "1 run" if len(read) == 1 else f"{len(read)} runs"
        say(f"read {runs} from {kind}; whether a run came to its end is not in them")
        fragments += read
    return [merge(parts) for parts in _by_run(fragments)]


def _files(source: str | Path, step: str | None, say: Say) -> tuple[list[Path], str | None]:
    """The files of a source, and the reader that takes them; None for W&B's own, which come first.

    A program may log one run in several ways, so that a source is read in one of them; `say` is told what was
    there beside it.
    """
    top = Path(source)
    try:
        if top.is_dir():
            os.scandir(top).close()  # os.walk passes over what it may not read
            found = _search(top, step)
        elif top.exists():
            found = {next((kind for kind, r in READERS.items() if r.is_one(top.name)), None): [top]}
        else:
            raise UserError(f"{source}: no such folder; name the output_dir of a run (runs by default)")
    except (OSError, ValueError) as problem:  # ValueError: a NUL in the name
        raise UserError(f"{source}: cannot be read: {reason(problem)}") from None
    if not found:
        what = "no runs in this folder (looked for offline-run-*/run-*.wandb at any depth"
        more = f"also for {', '.join(READERS)})"
        todo = "name the output_dir of a run that was recorded with wandb.mode=offline or online"
        raise UserError(f"{source}: {what}; {more}; {todo}")
    kinds = [kind for kind in (None, *READERS) if kind in found]
    for kind in kinds[1:]:
        count = len(found[kind])
        there = "is 1 file" if count == 1 else f"are {count:,} files"
        read = kinds[0] or ".wandb files"
        say(f"{source}: read {read}; there {there} of {kind} too, not read: name their folder or file for it")
    return sorted(found[kinds[0]]), kinds[0]


def _search(top: Path, step: str | None) -> dict[str | None, list[Path]]:
    """The files of runs under a folder, by what reads them (None: W&B's own); linked folders are followed
    (`latest-run`), each real one once.
    """
    found: dict[str | None, list[Path]] = {}
    seen: set[str] = set()
    for folder, inner, files in os.walk(top, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            inner.clear()
            continue
        seen.add(real)
        inner[:] = sorted(name for name in inner if name not in SKIPPED_FOLDERS)
        is_run = os.path.basename(real).startswith(("offline-run-", "run-"))
        for name in files:
            path = Path(folder, name)
            if is_run and name.startswith("run-") and name.endswith(".wandb"):
                found.setdefault(None, []).append(path)
                continue
            kind = next((kind for kind, reader in READERS.items() if reader.is_one(name)), None)
            if kind and READERS[kind].is_run(path, step):
                found.setdefault(kind, []).append(path)
    return found


def _by_run(fragments: Iterable[Fragment]) -> Iterator[list[Fragment]]:
    """Fragments of one run together: same id and, where it is known, same project."""
    by_id: dict[str, list[Fragment]] = {}
    for fragment in fragments:
        by_id.setdefault(fragment.id, []).append(fragment)
    for parts in by_id.values():
        projects = list(dict.fromkeys(f.project for f in parts if f.has_run_record))
        if len(projects) < 2:
            yield parts
            continue
        # Two runs that happen to share an id. A part whose beginning is lost goes to the last of them.
        for project in projects:
            yield [f for f in parts if (f.project if f.has_run_record else projects[-1]) == project]
