"""Decide which files are one run: equal files, files that continue others, Keras' `train` and `validation`.

Nothing is decided by values: what the bytes and the formats' own names do not say is asked. W&B's records
have run ids and are never joined here.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ampcompare import metrics
from ampcompare.runs.discovery import digest, is_event_file
from ampcompare.runs.joined_rows import join_rows
from ampcompare.runs.missing_input import MissingInput
from ampcompare.runs.name_pattern import ARM
from ampcompare.runs.nested import as_text
from ampcompare.runs.run_record import TIMESTAMP, RunRecord
from ampcompare.runs.step_keys import STEP_COLUMNS

PART = re.compile(r"(?P<run>.+)(?P<separator>[/_])(?P<part>train|validation)")  # of Keras' callback


def unite_files(runs: Sequence[RunRecord], arm: str, named_files: Collection[Path] = ()) -> list[RunRecord]:
    """Return the runs of one arm, each once.

    Args:
        runs: The runs as their files give them.
        arm: The name of the arm, "" without one.
        named_files: The real paths of files that the user named one by one.

    Raises:
        MissingInput: Two files have the same bytes, and nothing tells whether they are one run. Or, in an
            arm, one overlaps another, or begins in the middle of it, so that it may continue that run.
    """
    others = [run for run in runs if _is_other_log(run)]
    joined = join_parts(others)
    _ask_about_equal_files(joined, arm, named_files)
    by_arm: dict[str, list[RunRecord]] = {}
    for run in joined:
        by_arm.setdefault(arm or as_text(run.config.get(ARM, "")), []).append(run)
    for name, runs_of_arm in by_arm.items():
        if name:
            _ask_about_continuations(runs_of_arm, arm, named_files)
    return [run for run in runs if not _is_other_log(run)] + joined


def _is_other_log(run: RunRecord) -> bool:
    """Return whether the run is read from files of another program than W&B."""
    return bool(run.paths) and all(path.suffix != ".wandb" for path in run.paths)


def _ask_about_equal_files(runs: Sequence[RunRecord], arm: str, named_files: Collection[Path]) -> None:
    """Ask whether files with the same bytes are one run.

    Raises:
        MissingInput: There are such files with the same settings, and the user did not name both.
    """
    of_content: dict[tuple[int, bytes], RunRecord] = {}
    sizes = Counter(_size(run) for run in runs)
    for run in runs:
        if len(run.paths) != 1 or sizes[_size(run)] < 2:
            continue
        key = (_size(run), digest(run.paths[0]))
        one = of_content.setdefault(key, run)
        pair = (one.paths[0], run.paths[0])
        if pair[0] == pair[1] or one.config != run.config or _are_named(pair, named_files):
            continue
        if not arm and pair[0].parent != pair[1].parent:
            continue  # the files may be of several arms, and two arms may compute the same
        raise _question(runs, arm, f"{pair[0]} and {pair[1]} have the same bytes; leave out one of them")


def _size(run: RunRecord) -> int:
    return run.paths[0].stat().st_size


def _are_named(paths: Iterable[Path], named_files: Collection[Path]) -> bool:
    return all(path.resolve() in named_files for path in paths)


def _question(runs: Sequence[RunRecord], arm: str, problem: str) -> MissingInput:
    """Return a question about two files, with a command that names each file and so counts both."""
    prefix = f"{arm}=" if arm else ""
    files = dict.fromkeys(f"{prefix}{path}" for run in runs for path in run.paths)
    question = f"{arm or 'runs'}: {problem}, or name each file to count both as runs"
    return MissingInput([question], [], list(files))


def _ask_about_continuations(runs: Sequence[RunRecord], arm: str, named_files: Collection[Path]) -> None:
    """Ask whether a file that continues or repeats another one is a part of that run.

    Raises:
        MissingInput: There is such a file, and the user did not name both.
    """
    for later in runs:
        for earlier in runs:
            paths = (earlier.paths[0], later.paths[0])
            if paths[0] == paths[1] or _are_named(paths, named_files):
                continue
            if _repeats(earlier, later):
                raise _question(
                    runs, arm, f"{paths[1]} has every row of {paths[0]}; leave out the one that is a part"
                )
            if _may_continue(earlier, later):
                begin = later.values(metrics.STEP)[0]
                raise _question(
                    runs,
                    arm,
                    f"{paths[1]} begins at step {begin:g}, after the beginning of {paths[0]}, and ends after "
                    "it; if it continues that run, make one file of both",
                )


def _may_continue(earlier: RunRecord, later: RunRecord) -> bool:
    """Return whether a run begins after the beginning of another one and ends after its end."""
    before = earlier.values(metrics.STEP)
    after = later.values(metrics.STEP)
    return bool(len(before) and len(after) and after[0] > before[0] and after.max() > before.max())


def _repeats(part: RunRecord, whole: RunRecord) -> bool:
    """Return whether a longer run has every row of a shorter one."""
    if part.rows >= whole.rows or part.logged.keys() != whole.logged.keys():
        return False
    rows = [_rows_as_set(run) for run in (part, whole)]
    return rows[0] <= rows[1]


def _rows_as_set(run: RunRecord) -> set[tuple[str, ...]]:
    columns = [run.history[key].map(repr) for key in sorted(run.logged)]
    return {*zip(*columns, strict=True)}


# The parts `train` and `validation`


def join_parts(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the runs with Keras' folders `train` and `validation` as one run, and so their downloads.

    A key that both parts have gets the name of its part as a prefix (`validation/epoch_accuracy`).
    """
    parts: dict[tuple[str, str], dict[str, RunRecord]] = {}
    for run in runs:
        if match := _part_of(run):
            parts.setdefault((match["run"], match["separator"]), {})[match["part"]] = run
    joined = []
    for run in runs:
        match = _part_of(run)
        members = parts[match["run"], match["separator"]] if match else {}
        if match is None or len(members) < 2:
            joined.append(run)
        elif match["part"] == "train":
            joined.append(_join_parts(match["run"], members))
    return joined


def _part_of(run: RunRecord) -> re.Match[str] | None:
    """Return the match of a run that Keras' callback may have written: event files, or their downloads."""
    is_table = run.paths[0].suffix == ".csv"
    match = PART.fullmatch(run.name)
    is_download = is_table and run.paths[0].name.startswith("run-")
    return match if match and (is_download or (not is_table and is_event_file(run.paths[0].name))) else None


def _join_parts(name: str, members: Mapping[str, RunRecord]) -> RunRecord:
    counts = Counter(key for run in members.values() for key in run.logged)
    parts = []
    for part, run in sorted(members.items()):
        logged = {_prefix_key(key, part, counts): column for key, column in run.logged.items()}
        parts.append(replace(run, logged=logged))
    return replace(join_rows(parts), id=name, name=name)


def _prefix_key(key: str, part: str, counts: Mapping[str, int]) -> str:
    is_shared = key in (metrics.STEP, TIMESTAMP) or key.lower() in STEP_COLUMNS
    if is_shared or counts[key] < 2 or key.startswith((f"{part}/", f"{part}_")):
        return key
    return f"{part}/{key}"
