"""From what a user names (folders, files) to the runs in it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from ampcompare.errors import UserError
from ampcompare.records.pool import read_fragments
from ampcompare.records.run import Fragment, RunRecord, merge

API_PREFIX = "wandb:"
SKIPPED_FOLDERS = frozenset({".git", ".venv", "node_modules", "__pycache__"})


def load_runs(sources: Iterable[str | Path]) -> list[RunRecord]:
    """Every run in the sources, oldest first.

    A source is a folder, searched for `offline-run-*/run-*.wandb` and `run-*/run-*.wandb` at any depth, or one
    `.wandb` file. A file that is found twice is read once; files with the same run id become one run.

    Raises UserError for a source that is not there, cannot be read or holds no run. A broken file inside a folder
    raises nothing: its run says so in `problems`.
    """
    given = [sources] if isinstance(sources, str | Path) else list(sources)
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
    runs = [merge(parts) for parts in _by_run(fragments)]
    return sorted(runs, key=lambda run: (run.started_at.timestamp() if run.started_at else float("inf"), run.id))


def _files(source: str | Path) -> list[Path]:
    if str(source).startswith(API_PREFIX):
        raise UserError(
            f"{source}: only folders of offline runs can be read so far; "
            "record runs with wandb.mode=offline and name their output_dir"
        )
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
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise UserError(f"{source}: cannot be read: {reason}") from None
    if not files:
        raise UserError(
            f"{source}: no runs in this folder (looked for offline-run-*/run-*.wandb at any depth); "
            "name the output_dir of a run that was recorded with wandb.mode=offline or online"
        )
    return files


def _search(top: Path) -> Iterator[Path]:
    """The run files under a folder. Linked folders are followed, each real folder once (W&B links `latest-run`)."""
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
