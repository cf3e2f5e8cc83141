"""Detect changes in the user's own files while a sweep continues.

These are the files that the sweep names (its program, files in its command, and plug-ins such as
`model.name=./net.py:build`) and the files that these import from their own folders.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from ampcompare.errors import UserError
from ampcompare.identity.run_identity import differing
from ampcompare.plugins.sibling_modules import find_sibling_modules
from ampcompare.runs.nested import flatten
from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.journal import Journal, SweepState
from ampcompare.sweeps.sweep import Sweep

KEPT_STATES = (RunState.FINISHED, RunState.STOPPED, RunState.PREEMPTED, RunState.RUNNING)


def code_files(sweep: Sweep, overrides: Sequence[str], *, trains_here: bool) -> tuple[Path, ...]:
    """Return the user's files that the runs of a sweep execute.

    Args:
        overrides: `key=value` words behind every command.
        trains_here: Whether the runs are our own training, whose script is not the user's.
    """
    values = [value for p in sweep.parameters if p.is_listed for value in p.examples()]
    texts = [*_texts(values), *(word.partition("=")[2] for word in [*sweep.command, *overrides])]
    plugins = [text.rpartition(":")[0] for text in texts if ".py:" in text]
    files = [word for word in sweep.command if Path(word).suffix]  # not /usr/bin/env and the like
    programs: list[str] = []
    if not trains_here:
        programs = [sweep.program, *files] if sweep.program else files
    named = [path for path in map(Path, [*programs, *plugins]) if _is_file(path)]
    imported = [file for path in named if path.suffix == ".py" for file in _find_imported_files(path)]
    return tuple(dict.fromkeys([*named, *imported]))


def _find_imported_files(path: Path) -> list[Path]:
    """Return the files that a file imports from its own folder; none if a file cannot be read."""
    with suppress(OSError):
        modules = find_sibling_modules(path, path.read_bytes())
        return [module.file for module in modules.values() if module.content is not None]
    return []


def _texts(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        for _, inner in flatten({"value": value}):
            parts = inner if isinstance(inner, list) else [inner]
            yield from (part for part in parts if isinstance(part, str))


def _is_file(path: Path) -> bool:
    with suppress(OSError, ValueError):
        return path.is_file()
    return False


def hash_files(files: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of each of these files, by its path.

    Raises:
        UserError: If a file cannot be read.
    """
    hashes = {}
    for path in files:
        try:
            status = path.stat()
            version = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            hashes[str(path)] = _hash_file(path, version)
        except OSError as problem:
            raise UserError(
                f"{path}: the sweep runs this file, but it cannot be read ({problem.strerror})"
            ) from None
    return hashes


@lru_cache(maxsize=10_000)
def _hash_file(path: Path, version: tuple[int, ...]) -> str:
    """Return the SHA-256 of a file. It is read once for each version, not at every start of a run."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def changed_files(files: Sequence[Path], state: SweepState) -> list[str]:
    """Return the files that differ from those with which the sweep's runs were made.

    Failed runs, and runs that have not started, will start again anyway, so their version does not matter.
    """
    if not state.code or not state.with_state(*KEPT_STATES):
        return []
    return sorted(path for path, _, _ in differing(state.code, hash_files(files)))


def note_code_version(journal: Journal, files: Sequence[Path]) -> None:
    """Write the present version of the files to the journal, if it is new."""
    hashes = hash_files(files)
    if files and differing(journal.state.code, hashes):
        journal.append("code", hashes=hashes)
