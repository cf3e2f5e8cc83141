"""Infer what distinguishes runs: the compared setting, settings that split groups, and seeds.

Runs of a named arm are repeats, whatever else differs between them. Differences are listed, and
`--split-by KEY` splits the runs by them. For our own training, each option declares its role.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ampcompare import metrics
from ampcompare.analysis.external.missing_input import (
    arms_question,
    differing_settings,
    is_other_than_fp32,
    values_in,
)
from ampcompare.analysis.grouping.distinguishing_settings import (
    BACKEND,
    CHANGED_CODE,
    NOT_SET,
    is_distinguishing,
    settings_of,
)
from ampcompare.analysis.options import AnalysisOptions
from ampcompare.config.schema import OPTIONS, TF32, find_option
from ampcompare.errors import UserError, did_you_mean
from ampcompare.runs import RunRecord
from ampcompare.runs.loader import ARM
from ampcompare.runs.missing_input import MissingInput
from ampcompare.runs.nested import as_text, flatten
from ampcompare.runs.values import label_of_value
from ampcompare.runtime.formatting import numeric_sort_key, printable, short, some

BASELINE = "none"  # for our own runs
ENVIRONMENT_PREFIX = f"{metrics.ENVIRONMENT}."
SEED = "seed"  # the key of a seed that needs no option
SEED_IN_SETTINGS_FILE = (
    "a log without a seed gets one from a file hparams.yaml with the line `seed: 3`, in a folder with that "
    "log alone"
)
DEVICE_OPTION = "device"
NULLS = frozenset({"null", "none"})
MAX_KEYS = 8
Columns = dict[str, tuple[str, ...]]  # by setting, the value of each run as text


@dataclass
class Grouping:
    """What distinguishes the runs.

    Attributes:
        keys: The compared key, and other keys in the labels.
        baseline: The value of the compared key that the others are compared with.
        settings: For each run, the settings that must be equal for runs to be pooled.
        seeds: For each run, the seed that pairs it; None if it is not known.
        doubts: Differences that split no groups.
    """

    keys: tuple[str, ...] = ()
    baseline: str = ""
    settings: list[dict[str, str]] = field(default_factory=list)
    seeds: list[Any] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


def group_own(runs: Sequence[RunRecord], options: AnalysisOptions) -> Grouping:
    """Group runs of our own training by the backend, or by named arms.

    For loops under our recorder, only our options split groups. Other differences in their config are listed.

    Raises:
        UserError: An option names a key that no run has.
    """
    columns = _columns([_texts(run.config) for run in runs])
    has_arms = ARM in columns
    keys = (*(options.group_by or [ARM if has_arms else BACKEND]), *options.split_by)
    baseline = options.baseline
    if baseline is None:
        baseline = columns[ARM][0] if keys[0] == ARM and has_arms else _of_fp32(runs)
    seed = _seed_key(columns, options.seed)
    not_splitting: list[str] = []
    if any(run.is_recorded for run in runs):
        splitting = {*keys, *_find_changed_code(columns)}
        not_splitting = _not_splitting(columns, {*splitting, *options.ignore, seed})
    settings = []
    for run in runs:
        own = settings_of(run, ignored=not_splitting)
        own.pop(seed, None)
        settings.append(own)
    _leave_out_assumed(runs, settings)
    known = _columns(settings)
    named = {"--group-by": options.group_by or (), "--split-by": options.split_by, "--ignore": options.ignore}
    for option, named_keys in named.items():
        for key in named_keys:
            if key not in known:
                raise _unknown_setting(option, key, known)
    return Grouping(
        tuple(dict.fromkeys(keys)),
        baseline,
        settings,
        [run.option(seed) for run in runs],
        doubts=_differences(columns, not_splitting),
    )


def _texts(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested settings as text, by dotted key."""
    return {key: as_text(value) for key, value in flatten(tree, prefix)}


def _columns(settings: Sequence[Mapping[str, str]]) -> Columns:
    every = dict.fromkeys(key for own in settings for key in own)
    return {key: tuple(own.get(key, NOT_SET) for own in settings) for key in every}


def _not_splitting(columns: Columns, splitting: Collection[str]) -> list[str]:
    """Return the settings of recorded loops that differ without splitting groups.

    Args:
        columns: All settings.
        splitting: Settings that split groups, or that the user named in an option.
    """
    own_prefixes = (ENVIRONMENT_PREFIX, "recorder", "precision.", BACKEND, ARM)
    others = {
        key: column
        for key, column in columns.items()
        if not find_option(key) and not key.startswith(own_prefixes)
    }
    return [key for key in differing_settings(others) if key not in splitting]


