"""Decide which files are one run: copies and concatenations of a log, and the parts `train` and `validation`.

docs/reports.md states the rules. They apply within one arm, and never to W&B's records, which have run ids.
"""

import logging
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ampcompare import metrics
from ampcompare.errors import UserError, one_line
from ampcompare.runs.run_record import TIMESTAMP, Column, RunRecord, concatenate_columns
from ampcompare.runs.step_keys import STEP_COLUMNS

TRAIN_WORDS = frozenset({"train", "training", "trn"})
EVALUATION_WORDS = frozenset(
    {"val", "valid", "validation", "eval", "evaluation", "test", "testing", "dev", "holdout"}
)
SPLIT_WORDS = TRAIN_WORDS | EVALUATION_WORDS
TOKEN = re.compile(r"[A-Za-z]+")
SEPARATORS = "-_. "
# Words of keys that a schedule, and not the computation, determines. They are equal in different runs.
SCHEDULE_WORDS = frozenset(
    """
    lr learning rate momentum decay wd weight beta step steps iter iters iteration epoch epochs progress
    sample samples token tokens batch batches memory mem params seed total num n count temperature schedule
    """.split()
)
TIME_WORDS = frozenset(
    "time timestamp runtime wall elapsed seconds second sec secs s ms duration date datetime eta".split()
)
SCORE_WORDS = frozenset({"acc", "acc1", "acc5", "top1", "top5", "accuracy"})  # fractions of small numbers
FULL_DIGITS = 7  # significant digits of a value that was not rounded when it was logged
MIN_FULL_VALUES = 2  # different values with all digits that must agree
MIN_TIME_DIGITS = 8  # significant digits, in all rows together, in which a time must agree

log = logging.getLogger(__name__)


def unite_files(runs: Sequence[RunRecord], arm: str, named_files: Collection[Path] = ()) -> list[RunRecord]:
    """Return the runs of one arm, each once.

    Args:
        runs: The runs as their files give them.
        arm: The name of the arm, "" without one.
        named_files: The real paths of files that the user named one by one.

    Raises:
        UserError: Two logs agree in every value, and nothing tells whether they are one run. Or one begins
            in the middle of another, so that it may continue that run.
    """
    of_wandb = [run for run in runs if not _is_other_log(run)]
    of_others = [run for run in runs if _is_other_log(run)]
    of_others = join_splits(_without_duplicates(of_others, arm, named_files))
    if arm:
        _ask_about_continuations(of_others, arm, named_files)
    return of_wandb + of_others


def _is_other_log(run: RunRecord) -> bool:
    """Return whether the run is read from files of another program than W&B."""
    return bool(run.paths) and all(path.suffix != ".wandb" for path in run.paths)


# Copies, early copies and concatenations


def _without_duplicates(
    runs: Sequence[RunRecord], arm: str, named_files: Collection[Path]
) -> list[RunRecord]:
    """Return the runs without those whose rows stand in the file of another."""
    left_out: dict[int, int] = {}  # by the number of a run that is left out: the run that has its rows
    for outer, contained in _find_contained(runs, arm, named_files).items():
        later = [runs[one.number] for one in contained if one.begin > 0]
        is_collection = any(_first_step(run) == _first_step(runs[outer]) for run in later)
        if is_collection:  # the file holds several whole runs, one after the other
            left_out[outer] = contained[0].number
        else:
            left_out |= {one.number: outer for one in contained}
    if left_out:
        _log_duplicates(runs, left_out)
    return [run for number, run in enumerate(runs) if number not in left_out]


class _Contained(NamedTuple):
    """A run whose rows stand in the file of a longer one.

    Attributes:
        number: The number of the run among the runs of the arm.
        begin: The row of the longer run at which it begins.
    """

    number: int
    begin: int


def _find_contained(
    runs: Sequence[RunRecord], arm: str, named_files: Collection[Path]
) -> dict[int, list[_Contained]]:
    """Return the runs whose rows stand in the file of another, by the number of that longer run.

    Raises:
        UserError: Two logs agree in every value, and nothing tells whether they are one run.
    """
    contained: dict[int, list[_Contained]] = {}
    for outer, inner in _ordered_pairs(runs):
        begin = _find_rows(runs[inner], runs[outer])
        evidence = "" if begin is None else _evidence(runs[inner])
        if begin is None or not evidence:
            continue
        if evidence != "time" and not arm:
            continue  # the files may be of several arms, and two arms may compute the same
        if evidence != "time" and _looks_like_repeat(runs[inner], runs[outer]):
            _ask_about_duplicates(runs[inner], runs[outer], arm, named_files)
            continue
        contained.setdefault(outer, []).append(_Contained(inner, begin))
    return contained


