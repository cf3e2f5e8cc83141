"""Detect changes in the user's own files while a sweep continues.

These are the files that the sweep names (its program, files in its command, and plug-ins such as
`model.name=./net.py:build`) and the files that these import from their own folders.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from ampcompare.errors import UserError
from ampcompare.identity.run_identity import differing
from ampcompare.runs.nested import flatten
from ampcompare.runs.run_state import RunState
from ampcompare.sibling_modules import find_sibling_modules
from ampcompare.sweeps.journal import CodeVersion, Journal, SweepState
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


def read_code_version(files: Iterable[Path]) -> CodeVersion:
    """Return the hashes of these files, and when they were last changed.

    Raises:
        UserError: If a file cannot be read.
    """
    hashes, modified = {}, {}
    for path in files:
        try:
            hashes[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
            changed = datetime.fromtimestamp(path.stat().st_mtime)
        except OSError as problem:
            raise UserError(
                f"{path}: the sweep runs this file, but it cannot be read ({problem.strerror})"
            ) from None
        modified[str(path)] = changed.isoformat(" ", "seconds")
    return CodeVersion(hashes, modified)


def changed_files(files: Sequence[Path], state: SweepState) -> list[str]:
    """Return the files that differ from those with which the sweep's runs were made.

    Failed runs, and runs that have not started, will start again anyway, so their version does not matter.
    A file that the sweep did not watch before is no change: the file that now imports it has changed.
    """
    if not state.code_versions or not state.with_state(*KEPT_STATES):
        return []
    hashes, known = read_code_version(files).hashes, state.code_versions[-1].hashes
    return sorted(path for path, before, _ in differing(known, hashes) if before is not None)


def note_code_version(journal: Journal, files: Sequence[Path]) -> None:
    """Write the present version of the files to the journal, if it is new."""
    version = read_code_version(files)
    known = journal.state.code_versions
    if files and (not known or differing(known[-1].hashes, version.hashes)):
        journal.append("code", hashes=version.hashes, modified=version.modified)


def changed_code_dates(state: SweepState) -> Mapping[str, str]:
    """Return the dates of the files that have changed since the sweep began, for the records of new runs."""
    if not state.code_versions:
        return {}
    new = state.code_versions[-1]
    first_hashes: dict[str, str] = {}
    for version in reversed(state.code_versions):
        first_hashes |= version.hashes
    # A file's name without folder and dots: in a record, dots separate groups.
    return {
        Path(path).name.replace(".", "_"): f"{Path(path).name} of {new.modified[path]}"
        for path, digest in new.hashes.items()
        if digest != first_hashes[path]
    }


class CodeWatch:
    """Watches the user's files while a sweep runs.

    Args:
        versions: Versions of the code in the journal, the present one last.
    """

    def __init__(self, files: Sequence[Path], versions: Sequence[CodeVersion]) -> None:
        self._files = files
        self._version = versions[-1] if versions and files else read_code_version(files)
        self._stamps: list[tuple[int, int]] | None = None  # times and sizes at which the content was compared

    def changed(self) -> list[str]:
        """Return the files that have other content now, or that are missing."""
        stamps = self._read_stamps()
        if stamps == self._stamps:
            return []
        try:
            hashes = read_code_version(self._files).hashes
        except UserError:  # an editor may be writing a file
            hashes = {}
        changed = [path for path, _, _ in differing(self._version.hashes, hashes)]
        if not changed:
            self._stamps = stamps
        return changed

    def _read_stamps(self) -> list[tuple[int, int]]:
        stamps = []
        for path in self._files:
            with suppress(OSError):
                status = path.stat()
                stamps.append((status.st_mtime_ns, status.st_size))
        return stamps