def _of_fp32(runs: Sequence[RunRecord]) -> str:
    """Return the baseline of our runs and of recorded loops, which may have their own name for fp32.

    Without runs in strict fp32, it is fp32 with TF32.
    """
    backends = [str(run.option(BACKEND)) for run in runs]
    if BASELINE in backends:
        return BASELINE
    for run, backend in zip(runs, backends, strict=True):
        if run.option("recorder.backend") == BASELINE:
            return backend
    return TF32 if TF32 in backends else BASELINE


def group_external(runs: Sequence[RunRecord], options: AnalysisOptions) -> Grouping:
    """Group runs of other programs by named arms, or by the settings that the user names.

    Raises:
        MissingInput: Neither arms nor a compared setting is named, or no baseline is named for a setting.
        UserError: An option names a key or value that no run has.
    """
    machine = _columns([_texts(run.machine.facts, ENVIRONMENT_PREFIX) for run in runs])
    columns = _columns([_texts(run.config) for run in runs])
    # The user can name everything in the list of differing settings: facts of the machine, shortened keys.
    named = {*(options.group_by or ()), *options.split_by, *options.ignore, options.seed or SEED}
    columns |= {key: column for key, column in machine.items() if key in named}
    columns = _constant_columns(runs, named) | columns
    _refuse_varying(runs, columns, options)
    group_by = [_find_key("--group-by", key, columns) for key in options.group_by or ()]
    split_by = [_find_key("--split-by", key, columns) for key in options.split_by]
    ignored = [_find_key("--ignore", key, columns) for key in options.ignore if key != DEVICE_OPTION]
    seed = _seed_key(columns, options.seed)
    keys = tuple(dict.fromkeys((*_compared_keys(runs, columns, group_by, seed), *split_by)))
    compared = columns[keys[0]]
    baseline = _baseline(keys[0], list(dict.fromkeys(compared)), options.baseline, runs)

    not_splitting = {*keys, seed, *ignored}
    others = {key: column for key, column in columns.items() if key not in not_splitting}
    splitting = (*keys, *_find_changed_code(others))
    settings = [{key: columns[key][index] for key in splitting} for index in range(len(runs))]
    # None where no column has the seed.
    seeds = [None if value == NOT_SET else value for value in columns.get(seed, (NOT_SET,) * len(runs))]

    distinguishing = {
        key: column
        for key, column in machine.items()
        if is_distinguishing(key.removeprefix(ENVIRONMENT_PREFIX))
    }
    handled = {*splitting, seed, *ignored}
    # The plan changes no result, and the position in a sweep differs in every run.
    pooled = {
        key: column
        for key, column in {**columns, **distinguishing}.items()
        if key not in handled and not key.startswith("plan.")
    }
    doubts = _differences(pooled, differing_settings(pooled))
    return Grouping(keys, baseline, settings, seeds, doubts=doubts)


def _find_changed_code(columns: Columns) -> list[str]:
    """Return the keys by which a sweep of 0.4 marked runs whose user had changed the code in between."""
    return [key for key in columns if key.startswith(CHANGED_CODE)]


def _constant_columns(runs: Sequence[RunRecord], named: Collection[str | None]) -> Columns:
    """Return the logged columns that have one value in every run: texts, and those that an option names.

    A table has a setting as such a column: `optimizer`, or a `seed` that stands in every row.
    """
    constant = {}
    for key in dict.fromkeys(key for run in runs for key in run.logged):
        every = [run.logged[key][1] if key in run.logged else np.empty(0, object) for run in runs]
        if key not in named and any(values.dtype != object for values in every):
            continue
        texts = [dict.fromkeys(map(label_of_value, values)) for values in every]
        if all(len(text) < 2 for text in texts):
            constant[key] = tuple(next(iter(text), NOT_SET) for text in texts)
    return constant


def _refuse_varying(runs: Sequence[RunRecord], columns: Columns, options: AnalysisOptions) -> None:
    """Refuse a logged column as a setting if it has several values in one run.

    Raises:
        UserError: An option names it.
    """
    named = {"--group-by": options.group_by or (), "--split-by": options.split_by, "--seed": (options.seed,)}
    for option, keys in named.items():
        for key in keys:
            varying = [run for run in runs if key in run.logged and key not in columns]
            if key is not None and varying:
                values = values_in([*map(label_of_value, varying[0].logged[key][1])])
                name = printable(varying[0].name)
                raise UserError(f"{option} {key!r}: no setting, its column has {values} in one run ({name})")


