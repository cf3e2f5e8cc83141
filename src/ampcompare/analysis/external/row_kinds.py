"""Keys with two meanings: training and evaluation rows that carry one key are told apart, or asked about.

`--where [KEY:]COLUMN=VALUE` takes a key from the rows with this value. `COLUMN` alone means rows that have a
value in the column, `!COLUMN` rows that have none.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ampcompare import metrics
from ampcompare.analysis.external.declared_metrics import is_step_column
from ampcompare.analysis.external.key_mapping import epoch_key
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
    key, test = _split_key(text, columns)
    is_absent = test.startswith("!")
    bare = test.removeprefix("!")
    column = bare
    value = None
    if bare not in columns:  # the name of a column may have an equals sign
        column, equals, text_of_value = bare.partition("=")
        value = text_of_value if equals else None
    if column not in columns:
        hint = nearest_key(column, columns, end=" ")
        names = ", ".join(columns[:12])
        raise UserError(f"--where {text!r}: no run has the column {column!r}; {hint}columns: {names}")
    condition = Condition(text, key, column, value, is_absent)
    if not any(condition.rows(run).any() for run in runs):
        raise UserError(
            f"--where {text!r}: no row has this value; {printable(column)} has {_values(column, runs)}"
        )
    return condition


def _split_key(text: str, columns: Sequence[str]) -> tuple[str, str]:
    """Return the key before a colon, "" without one, and the rest. The longest key that a run has counts."""
    for position in reversed([index for index, sign in enumerate(text) if sign == ":"]):
        if text[:position] in columns:
            return text[:position], text[position + 1 :]
    return "", text


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
    logged = dict(run.logged)
    summary = dict(run.summary)
    for key in run.logged:
        if key in COUNTERS:
            continue
        relevant = [one for one in conditions if one.key == key]
        if not relevant:
            relevant = [one for one in conditions if not one.key and one.column != key]
        for condition in relevant:
            rows, values = logged[key]
            is_kept = condition.rows(run)[rows]
            if not is_kept.any() and not condition.key:
                continue
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
    general = [one for one in conditions if not one.key]
    is_metric_chosen = bool(general and _kinds(runs, metric))
    asked: dict[str, list[str]] = {}
    for key in dict.fromkeys(keys):
        relevant = [one for one in conditions if one.key == key]
        if not relevant and (key == metric or not is_metric_chosen):
            relevant = general
        kinds = _kinds(_apply_to_key(runs, key, relevant), key)
        if kinds:
            asked[key] = kinds
    questions = []
    arguments = []
    for key, kinds in asked.items():
        words = EVALUATION_WORDS if key == metric else TRAIN_WORDS
        condition = _suggest(kinds, words, is_time=key != metric)
        is_structural = "=" not in condition
        if len(asked) > 1 or is_metric_chosen or is_structural:
            condition = f"{key}:{condition}"
        columns = listed(dict.fromkeys(_describe(kind, runs) for kind in kinds))
        questions.append(
            f"rows: {printable(key)} stands in rows of several kinds, told apart by {columns}; "
            f"add --where {printable(condition)} or another of them"
        )
        arguments += ["--where", condition]
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
        if _is_named(kind, words):
            return kind
    if is_time:
        losses = [kind for kind in kinds if kind.endswith("loss") and not kind.startswith("!")]
        return (losses or kinds)[0]
    scores = [kind for kind in kinds if metrics.guess_direction(kind.partition("=")[2]) == metrics.HIGHER]
    absent = [kind for kind in kinds if kind.startswith("!")]
    return (scores or absent or kinds)[0]


def _is_named(kind: str, words: frozenset[str]) -> bool:
    """Return whether a kind is named by one of the words: `split=val`, `is_train=False`, `val_loss`."""
    column, equals, value = kind.partition("=")
    words_of_column = {*metrics.split_words(column)}
    if value in ("True", "False") and words_of_column & SPLIT_WORDS:
        return bool(words_of_column & words) == (value == "True")
    named = {*metrics.split_words(value)} if equals else words_of_column
    return bool(named & words) and not kind.startswith("!")


def _kinds(runs: Sequence[RunRecord], key: str) -> list[str]:
    """Return a condition for each kind of rows in which a key stands; empty for one kind."""
    for run in runs:
        kinds = _kinds_by_column(run, key) or _kinds_by_keys(run, key)
        if kinds:
            return kinds
    return []


def _kinds_by_column(run: RunRecord, key: str) -> list[str]:
    """Return the values of a column that names the kind of each row.

    It has a few values, which are words such as `train` and `val`, or at the same step the key stands in
    rows with different values.
    """
    rows, _ = run.logged_numbers(key)
    steps = _steps(run)[rows]
    counters = {key, epoch_key(run), *COUNTERS}
    for column, (column_rows, values) in run.logged.items():
        if column in counters or not _may_name_kinds(column, values):
            continue
        if values.dtype != object and is_step_column(column, [run]):
            continue
        labels = np.full(run.rows, "", object)
        labels[column_rows] = [_label(value) for value in values]
        labels = labels[rows]
        names = sorted({*labels} - {""}, key=numeric_sort_key)
        if len(names) < 2:
            continue
        are_splits = all(map(_is_split, names))
        steps_of_two = [{*steps[labels == name]} for name in names[:2]]
        shared = set.intersection(*steps_of_two)
        if are_splits or 2 * len(shared) >= min(map(len, steps_of_two)):
            return [f"{column}={name}" for name in names]
    return []


def _label(value: object) -> str:
    """Return a value as the user writes it after `--where COLUMN=`: 1 for 1.0."""
    return f"{value:g}" if isinstance(value, float) else as_text(value)


def _is_split(name: str) -> bool:
    """Return whether a name has a word for a split of the data."""
    return not {*metrics.split_words(name)}.isdisjoint(SPLIT_WORDS)


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
    epoch_name = epoch_key(run)
    epoch = run.numbers(epoch_name) if epoch_name else np.zeros(run.rows)
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
        members: list[int] = []
        near = left[:1]
        while near:
            members += near
            left = [number for number in left if number not in near]
            keys = signatures[members].any(axis=0)
            near = [number for number in left if (signatures[number] & keys).any()]
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
        with_key = {*steps[has[:, index]]}
        without_key = {*steps[~has[:, index]]}
        if not with_key or not without_key:
            continue
        if 2 * len(with_key & without_key) > min(len(with_key), len(without_key)):
            return [name, f"!{name}"]
    return []