def _log_duplicates(runs: Sequence[RunRecord], left_out: Mapping[int, int]) -> None:
    number, kept = next(iter(left_out.items()))
    one, other = runs[number], runs[kept]
    shorter = min((one, other), key=lambda run: run.rows)
    evidence = "times" if _evidence(shorter) == "time" else "all digits"
    others = f"; {len(left_out) - 1:,} more files repeat another one" if len(left_out) > 1 else ""
    message = f"{one.paths[0]} and {other.paths[0]} are one run: steps, values and {evidence} agree{others}"
    log.info(one_line(message))


def _ordered_pairs(runs: Sequence[RunRecord]) -> Iterator[tuple[int, int]]:
    """Yield the numbers of a longer and a shorter run; of equally long runs, the first is the longer one."""
    for outer, longer in enumerate(runs):
        for inner, shorter in enumerate(runs):
            if inner == outer or shorter.rows > longer.rows or shorter.config != longer.config:
                continue
            if shorter.rows < longer.rows or _name_order(longer) < _name_order(shorter):
                yield outer, inner


def _name_order(run: RunRecord) -> tuple[int, str]:
    return len(run.name), run.name


def _find_rows(inner: RunRecord, outer: RunRecord) -> int | None:
    """Return the row of the longer run at which the rows of the shorter one begin, None if it lacks them."""
    starts: np.ndarray | None = None
    for key, (rows, values) in inner.logged.items():
        if not len(rows) or rows[0] != 0 or values[0] != values[0]:
            continue
        if key not in outer.logged:
            return None
        outer_rows, outer_values = outer.logged[key]
        # A value may be a list, which NumPy would compare element by element.
        if outer_values.dtype == object:
            is_same = np.array([value == values[0] for value in outer_values], bool)
        else:
            is_same = outer_values == values[0]
        same = outer_rows[is_same]
        starts = same if starts is None else np.intersect1d(starts, same)
        if not len(starts):
            return None
    if starts is None:
        return None
    return next((int(start) for start in starts if _agree_from(inner, outer, int(start))), None)


def _agree_from(inner: RunRecord, outer: RunRecord, start: int) -> bool:
    """Return whether the rows of the longer run from `start` on are the rows of the shorter one."""
    if start + inner.rows > outer.rows:
        return False
    empty: Column = (np.empty(0, np.int64), np.empty(0))
    for key in inner.logged.keys() | outer.logged.keys():
        rows, values = inner.logged.get(key, empty)
        outer_rows, outer_values = outer.logged.get(key, empty)
        low, high = np.searchsorted(outer_rows, (start, start + inner.rows))
        if not np.array_equal(rows, outer_rows[low:high] - start):
            return False
        if not _are_equal(values, outer_values[low:high]):
            return False
    return True


def _are_equal(one: np.ndarray, other: np.ndarray) -> bool:
    if one.dtype == object or other.dtype == object:  # a value may be a list
        return list(one) == list(other)
    return np.array_equal(one, other, equal_nan=True)


def _evidence(run: RunRecord) -> str:
    """Return what proves that a log with the same values is the same run: `time`, `digits`, or ""."""
    has_digits = False
    for key in run.logged:
        _, values = run.logged_numbers(key)
        words = {*metrics.split_words(key)}
        if words & TIME_WORDS:
            distinct = dict.fromkeys(values)
            if len(distinct) > 1 and sum(map(_significant_digits, distinct)) >= MIN_TIME_DIGITS:
                return "time"
        elif not words & (SCHEDULE_WORDS | SCORE_WORDS) and key not in STEP_COLUMNS:
            full = {value for value in values if _significant_digits(value) >= FULL_DIGITS}
            has_digits |= len(full) >= MIN_FULL_VALUES
    return "digits" if has_digits else ""


