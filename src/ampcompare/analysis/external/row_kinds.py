"""Keys with two meanings: training and evaluation rows that carry one key are told apart, or asked about.

`--where [KEY:]COLUMN=VALUE` takes a key from the rows with this value. `COLUMN` alone means rows that have a
value in the column, `!COLUMN` rows that have none.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ampcompare import metrics
from ampcompare.analysis.external.key_mapping import epoch_key, is_step_column
from ampcompare.analysis.grouping.compared_metric import nearest_key
from ampcompare.errors import UserError
from ampcompare.runs import RunRecord
from ampcompare.runs.nested import as_text
from ampcompare.runs.run_record import TIMESTAMP
from ampcompare.runs.same_run import EVALUATION_WORDS, SCHEDULE_WORDS, SPLIT_WORDS, TIME_WORDS, TRAIN_WORDS
from ampcompare.runs.step_keys import EPOCH_KEYS, OWN_STEP, STEP_KEYS
from ampcompare.runtime.formatting import listed, numeric_sort_key, printable, short, some

MAX_KINDS = 8  # values of a column that names the kind of a row
COUNTERS = frozenset({*STEP_KEYS, *EPOCH_KEYS, OWN_STEP, TIMESTAMP, "_runtime"})


@dataclass(frozen=True)
class Condition:
    """One `--where`.

    Attributes:
        text: The option as the user wrote it.
        key: The key that it is about, "" for every key.
        column: The column that is tested.
        value: The value that the column must have; None if any value counts.
        is_absent: Whether the column must have no value.
    """

    text: str
    key: str
    column: str
    value: str | None = None
    is_absent: bool = False

    def rows(self, run: RunRecord) -> np.ndarray:
        """Return for each row of a run whether it meets the condition."""
        is_met = np.zeros(run.rows, bool)
        rows, values = run.logged.get(self.column, (np.empty(0, np.int64), np.empty(0)))
        if self.value is None:
            is_met[rows] = True
        else:
            is_met[rows] = [_is_equal(value, self.value) for value in values]
        return ~is_met if self.is_absent else is_met


def _is_equal(value: object, text: str) -> bool:
    shown = as_text(value)
    return shown == text or numeric_sort_key(shown) == numeric_sort_key(text)


def parse_conditions(texts: Sequence[str], runs: Sequence[RunRecord]) -> list[Condition]:
    """Return the conditions that `--where` names.

    Raises:
        UserError: No run has the column, or no row has the value.
    """
    return [_parse(text, runs) for text in texts]


def _parse(text: str, runs: Sequence[RunRecord]) -> Condition:
    columns = list(dict.fromkeys(key for run in runs for key in run.logged))
    key, rest = "", text
    for position in (index for index, sign in enumerate(text) if sign == ":"):
        if text[:position] in columns:
            key, rest = text[:position], text[position + 1 :]
    is_absent = rest.startswith("!")
    bare = rest.removeprefix("!")
    column, equals, value = bare.partition("=")
    if bare in columns:  # a name that has an equals sign
        column, equals, value = bare, "", ""
    if column not in columns:
        hint = nearest_key(column, columns)
        listing = f"columns: {', '.join(columns[:12])}"
        raise UserError(f"--where {text!r}: no run has the column {column!r}; {hint and hint + ' '}{listing}")
    condition = Condition(text, key, column, value if equals else None, is_absent)
    if not any(condition.rows(run).any() for run in runs):
        raise UserError(
            f"--where {text!r}: no row has this value; {printable(column)} has {_values(column, runs)}"
        )
    return condition


def _values(column: str, runs: Sequence[RunRecord]) -> str:
    values = {_label(value) for run in runs for value in run.logged.get(column, ((), ()))[1]}
    return some([short(printable(value), 24) for value in sorted(values, key=numeric_sort_key)], MAX_KINDS)


def apply_conditions(runs: Sequence[RunRecord], conditions: Sequence[Condition]) -> list[RunRecord]:
    """Return the runs in which each key has the rows that meet its conditions.

    A condition without a key leaves those keys alone that no row has which meets it: a time that stands in
    training rows only is not lost by `--where split=val`.
    """
    return [_apply(run, conditions) for run in runs]


def _apply(run: RunRecord, conditions: Sequence[Condition]) -> RunRecord:
    logged, summary = dict(run.logged), dict(run.summary)
    for key in [key for key in run.logged if key not in COUNTERS]:
        if conditions_of_key := [one for one in conditions if one.key == key]:
            relevant = conditions_of_key
        else:
            relevant = [one for one in conditions if not one.key and one.column != key]
        for condition in relevant:
            rows, values = logged[key]
            is_kept = condition.rows(run)[rows]
            if is_kept.any() or condition.key:
                logged[key] = rows[is_kept], values[is_kept]
                if not is_kept.all():
                    summary.pop(key, None)  # it may be the value of another row
    return replace(run, logged=logged, summary=summary)


def ask_about_kinds(
    runs: Sequence[RunRecord], keys: Sequence[str], metric: str, conditions: Sequence[Condition]
) -> tuple[list[str], list[str]]:
    """Return a question for each key that stands in rows of several kinds, and arguments for all of them.

    Args:
        runs: The runs before any condition was applied.
        keys: The keys that are compared.
        metric: That of the keys which measures quality; the others measure speed.
        conditions: The conditions of the user.
    """
    asked: dict[str, list[str]] = {}
    is_metric_chosen = any(not one.key for one in conditions) and bool(_kinds(runs, metric))
    for key in dict.fromkeys(keys):
        own = [one for one in conditions if one.key == key]
        if not own and not (is_metric_chosen and key != metric):
            own = [one for one in conditions if not one.key]
        if kinds := _kinds(_apply_to_key(runs, key, own), key):
            asked[key] = kinds
    questions, arguments = [], []
    is_prefixed = len(asked) > 1 or is_metric_chosen
    for key, kinds in asked.items():
        chosen = _suggest(kinds, EVALUATION_WORDS if key == metric else TRAIN_WORDS, is_time=key != metric)
        is_structural = "=" not in chosen
        prefix = f"{key}:" if is_prefixed or is_structural else ""
        columns = listed(dict.fromkeys(_describe(kind, runs) for kind in kinds))
        questions.append(
            f"rows: {printable(key)} stands in rows of several kinds, told apart by {columns}; "
            f"add --where {printable(prefix + chosen)} or another of them"
        )
        arguments += ["--where", f"{prefix}{chosen}"]
    return questions, arguments


def _apply_to_key(runs: Sequence[RunRecord], key: str, conditions: Sequence[Condition]) -> list[RunRecord]:
    return apply_conditions(runs, [replace(one, key=key) for one in conditions if one.column != key])


def _describe(kind: str, runs: Sequence[RunRecord]) -> str:
    column, equals, _ = kind.partition("=")
    name = printable(column.removeprefix("!"))
    return f"{name} ({listed_values(column, runs)})" if equals else name


def listed_values(column: str, runs: Sequence[RunRecord]) -> str:
    """Return the values of a column in words: `train and val`."""
    values = {_label(value) for run in runs for value in run.logged.get(column, ((), ()))[1]}
    return listed(short(printable(value), 24) for value in sorted(values, key=numeric_sort_key))


def _suggest(kinds: Sequence[str], words: frozenset[str], *, is_time: bool) -> str:
    """Return the kind that is meant most likely: evaluation for a quality, training for a speed."""
    for kind in kinds:
        column, equals, value = kind.partition("=")
        named = {*metrics.split_words(value if equals else column)}
        if equals and value in ("True", "False") and {*metrics.split_words(column)} & SPLIT_WORDS:
            is_of_column = bool({*metrics.split_words(column)} & words)
            if is_of_column == (value == "True"):
                return kind
        elif named & words and not kind.startswith("!"):
            return kind
    if is_time:
        losses = [kind for kind in kinds if kind.endswith("loss") and not kind.startswith("!")]
        return (losses or list(kinds))[0]
    scores = [kind for kind in kinds if metrics.guess_direction(kind.partition("=")[2]) == metrics.HIGHER]
    absent = [kind for kind in kinds if kind.startswith("!")]
    return (scores or absent or list(kinds))[0]


def _kinds(runs: Sequence[RunRecord], key: str) -> list[str]:
    """Return a condition for each kind of rows in which a key stands; empty for one kind."""
    for run in runs:
        if kinds := _kinds_by_column(run, key) or _kinds_by_keys(run, key):
            return kinds
    return []


def _kinds_by_column(run: RunRecord, key: str) -> list[str]:
    """Return the values of a column that names the kind of each row.

    It has a few values, which are words such as `train` and `val`, or at the same step the key stands in
    rows with different values.
    """
    rows, _ = run.logged_numbers(key)
    steps = _steps(run)[rows]
    for column, (column_rows, values) in run.logged.items():
        is_counter = column in COUNTERS or column == epoch_key(run)
        if column == key or is_counter or not _may_name_kinds(column, values):
            continue
        if values.dtype != object and is_step_column(column, [run]):
            continue
        labels = np.full(run.rows, "", object)
        labels[column_rows] = [_label(value) for value in values]
        of_key = labels[rows]
        names = sorted({*of_key} - {""}, key=numeric_sort_key)
        if len(names) < 2:
            continue
        is_split = len({*names} & _as_written(names)) == len(names)
        steps_of_names = [{*steps[of_key == name]} for name in names]
        shared = len(set.intersection(*steps_of_names[:2]))
        if is_split or 2 * shared >= min(map(len, steps_of_names[:2])):
            return [f"{column}={name}" for name in names]
    return []


def _label(value: object) -> str:
    """Return a value as the user writes it after `--where COLUMN=`: 1 for 1.0."""
    return f"{value:g}" if isinstance(value, float) else as_text(value)


def _as_written(names: Sequence[str]) -> set[str]:
    """Return the names that are words for a split of the data."""
    return {name for name in names if {*metrics.split_words(name)} & SPLIT_WORDS}


def _may_name_kinds(column: str, values: np.ndarray) -> bool:
    """Return whether a column has a few values: texts, truth values, or small whole numbers."""
    if values.dtype == object:
        return len({as_text(value) for value in values}) <= MAX_KINDS
    numbers = {*values}
    are_whole = all(float(number).is_integer() and abs(number) < MAX_KINDS for number in numbers)
    return are_whole and len(numbers) <= MAX_KINDS and not _is_common(column)


def _steps(run: RunRecord) -> np.ndarray:
    """Return a step for each row: with the epoch, where there is one, because a step may restart."""
    step = next((run.numbers(name) for name in STEP_KEYS if name in run.logged), np.arange(float(run.rows)))
    epoch = run.numbers(name) if (name := epoch_key(run)) else np.zeros(run.rows)
    # Complex numbers are pairs that can be compared; NaN would differ from itself.
    return np.nan_to_num(step, nan=-1.0) + 1j * np.nan_to_num(epoch, nan=-1.0)


def _kinds_by_keys(run: RunRecord, key: str) -> list[str]:
    """Return keys that tell kinds of rows apart: rows that share no other value, or have more of them.

    Counters, times and schedules stand in rows of any kind. Rows that have a key more than others are
    another kind only if both stand at the same steps: a value may be logged every few rows.
    """
    rows, _ = run.logged_numbers(key)
    others = [
        name
        for name in run.logged
        if name != key and not _is_common(name) and not is_step_column(name, [run])
    ]
    if len(rows) < 2 or not others:
        return []
    has = np.stack([np.isin(rows, run.logged[name][0]) for name in others], axis=1)
    signatures = np.unique(has, axis=0)
    if len(signatures) < 2:
        return []
    components = _components(signatures)
    if len(components) > 1:
        return [others[_most_frequent(signatures, members)] for members in components]
    return _kinds_by_more_keys(run, rows, others, has)


def _is_common(name: str) -> bool:
    """Return whether a key may stand in rows of any kind: a counter, a time, or part of a schedule."""
    return name in COUNTERS or bool({*metrics.split_words(name)} & (TIME_WORDS | SCHEDULE_WORDS))


def _components(signatures: np.ndarray) -> list[np.ndarray]:
    """Return the numbers of the signatures in sets that share no key. Rows without another key are no set."""
    left = [number for number, signature in enumerate(signatures) if signature.any()]
    components = []
    while left:
        members = [left.pop(0)]
        keys = signatures[members[0]].copy()
        while near := [number for number in left if (signatures[number] & keys).any()]:
            members += near
            keys |= signatures[near].any(axis=0)
            left = [number for number in left if number not in near]
        components.append(np.array(members))
    return components


def _most_frequent(signatures: np.ndarray, members: np.ndarray) -> int:
    return int(np.argmax(signatures[members].sum(axis=0)))


def _kinds_by_more_keys(
    run: RunRecord, rows: np.ndarray, others: Sequence[str], has: np.ndarray
) -> list[str]:
    steps = _steps(run)[rows]
    if len({*steps}) == len(steps):
        return []
    for index, name in enumerate(others):
        with_key, without_key = {*steps[has[:, index]]}, {*steps[~has[:, index]]}
        if (
            with_key
            and without_key
            and 2 * len(with_key & without_key) > min(len(with_key), len(without_key))
        ):
            return [name, f"!{name}"]
    return []
