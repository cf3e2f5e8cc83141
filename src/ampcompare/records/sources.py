"""From what a user names (folders, files, projects and sweeps of W&B's server) to the runs in it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from ampcompare.errors import UserError, reason
from ampcompare.records.pool import read_fragments
from ampcompare.records.run import Fragment, RunRecord, merge
from ampcompare.records.server import API_PREFIX, parse_source, read_server

SKIPPED_FOLDERS = frozenset({".git", ".venv", "node_modules", "__pycache__"})


def load_runs(sources: Iterable[str | Path]) -> list[RunRecord]:
    """Every run in the sources, oldest first.

    A source is a folder, searched for `offline-run-*/run-*.wandb` and `run-*/run-*.wandb` at any depth, or
    one `.wandb` file; or `wandb:entity/project`, or `wandb:entity/project/sweep`, read from W&B's server. A
    file that is found twice is read once; files with the same run id become one run. Of a run that is on disk
    and on the server the record with more rows counts, the one on disk where they have as many: it has the
    exit code and exact types.

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
    runs = _read_folders([source for source in named if not str(source).startswith(API_PREFIX)])
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


def _read_folders(given: list[str | Path]) -> list[RunRecord]:
    """The runs of folders and files."""
    found: dict[str, Path] = {}
    for source in given:
        for path in _files(source):
            found.setdefault(os.path.realpath(path), path)
    named = {os.path.realpath(source) for source in given}
    fragments = []
    for (real, path), fragment in zip(found.items(), read_fragments(list(found.values())), strict=True):
        if real in named and not fragment.has_run_record and not fragment.rows:
            raise UserError(f"{path}: no run can be read from it: {' '.join(fragment.problems)}")
        fragments.append(fragment)
    return [merge(parts) for parts in _by_run(fragments)]


def _files(source: str | Path) -> list[Path]:
    top = Path(source)
    try:
        if top.is_dir():
            os.scandir(top).close()  # os.walk passes over what it may not read
            files = sorted(_search(top))
        elif top.exists():
            files = [top]
        else:
            raise UserError(f"{source}: no such folder; name the output_dir of a run (runs by default)")
    except (OSError, ValueError) as problem:  # ValueError: a NUL in the name
        raise UserError(f"{source}: cannot be read: {reason(problem)}") from None
    if not files:
        what = "no runs in this folder (looked for offline-run-*/run-*.wandb at any depth)"
        todo = "name the output_dir of a run that was recorded with wandb.mode=offline or online"
        raise UserError(f"{source}: {what}; {todo}")
    return files


def _search(top: Path) -> Iterator[Path]:
    """The run files under a folder; linked folders are followed (`latest-run`), each real one once."""
    seen: set[str] = set()
    for folder, inner, files in os.walk(top, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            inner.clear()
            continue
        seen.add(real)
        inner[:] = sorted(name for name in inner if name not in SKIPPED_FOLDERS)
        if os.path.basename(real).startswith(("offline-run-", "run-")):
            yield from (Path(folder, n) for n in files if n.startswith("run-") and n.endswith(".wandb"))


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
