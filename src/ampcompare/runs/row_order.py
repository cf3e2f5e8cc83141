"""One run per table: rows of several runs, and of several starts of one run, are told apart or asked about.

A step that comes again means one of these. Rows of training and evaluation that have other keys are no
question: the steps of each kind of row are looked at alone.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ampcompare import metrics
from ampcompare.errors import UserError, did_you_mean
from ampcompare.runs.load_options import JOINED, LAST, NO_STEP, RUNS, ReadingOptions
from ampcompare.runs.missing_input import MissingInput
from ampcompare.runs.run_record import TIMESTAMP, RunRecord
from ampcompare.runs.step_keys import EPOCH_KEYS, STEP_COLUMNS
from ampcompare.runs.values import as_setting, label_of_value
from ampcompare.runtime.formatting import listed, numeric_sort_key, printable, short, some

NO_KIND = frozenset({metrics.STEP, TIMESTAMP, "_runtime", "_step"})  # keys in rows of any kind
SEED = "seed"  # the key of a seed that needs no option
MAX_COLUMNS = 8  # that a question names


def split_runs(table: RunRecord, options: ReadingOptions, headers: Sequence[int] = ()) -> list[RunRecord]:
    """Return the runs in a table whose steps are known.

    Args:
        table: The rows with their step.
        options: What the user says about the rows.
        headers: The rows before which the header stands again.

    Raises:
        MissingInput: The step comes again, and the user does not say why.
        UserError: There is no column that the user names.
    """
    is_header = np.zeros(table.rows, bool)
    is_header[[row for row in headers if row < table.rows]] = True
    runs = []
    for run, kept in _split_by_columns(table, options.run_columns):
        # A header before a row of another run begins a start of this one, too.
        passed = np.cumsum(is_header)[kept]
        runs.append(_choose_starts(run, options, np.diff(passed, prepend=0) > 0))
    return runs


def _split_by_columns(table: RunRecord, columns: Sequence[str]) -> Iterable[tuple[RunRecord, np.ndarray]]:
    """Yield each run with the numbers of its rows. The values of the columns become its settings.

    Raises:
        UserError: The table has no such column.
    """
    if not columns:
        yield table, np.arange(table.rows)
        return
    for column in columns:
        if column not in table.logged:
            names = list(table.logged)
            hint = did_you_mean(column, names, 0.5, end=" ")
            known = some(names, MAX_COLUMNS)
            raise UserError(
                f"--run-by {column!r}: {table.paths[0]} has no such column; {hint}columns: {known}"
            )
    labels = [row_labels(table, column) for column in columns]
    of_rows = list(zip(*labels, strict=True))
    distinct = sorted({*of_rows}, key=lambda values: [numeric_sort_key(value or "") for value in values])
    without = sum(None in values for values in of_rows)
    if without:
        problem = f"{without:,} rows have no {listed(columns)} and belong to no run."
        table = replace(table, problems=[*table.problems, problem])
    for values in distinct:
        if None in values:
            continue
        rows = np.array([own == values for own in of_rows], bool)
        part = table.select(rows)
        texts = ",".join(f"{column}={value}" for column, value in zip(columns, values, strict=True))
        settings = {column: as_setting(value) for column, value in zip(columns, values, strict=True)}
        name = f"{table.name}[{texts}]"
        logged = {key: column for key, column in part.logged.items() if key not in columns}
        yield (
            replace(part, id=name, name=name, logged=logged, config=table.config | settings),
            np.flatnonzero(rows),
        )


def row_labels(table: RunRecord, column: str) -> np.ndarray:
    """Return the value of a column in each row as the user writes it (1 for 1.0), None without a value."""
    labels = np.full(table.rows, None, object)
    rows, values = table.logged.get(column, (np.empty(0, np.int64), np.empty(0)))
    labels[rows] = [label_of_value(value) for value in values]
    return labels


def _choose_starts(run: RunRecord, options: ReadingOptions, is_header: np.ndarray) -> RunRecord:
    """Return a run with one start of it, or with all of them joined.

    Raises:
        MissingInput: The steps begin again, and nothing says whether these are runs or starts.
    """
    if options.step == NO_STEP:
        starts = np.cumsum(is_header)
        if starts.any() and not options.starts:
            raise _starts_question(run, starts, is_table_of_results=False)
        if options.starts == LAST:
            run = run.select(starts == starts[-1])
        return run.with_columns({metrics.STEP: np.arange(1.0, run.rows + 1)})
    if _find_starts(run, _positions(run), replace(options, where=()), is_header).any():
        is_meant = _is_meant(run, options)
        run, is_header = run.select(is_meant), is_header[is_meant]
    positions = _positions(run)
    starts = _find_starts(run, positions, options, is_header)
    if not starts.any():
        _check_single_step(run, positions, options)
        _check_seeds(run, options)
        return run
    if options.starts == LAST:
        return run.select(starts == starts[-1])
    if options.starts == JOINED:
        return run.select(_is_in_last_start_with_its_step(positions, starts))
    if _is_interleaved(run, positions):
        return run  # kinds of rows, about which the analysis asks
    raise _question(run, positions, starts, options)


def _positions(run: RunRecord) -> list[tuple[float, float] | None]:
    """Return epoch and step of each row, None without a step. A step may restart in each epoch."""
    steps = run.numbers(metrics.STEP)
    epochs = np.zeros(run.rows)
    key = next((key for key in run.logged if key.lower() in EPOCH_KEYS), "")
    if key and not np.array_equal(run.numbers(key), steps, equal_nan=True):
        logged = run.numbers(key)
        known = np.maximum.accumulate(np.where(np.isfinite(logged), np.arange(run.rows), -1))
        epochs = np.where(known >= 0, logged[known], -np.inf)
    return [
        (epoch, step) if np.isfinite(step) else None
        for epoch, step in zip(epochs.tolist(), steps.tolist(), strict=True)
    ]


def _find_starts(
    run: RunRecord,
    positions: Sequence[tuple[float, float] | None],
    options: ReadingOptions,
    is_header: np.ndarray,
) -> np.ndarray:
    """Return the number of the start of each row, from 0.

    A start begins where the position goes back among the rows of one kind, or where it comes again below a
    header that comes again.
    """
    known = [position for position in positions if position is not None]
    starts = np.zeros(run.rows, np.int64)
    if not is_header.any() and all(one <= other for one, other in itertools.pairwise(known)):
        return starts
    kinds = _kinds(run, options)
    last: dict[Any, tuple[float, float]] = {}
    number = 0
    is_below_header = False
    for row, position in enumerate(positions):
        is_below_header |= bool(is_header[row])
        if position is not None:
            before = last.get(kinds[row])
            if before is not None and (position < before or (is_below_header and position == before)):
                number += 1
                last = {}
            last[kinds[row]] = position
            is_below_header = False
        starts[row] = number
    return starts


def _kinds(run: RunRecord, options: ReadingOptions) -> list[Any]:
    """Return the kind of each row: by the keys that it has, and by the columns that `--where` names.

    A row whose keys are a part of those of another row is of the same kind: a value may be missing.
    """
    conditions = list(options.conditions_on(list(run.logged)))
    columns = {column for _, column, _ in conditions}
    common = {*NO_KIND, *columns, options.step}
    names = [key for key in run.logged if key not in common and key.lower() not in STEP_COLUMNS]
    has = np.zeros((run.rows, max(len(names), 1)), bool)
    for index, name in enumerate(names):
        has[run.logged[name][0], index] = True
    signatures, kind_of_row = np.unique(has, axis=0, return_inverse=True)
    kind_of_row = kind_of_row.reshape(-1)
    kinds = list(range(len(signatures)))
    for one, signature in enumerate(signatures):
        contains = (signatures >= signature).all(axis=1) & signature.any()
        for other in np.flatnonzero(contains):
            merged, kept = kinds[other], kinds[one]
            if merged != kept:
                kinds = [kept if kind == merged else kind for kind in kinds]
    labels = [
        row_labels(run, column) != None if value is None else row_labels(run, column)  # noqa: E711 - by element
        for _, column, value in conditions
    ]
    return [(kinds[kind], *(label[row] for label in labels)) for row, kind in enumerate(kind_of_row)]


def _is_meant(run: RunRecord, options: ReadingOptions) -> np.ndarray:
    """Return for each row whether `--where` leaves it: it has the value, or a key that no such row has."""
    is_meant = np.ones(run.rows, bool)
    for key, column, value in options.conditions_on(list(run.logged)):
        if key or value is None:
            continue
        labels = row_labels(run, column)
        has_value = np.array([label is not None and is_equal(label, value) for label in labels], bool)
        for name, (rows, _) in run.logged.items():
            if name != column and not has_value[rows].any():
                has_value[rows] = True
        is_meant &= has_value
    return is_meant


def is_equal(label: str, value: str) -> bool:
    """Return whether two values are equal as the user writes them: 1 and 1.0 are."""
    return label == value or numeric_sort_key(label) == numeric_sort_key(value)


def _is_in_last_start_with_its_step(
    positions: Sequence[tuple[float, float] | None], starts: np.ndarray
) -> np.ndarray:
    """Return for each row whether no later start begins at its step or before it."""
    firsts: dict[int, tuple[float, float]] = {}
    for start, position in zip(starts.tolist(), positions, strict=True):
        if position is not None:
            firsts[start] = min(position, firsts.get(start, position))
    is_kept = np.ones(len(starts), bool)
    for row, (start, position) in enumerate(zip(starts.tolist(), positions, strict=True)):
        later = [first for number, first in firsts.items() if number > start]
        is_kept[row] = position is None or not later or position < min(later)
    return is_kept


def _is_interleaved(run: RunRecord, positions: Sequence[tuple[float, float] | None]) -> bool:
    """Return whether a column names a kind for each row, so that the steps of each kind go on.

    Each of its values has several rows, and comes again after another value.
    """
    rows = [row for row, position in enumerate(positions) if position is not None]
    for column, (_, values) in run.logged.items():
        if column in NO_KIND or not _may_be_label(values):
            continue
        labels = row_labels(run, column)[rows].tolist()
        last: dict[str, tuple[float, float]] = {}
        goes_on = None not in labels
        for row, label in zip(rows, labels, strict=True):
            position = positions[row]
            goes_on &= label not in last or last[label] < position  # type: ignore[operator]
            last[label] = position  # type: ignore[assignment]
        changes = sum(one != other for one, other in itertools.pairwise(labels))
        if goes_on and len(last) > 1 and changes >= len(last) and min(map(labels.count, last)) > 1:
            return True
    return False


def columns_of_runs(run: RunRecord) -> list[str]:
    """Return the fewest columns by which no step comes twice in a run, empty if none tell its rows apart."""
    steps = {row: position for row, position in enumerate(_positions(run)) if position is not None}
    labels = {
        column: row_labels(run, column)[[*steps]].tolist()
        for column, (rows, values) in run.logged.items()
        if column not in NO_KIND and _may_be_label(values) and {*steps} <= {*rows.tolist()}
    }
    positions = [*steps.values()]
    columns, count = _distinguishing(run, labels, positions)
    return columns if count == len(positions) else []


def _may_be_label(values: np.ndarray) -> bool:
    """Return whether values are texts, truth values or whole numbers."""
    if values.dtype == object:
        return all(isinstance(value, str | bool) for value in values)
    return bool((values == np.round(values)).all())


def _question(
    run: RunRecord,
    positions: Sequence[tuple[float, float] | None],
    starts: np.ndarray,
    options: ReadingOptions,
) -> MissingInput:
    """Return the question what it means that the steps begin again."""
    labels = {
        column: values
        for column in run.logged
        if column not in NO_KIND
        and len({*(values := row_labels(run, column).tolist())}) > 1
        and None not in values
        and len({*zip(starts.tolist(), values, strict=True)}) == len({*starts.tolist()})
    }
    first = next(position for position in positions if position is not None)
    later = [position for position, start in zip(positions, starts, strict=True) if start and position]
    is_shortest = len({*starts.tolist()}) == run.rows
    if not labels or is_shortest:
        return _starts_question(run, starts, is_table_of_results=is_shortest or min(later) < first)
    columns, _ = _distinguishing(run, labels, [None] * run.rows)
    shown = [f"{short(printable(column))} ({_values(labels[column])})" for column in columns]
    verb = "tells" if len(columns) == 1 else "tell"
    run_by = ",".join([*options.run_columns, *columns])
    question = (
        f"runs: {run.paths[0]}: {_begins_again(run, starts)}; {listed(shown)} {verb} the rows apart: add "
        f"--run-by {run_by} to read a run for each, or --where {columns[0]}=VALUE to read the "
        f"rows with one value (if each row is a run: --rows {RUNS}; if it is one run: --starts last for its "
        f"last start, --starts joined if it was resumed; --step {NO_STEP} if the step counts anew in each "
        "epoch)"
    )
    return MissingInput([question], ["--run-by", run_by])


def _distinguishing(
    run: RunRecord, labels: Mapping[str, Sequence[str]], positions: Sequence[Any]
) -> tuple[list[str], int]:
    """Return a few columns that tell apart as many rows as all of them, and how many that are.

    Args:
        labels: The columns that may tell the rows apart, with the label of each row.
        positions: The position of each row, which tells rows apart as well.
    """

    def count(columns: Sequence[str]) -> int:
        return len({*zip(positions, *(labels[column] for column in columns), strict=True)})

    def doubt(column: str) -> tuple[bool, bool, int]:
        """Return how doubtful a column is: a number with a fraction may be a measured value."""
        values = {*labels[column]}
        return any("." in value for value in values), run.logged[column][1].dtype != object, len(values)

    columns = sorted(labels, key=doubt)
    every = count(columns)
    for column in reversed(columns):
        rest = [other for other in columns if other != column]
        if count(rest) == every:
            columns = rest
    return columns, every


def _values(labels: Iterable[str | None]) -> str:
    distinct = sorted({label for label in labels if label is not None}, key=numeric_sort_key)
    return some([short(printable(value), 24) for value in distinct], 4)


def _begins_again(run: RunRecord, starts: np.ndarray) -> str:
    row = int(np.flatnonzero(starts)[0])
    step = run.numbers(metrics.STEP)[row]
    return f"the step begins again at {step:g} in row {row + 1:,}"


def _starts_question(run: RunRecord, starts: np.ndarray, *, is_table_of_results: bool) -> MissingInput:
    columns = some([short(printable(key)) for key in run.logged if key != metrics.STEP], MAX_COLUMNS)
    question = (
        f"starts: {run.paths[0]}: {_begins_again(run, starts)}: add --starts {LAST} to read the last start, "
        f"--starts {JOINED} if the run was resumed (later rows replace those of the same steps), --run-by "
        f"COLUMN if there are several runs (columns: {columns}), --rows {RUNS} if each row is a run, or "
        f"--step {NO_STEP} if the step counts anew in each epoch"
    )
    return MissingInput([question], ["--rows", RUNS] if is_table_of_results else ["--starts", LAST])


def _check_seeds(run: RunRecord, options: ReadingOptions) -> None:
    """Ask about the runs in a table whose column `seed` has several values, in whatever order they stand.

    Raises:
        MissingInput: It is such a table.
    """
    labels = row_labels(run, SEED)
    seeds = {*labels.tolist()} - {None}
    is_chosen = any(column == SEED for _, column, _ in options.conditions_on(list(run.logged)))
    if len(seeds) < 2 or is_chosen or options.starts:
        return
    columns = columns_of_runs(run)
    run_by = ",".join([*options.run_columns, *(columns if SEED in columns else [SEED])])
    question = (
        f"runs: {run.paths[0]} has several seeds ({_values(labels)}): add --run-by {run_by} for a run each, "
        f"or --rows {RUNS} if each row is a run"
    )
    is_table_of_results = len(seeds) == np.count_nonzero(labels != None)  # noqa: E711 - by element
    raise MissingInput([question], ["--rows", RUNS] if is_table_of_results else ["--run-by", run_by])


def _check_single_step(
    run: RunRecord, positions: Sequence[tuple[float, float] | None], options: ReadingOptions
) -> None:
    """Ask what a table of one step is that has several rows of one kind.

    Raises:
        MissingInput: It is such a table.
    """
    known = [row for row, position in enumerate(positions) if position is not None]
    if len(known) < 2 or len({positions[row] for row in known}) > 1:
        return
    kinds = _kinds(run, options)
    if len({kinds[row] for row in known}) == len(known):
        return
    question = (
        f"rows: {run.paths[0]}: all {len(known):,} rows have the same step: add --rows {RUNS} if each row is "
        f"a run, --run-by COLUMN if a column names the runs, or --step {NO_STEP} for one run whose rows are "
        "in order"
    )
    raise MissingInput([question], ["--rows", RUNS])