def _significant_digits(value: float) -> int:
    """Return how many digits a value has without leading and trailing zeros."""
    mantissa = repr(float(value)).partition("e")[0]
    return len(re.sub(r"\D", "", mantissa.removesuffix(".0")).strip("0"))


def _looks_like_repeat(one: RunRecord, other: RunRecord) -> bool:
    """Return whether two logs lie as repeats do: in two folders, or as `seed1.csv` and `seed2.csv`."""
    names = {re.sub(r"\d+", "#", run.name) for run in (one, other)}
    return len(names) == 1 or one.paths[0].parent != other.paths[0].parent


def _ask_about_duplicates(one: RunRecord, other: RunRecord, arm: str, named_files: Collection[Path]) -> None:
    """Ask whether two logs with the same values are one run, unless the user named both files.

    Raises:
        UserError: The runs are in one arm, and were found in a folder.
    """
    paths = sorted((one.paths[0], other.paths[0]))
    if not arm or all(path.resolve() in named_files for path in paths):
        return
    named = " ".join(f"{arm}={path}" for path in paths)
    raise UserError(
        f"{arm}: {paths[0]} and {paths[1]} have the same values in every row, and no time tells whether they "
        f"are one run; leave one of them out, or name each file of the arm to count both: {named}"
    )


def _first_step(run: RunRecord) -> float:
    steps = run.values(metrics.STEP)
    return float(steps[0]) if len(steps) else 0.0


def _ask_about_continuations(runs: Sequence[RunRecord], arm: str, named_files: Collection[Path]) -> None:
    """Ask whether a log that begins in the middle of another, and ends after it, continues that run.

    Raises:
        UserError: There is such a log, and the user did not name both files.
    """
    for later in runs:
        for earlier in runs:
            paths = (earlier.paths[0], later.paths[0])
            if not _may_continue(earlier, later) or all(path.resolve() in named_files for path in paths):
                continue
            named = " ".join(f"{arm}={path}" for path in paths)
            raise UserError(
                f"{arm}: {paths[1]} begins at step {_first_step(later):,.0f}, in the middle or at the end of "
                f"{paths[0]}; if it continues that run, make one file of both (of event files, one folder); "
                f"name each file of the arm to count both as runs: {named}"
            )


def _may_continue(earlier: RunRecord, later: RunRecord) -> bool:
    before = earlier.values(metrics.STEP)
    after = later.values(metrics.STEP)
    if len(before) < 2 or not len(after):
        return False
    steps = np.unique(before)
    gap = float(np.median(np.diff(steps))) if len(steps) > 1 else 0.0
    is_inside = steps[0] + 2 * gap < after[0] <= steps[-1] + 2 * gap
    return bool(is_inside and after.max() > steps[-1])


# The parts `train` and `validation`