def _find_key(option: str, named: str, columns: Columns) -> str:
    """Return the key of the runs that an option names, as it is or as a list of settings shows it.

    Raises:
        UserError: No run has the key. The message has the keys that differ.
    """
    if named in columns:
        return named
    shown = [key for key in columns if short(printable(key)) == named]
    if len(shown) == 1:
        return shown[0]
    raise _unknown_setting(option, named, columns)


def _unknown_setting(option: str, named: str, columns: Columns) -> UserError:
    """Return the error for a setting that no run has, with the settings that differ."""
    hint = did_you_mean(named, list(columns)[:5000], 0.5, end=" ")
    differing = [short(printable(name)) for name in differing_settings(columns)]
    names = some(differing, MAX_KEYS) or "no setting"
    return UserError(f"{option} {named!r}: no run has this setting; {hint}the runs differ in {names}")


def _seed_key(columns: Columns, seed: str | None) -> str:
    """Return the key of the seed.

    Raises:
        UserError: No run has the named key.
    """
    if seed is None:
        return SEED
    try:
        return _find_key("--seed", seed, columns)
    except UserError as unknown:
        raise UserError(f"{unknown}; {SEED_IN_SETTINGS_FILE}") from None


def _compared_keys(
    runs: Sequence[RunRecord], columns: Columns, group_by: Sequence[str], seed: str
) -> tuple[str, ...]:
    """Return what is compared: the named settings, else the arms, else the only setting of a sweep."""
    if group_by:
        return tuple(group_by)
    if ARM in columns:
        return (ARM,)
    swept = [key for key in runs[0].swept if key != seed and key in columns]
    if len(swept) == 1 and all(run.swept == runs[0].swept for run in runs):
        return (swept[0],)
    raise arms_question(runs, {k: v for k, v in columns.items() if k != seed})


def _baseline(key: str, values: Sequence[str], named: str | None, runs: Sequence[RunRecord]) -> str:
    """Return the value of the baseline.

    It is the named value as the runs have it (`32` for 32.0), else the arm of the first named source, else
    the first value of a sweep.

    Raises:
        UserError: No run has the named value.
        MissingInput: Nothing says which value is the baseline.
    """
    if named is not None:
        return _named_baseline(key, values, named)
    is_in_order = key == ARM and not any(run.is_arm_in_name for run in runs)
    if is_in_order or len(values) == 1:
        return values[0]
    swept = [as_text(value) for value in runs[0].swept.get(key, ())]
    if swept and swept[0] in values:
        return swept[0]
    question = f"baseline: add --baseline VALUE, one of the values of {printable(key)}: {values_in(values)}"
    likely = min(values, key=is_other_than_fp32)
    raise MissingInput([question], ["--baseline", likely])


def _named_baseline(key: str, values: Sequence[str], named: str) -> str:
    if named in values:
        return named
    for value in values:
        pair = (value.lower(), named.lower())
        if len({*map(numeric_sort_key, pair)}) == 1 or {*pair} == NULLS:
            return value
    hint = did_you_mean(named, values, 0.5, end=" ")
    known = some([short(printable(value)) for value in sorted(values, key=numeric_sort_key)], MAX_KEYS)
    raise UserError(f"--baseline {named!r}: no run has this value of {key}; {hint}known values: {known}")


def _leave_out_assumed(runs: Sequence[RunRecord], settings: Sequence[dict[str, str]]) -> None:
    """Remove the defaults that a loop of a user does not record, of options that differ between the runs.

    An option that is not recorded counts as its default as long as each other run has the default, too.
    """
    values_of = [{own.get(key) for own in settings} for key in OPTIONS]
    differing = [key for key, values in zip(OPTIONS, values_of, strict=True) if len(values) > 1]
    for run, own in zip(runs, settings, strict=True):
        if not run.is_own_training:
            for key in differing:
                if key != BACKEND and run.option(key) is None:
                    own.pop(key, None)


def _differences(columns: Columns, keys: Sequence[str]) -> list[str]:
    """Return a sentence with the settings that differ between runs that are pooled or compared."""
    shown = [f"{short(printable(key))} ({values_in(columns[key])})" for key in keys]
    if not shown:
        return []
    listing = some(shown, MAX_KEYS)
    return [
        f"Runs that are pooled or compared also differ in {listing}. --split-by KEY makes separate groups."
    ]
