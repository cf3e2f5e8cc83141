"""Questions about runs of other programs: each with its candidates, and with arguments to copy."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from ampcompare.analysis.external.declared_metrics import declared_goal, is_step_column
from ampcompare.analysis.grouping.compared_metric import MINIMIZE, own_goal
from ampcompare.errors import UserError
from ampcompare.runs import RunRecord
from ampcompare.runs.load_options import RUNS
from ampcompare.runs.missing_input import MissingInput
from ampcompare.runs.row_order import columns_of_runs
from ampcompare.runs.values import PERCENT, label_of_value
from ampcompare.runtime import formatting
from ampcompare.runtime.formatting import numeric_sort_key, printable, short, some

# Beginnings of the keys of an evaluation and of the training in the formats of Keras, Lightning, fastai,
# fairseq, Hugging Face, timm and Ultralytics.
EVALUATIONS = re.compile(r"(val|valid|validation|eval|test|metrics)[_./]")
TRAINING = re.compile(r"train[_./]")
LOSS = "loss"  # how every one of them ends the key of a loss
# The formats' own keys that measure no quality.
NO_METRICS = frozenset(
    """
    seed lr learning_rate train/learning_rate base_lr lr-SGD lr-Adam lr-AdamW grad_norm train/grad_norm
    time data_time memory eta eta_seconds total_flos train/total_flos wall train_wall wps ups gnorm
    update num_updates train_num_updates valid_num_updates Created Runtime
    datetime_start datetime_complete duration
    total_steps percentage elapsed_time remaining_time
    time_this_iter_s time_total_s timestamp pid time/iterations time/time_elapsed time/fps
    eval_runtime eval_samples_per_second eval_steps_per_second eval/runtime eval/samples_per_second
    eval/steps_per_second train_runtime train_samples_per_second train_steps_per_second
    """.split()
) | {"Wall time"}  # of TensorBoard's downloads
FP32 = frozenset({"32", "fp32", "float32", "none", "no", "false"})  # what formats call training without AMP
NUMBER_AT_END = re.compile(r"[-_ ]((seed|run|version)[-_ =]?)?\d+$", re.I)
MAX_CANDIDATES, MAX_VALUES, MAX_ARMS = 8, 4, 6


def metric_question(
    runs: Sequence[RunRecord], keys: Sequence[str] | None = None, advice: str = ""
) -> MissingInput:
    """Return the question for the metric, with the arguments for its first candidate.

    Args:
        runs: The runs whose last values are shown.
        keys: The candidates, None for everything that the runs logged.
        advice: What else the user may do, after the question.
    """
    names = _candidates(runs) if keys is None else list(keys)
    texts = [f"{short(printable(key))} ({_last_values(key, runs)})" for key in names]
    logged = some(texts, MAX_CANDIDATES) if texts else "no numbers"
    question = (
        "metric: add --metric KEY:max or KEY:min (for an accuracy also :percent or :fraction); "
        f"logged: {logged}{advice}"
    )
    no_metrics = _no_metrics(runs)
    likely = next((key for key in names if key not in no_metrics), None)
    example = f"{likely}:{_suggested_way(likely, runs)}" if likely else "KEY:max"
    return MissingInput([question], ["--metric", example] if names else [])


def direction_question(key: str, option: str, runs: Sequence[RunRecord]) -> MissingInput:
    """Return the question which direction of a metric is better.

    Args:
        key: The logged key.
        option: What the user gave to `--metric`, or the key.
        runs: Those of which one may declare the direction of the example.
    """
    question = (
        f"direction of {printable(key)}: add --metric {key}:max (higher is better) or --metric {key}:min "
        "(lower is better)"
    )
    return MissingInput([question], ["--metric", f"{option}:{_suggested_way(key, runs)}"])


def _suggested_way(key: str, runs: Sequence[RunRecord]) -> str:
    """Return `min` or `max` for an example to copy. The user decides."""
    goal = declared_goal(key, runs) or own_goal(key)
    return "min" if goal == MINIMIZE or (not goal and key.endswith(LOSS)) else "max"


def _no_metrics(runs: Sequence[RunRecord]) -> set[str]:
    """Return the keys that measure no quality: the formats' own, durations and dates."""
    return {key for run in runs for key, unit in run.units.items() if unit != PERCENT} | NO_METRICS


def _candidates(runs: Sequence[RunRecord]) -> list[str]:
    """Return the keys that were logged as numbers, without steps.

    Keys that begin as the formats' own evaluations come first, those of the training and the formats' own
    times and rates last, and losses after other keys. Of these, keys that more runs have come first, then
    keys that are logged in fewer rows; keys that are logged once come last.
    """
    no_metrics = _no_metrics(runs)
    named = dict.fromkeys(key for run in runs for key in run.logged if not key.startswith("_"))
    columns = {key: [values for run in runs if len(values := run.values(key))] for key in named}

    def rank(key: str) -> tuple[Any, ...]:
        """Return the sort key of a logged key. One that never changes is a result only by its name."""
        count = float(np.median([len(values) for values in columns[key]]))
        split = -1 if EVALUATIONS.match(key) else bool(TRAINING.match(key))
        is_constant = split >= 0 and len({*np.concatenate(columns[key])}) < 2
        runs_with_key = len(columns[key])
        return key in no_metrics, is_constant, split, key.endswith(LOSS), -runs_with_key, count <= 1, count

    return sorted((key for key in columns if columns[key] and not is_step_column(key, runs)), key=rank)