def join_splits(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the runs with `train` and `validation` folders or files of one run as one run.

    Names that differ only in such a word are parts of one run. A key that several parts have gets the word
    as a prefix (`validation/epoch_accuracy`); any other key keeps its name.
    """
    groups: dict[tuple[str, ...], list[tuple[tuple[str, ...], RunRecord]]] = {}
    for run in runs:
        template, words = _split_name(run.name)
        groups.setdefault(template, []).append((words, run))
    joined = []
    for members in groups.values():
        joined += _join_members(members)
    return joined


def _join_members(members: Sequence[tuple[tuple[str, ...], RunRecord]]) -> list[RunRecord]:
    """Return runs whose names differ only in split words: one run if they are its splits, else all runs."""
    every = [run for _, run in members]
    position = _find_split_position([words for words, _ in members])
    if position is None:
        return every
    counts = Counter(key for run in every for key in run.logged)
    parts = []
    for words, run in members:
        logged = {_prefix_key(key, words[position], counts): column for key, column in run.logged.items()}
        parts.append(replace(run, logged=logged))
    name = _name_without(every[0].name, position)
    return [replace(join_rows(parts), id=name, name=name)]


def _find_split_position(words_of_runs: Sequence[tuple[str, ...]]) -> int | None:
    """Return which split word distinguishes the parts of one run; None if they are not its splits.

    Args:
        words_of_runs: The split words in the name of each run, as many in each.
    """
    if len({*words_of_runs}) < len(words_of_runs):
        return None
    columns = list(zip(*words_of_runs, strict=True))
    positions = [position for position, words in enumerate(columns) if len({*words}) > 1]
    if len(positions) != 1:
        return None
    splits = {word.lower() for word in columns[positions[0]]}
    has_both = splits & TRAIN_WORDS and splits & EVALUATION_WORDS
    return positions[0] if has_both else None


def _split_name(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the pieces of a name between its split words, and these words."""
    pieces = []
    words = []
    end = 0
    for match in TOKEN.finditer(name):
        if match[0].lower() in SPLIT_WORDS and _is_token(name, match):
            pieces.append(name[end : match.start()])
            words.append(match[0])
            end = match.end()
    return (*pieces, name[end:]), tuple(words)


def _is_token(name: str, match: re.Match[str]) -> bool:
    """Return whether a word stands alone between separators, or is followed by a number alone."""
    before = name[: match.start()][-1:]
    after = name[match.end() :][:1]
    return before in ("", "/", *SEPARATORS) and (after in ("", "/", *SEPARATORS) or after.isdigit())


def _name_without(name: str, position: int) -> str:
    """Return a name without its split word at this position, and without a separator beside it."""
    pieces, words = _split_name(name)
    before = ""
    after = ""
    for index, piece in enumerate(pieces):
        word = words[index] if index < len(words) and index != position else ""
        if index <= position:
            before += piece + word
        else:
            after += piece + word
    if before.endswith("/") and after.startswith("/"):
        return before + after[1:]
    if after and after[0] in SEPARATORS:
        return before + after[1:]
    if before and before[-1] in f"/{SEPARATORS}":
        return before[:-1] + after
    return before + after


def _prefix_key(key: str, split: str, counts: Mapping[str, int]) -> str:
    is_shared = key in (metrics.STEP, TIMESTAMP) or key.lower() in STEP_COLUMNS
    if is_shared or counts[key] < 2 or key.startswith((f"{split}/", f"{split}_")):
        return key
    return f"{split}/{key}"


def join_rows(parts: Sequence[RunRecord]) -> RunRecord:
    """Return the parts of one run with all rows. Rows of one step become one row.

    Where the steps of a part go back, its rows follow those of the part before.
    """
    first = parts[0]
    pieces: dict[str, list[Column]] = {}
    numbers, count = _row_numbers(parts)
    for part, new in zip(parts, numbers, strict=True):
        for key, (rows, values) in part.logged.items():
            pieces.setdefault(key, []).append((new[rows], values))
    logged: dict[str, Column] = {}
    for key, columns in pieces.items():
        rows, values = concatenate_columns(columns)
        unique, index = np.unique(rows, return_index=True)
        logged[key] = unique, values[index]
    config: dict[str, object] = {}
    for part in reversed(parts):
        config |= part.config
    return replace(
        first,
        rows=count,
        logged=logged,
        config=config,
        problems=list(dict.fromkeys(problem for part in parts for problem in part.problems)),
        units={key: unit for part in parts for key, unit in part.units.items()},
        paths=tuple(path for part in parts for path in part.paths),
        last_write=max((part.last_write for part in parts if part.last_write), default=None),
        started_at=min((part.started_at for part in parts if part.started_at), default=None),
    )


def _row_numbers(parts: Sequence[RunRecord]) -> tuple[list[np.ndarray], int]:
    """Return for each part the new numbers of its rows, and the number of all rows."""
    steps = [part.numbers(metrics.STEP) for part in parts]
    is_ordered = all(np.isfinite(column).all() and (np.diff(column) >= 0).all() for column in steps)
    if not is_ordered:
        ends = np.cumsum([part.rows for part in parts])
        return [np.arange(end - part.rows, end) for part, end in zip(parts, ends, strict=True)], int(ends[-1])
    # A step that stands in several rows of one part keeps its rows apart.
    repeats = [np.arange(len(column)) - np.searchsorted(column, column) for column in steps]
    pairs = np.stack([np.concatenate(steps), np.concatenate(repeats)], axis=1)
    unique, inverse = np.unique(pairs, axis=0, return_inverse=True)
    ends = np.cumsum([len(column) for column in steps])[:-1]
    return np.split(inverse.reshape(-1), ends), len(unique)