def _last_values(key: str, runs: Sequence[RunRecord]) -> str:
    """Return the range of the runs' last values: `last 0.91`, `last 0.91 to 0.93`."""
    series = [(run.values(key), run.summary_number(key)) for run in runs]
    last = [float(values[-1]) if len(values) else in_summary for values, in_summary in series]
    known = [value for value in last if value is not None]
    if not known:
        return "no value"
    low, high = (formatting.number(end) for end in (min(known), max(known)))
    return f"last {low}" if low == high else f"last {low} to {high}"


def arms_question(runs: Sequence[RunRecord], columns: Mapping[str, Sequence[str]]) -> MissingInput:
    """Return the question for what is compared, with example arguments or example sources with names.

    Raises:
        UserError: There is one run only, and no column that may tell several runs apart.
    """
    differing = differing_settings(columns)
    if len(runs) == 1:
        return _ask_for_runs(runs[0])
    if not differing:
        question = (
            "groups: name each source as NAME=SOURCE, baseline first, or add --group-by KEY --baseline VALUE"
            "; no setting differs between the runs"
        )
        arms = _arms_by_place(runs)
        if arms:
            return MissingInput([question], [], arms)
        # By which each run, or else each folder, is a group.
        pattern = "{arm}" if len({PurePath(run.name).name for run in runs}) > 1 else "*/{arm}/*"
        question = f"{question}; --run-name {pattern!r} takes each name as a group"
        return MissingInput([question], ["--run-name", pattern])
    settings = some(
        [f"{short(printable(key))} ({values_in(columns[key])})" for key in differing], MAX_CANDIDATES
    )
    question = (
        "groups: name each source as NAME=SOURCE, baseline first, or add --group-by KEY --baseline VALUE"
        f"; settings that differ: {settings}"
    )
    values = sorted(dict.fromkeys(columns[differing[0]]), key=is_other_than_fp32)
    return MissingInput([question], ["--group-by", differing[0], "--baseline", values[0]])


def _ask_for_runs(run: RunRecord) -> MissingInput:
    """Return the question which column tells the runs in a table apart, with arguments for the first one.

    Raises:
        UserError: No column tells its rows apart.
    """
    name = printable(run.name)
    texts = [key for key, (_, values) in run.logged.items() if values.dtype == object and len({*values}) > 1]
    telling = columns_of_runs(run)
    columns = [*dict.fromkeys([*telling, *texts])]
    if not columns:
        raise UserError(
            f"groups: {name} is one run, so there is nothing to compare; name a source for each group: "
            "NAME=SOURCE, baseline first"
        )
    labels = {key: [*map(label_of_value, run.logged[key][1])] for key in columns}
    shown = some([f"{short(printable(key))} ({values_in(labels[key])})" for key in columns])
    question = (
        f"groups: {name} is read as one run; add --run-by COLUMN if a column tells runs apart: {shown}"
        f"; --rows {RUNS} if each row is a run; or name a source for each group: NAME=SOURCE, baseline first"
    )
    return MissingInput([question], ["--run-by", ",".join(telling or columns[:1])])


def differing_settings(columns: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the settings that differ.

    Those that differ in every run come last. Of the others, those with a value that names fp32 come first,
    then those with few values.
    """
    counts = {key: len({*column}) for key, column in columns.items()}

    def rank(key: str) -> tuple[Any, ...]:
        is_unlike_precision = all(map(is_other_than_fp32, columns[key]))
        return counts[key] == len(columns[key]) > 2, is_unlike_precision, counts[key], key

    return sorted((key for key, count in counts.items() if count > 1), key=rank)


def values_in(column: Sequence[str]) -> str:
    """Return the values of a setting, such as `32-true and bf16-mixed`, or how many there are."""
    values = sorted({*column}, key=numeric_sort_key)
    if len(values) > MAX_VALUES:
        return f"{len(values)} values"
    return some([short(printable(value), 24) for value in values])


def _arms_by_place(runs: Sequence[RunRecord]) -> list[str]:
    """Return `NAME=FOLDER` or `NAME=FILE` for each folder or file with runs, if there are few.

    Several of them that differ in a number at the end (`fp32_1`, `fp32_2`) are repeats of one arm.
    """
    folders = [path.parent for run in runs for path in run.paths[:1]]
    are_files = len({*folders}) < 2
    places = _folders(folders)
    if are_files:
        places = [(PurePath(run.name).name, [str(path) for path in run.paths]) for run in runs]
    named = [(name, paths) for name, paths in places if {*name}.isdisjoint("=:")]
    if are_files and len(named) != len(folders):
        return []
    prefixes = {name: NUMBER_AT_END.sub("", name) or name for name, _ in named}
    if 2 <= len({*prefixes.values()}) < len(prefixes):
        named = [(prefixes[name], paths) for name, paths in named]
    if not 2 <= len({name for name, _ in named}) <= MAX_ARMS:
        return []
    named.sort(key=lambda place: is_other_than_fp32(place[0]))
    return [f"{name}={path}" for name, paths in named for path in paths]


def _folders(folders: Sequence[Path]) -> list[tuple[str, list[str]]]:
    """Return each folder below the common one, with its name; nothing if a run lies in the common one."""
    top = os.path.commonpath(folders)
    names = dict.fromkeys(folder.relative_to(top).parts[:1] for folder in folders)
    return [] if () in names else [(name, [os.path.join(top, name)]) for (name,) in names]


def is_other_than_fp32(name: str) -> bool:
    """Return False for a name that is likely the baseline; an example to copy names it first."""
    return FP32.isdisjoint(re.split(r"[^a-z0-9]+", name.lower()))
