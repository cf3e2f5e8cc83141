"""What tells runs apart: the compared setting with its baseline, settings that make groups, and seeds.

Runs of one named arm are repeats, whatever else differs between them; that is listed, and `--split-by KEY`
makes groups of it. Of our own training every option says itself what it is to a run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ampcompare import metrics
from ampcompare.analysis.external.questions import MissingInput, arms_question, differing_settings, values_in
from ampcompare.analysis.grouping.distinguishing_settings import (
    BACKEND,
    NOT_SET,
    is_distinguishing,
    settings_of,
)
from ampcompare.config.schema import find_option
from ampcompare.errors import UserError, did_you_mean
from ampcompare.runs import RunRecord
from ampcompare.runs.loader import ARM
from ampcompare.runs.nested import as_text, flatten
from ampcompare.runtime.formatting import numeric_sort_key, printable, short, some

BASELINE = "none"  # of our own runs
SEED = "seed"  # the key of a seed that needs no option
DEVICE_OPTION = "device"
NULLS = frozenset({"null", "none"})
MAX_KEYS = 8
Columns = dict[str, tuple[str, ...]]  # of each setting the values of all runs, as text


@dataclass
class Grouping:
    """What tells the runs apart.

    Attributes:
        keys: The compared key, and those that every label shows.
        baseline: The value of the compared key that the others are compared with.
        settings: Of each run all that must be equal for runs to be pooled.
        seeds: Of each run the seed by which it is paired, None where none is known.
        notes: How the runs were told apart.
        doubts: What differs and makes no groups.
    """

    keys: tuple[str, ...] = ()
    baseline: str = ""
    settings: list[dict[str, str]] = field(default_factory=list)
    seeds: list[Any] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


def group_own(
    runs: Sequence[RunRecord],
    group_by: Sequence[str] | None,
    baseline: str | None,
    split_by: Sequence[str],
    seed: str | None,
    ignore: Sequence[str],
) -> Grouping:
    """Group runs of our training by the backend, or by arms that somebody named.

    The config of loops under our recorder makes no groups but for our options: what differs is listed.
    Raises UserError for a key that no run has.
    """
    columns = _columns(runs)
    keys = (*(group_by or [ARM if ARM in columns else BACKEND]), *split_by)
    if baseline is None:
        baseline = columns[ARM][0] if keys[0] == ARM and ARM in columns else _of_fp32(runs)
    seed = _seed_key(columns, seed)
    aside: list[str] = []
    if any(run.is_recorded for run in runs):
        own = (f"{metrics.ENVIRONMENT}.", "recorder", "precision.", BACKEND, ARM)
        others = [key for key in columns if not (find_option(key) or key.startswith(own))]
        free = {key: columns[key] for key in others}
        aside = [key for key in differing_settings(free) if key not in (*keys, *ignore, seed)]
    settings = [settings_of(run, aside=[*aside, seed]) for run in runs]
    known = [BACKEND, *dict.fromkeys(key for one in settings for key in one)]
    for option, named in (("--group-by", group_by or ()), ("--split-by", split_by), ("--ignore", ignore)):
        for key in (key for key in named if key not in known):
            hint = did_you_mean(key, known, 0.5) or "name a config key such as backend or batch_size"
            raise UserError(f"{option} {key!r}: no run has this setting; {hint}")
    seeds = [run.option(seed) for run in runs]
    doubts = _differences(columns, aside)
    return Grouping(tuple(dict.fromkeys(keys)), baseline, settings, seeds, [], doubts)


def _of_fp32(runs: Sequence[RunRecord]) -> str:
    """Return the baseline of our runs and of recorded loops, whose word for fp32 is their own."""
    values = [str(run.option(BACKEND)) for run in runs]
    meant = (str(run.option(BACKEND)) for run in runs if run.option("recorder.backend") == BASELINE)
    return BASELINE if BASELINE in values else next(meant, BASELINE)


def group_external(
    runs: Sequence[RunRecord],
    group_by: Sequence[str] | None,
    baseline: str | None,
    split_by: Sequence[str],
    seed: str | None,
    ignore: Sequence[str],
) -> Grouping:
    """Group other programs' runs by named arms, or by the settings that the user names.

    Raises:
        MissingInput: Neither names what is compared, or no baseline is named for a setting.
        UserError: A key or value that no run has.
    """
    columns = _columns(runs)
    for option, named in (("--group-by", group_by or ()), ("--split-by", split_by)):
        _check(option, named, columns)
    _check("--ignore", [key for key in ignore if key != DEVICE_OPTION], columns)
    seed = _seed_key(columns, seed)
    keys = _compared_keys(runs, columns, group_by, seed)
    every = tuple(dict.fromkeys((*keys, *split_by)))
    values = [*dict.fromkeys(columns[every[0]])]
    found = Grouping(every, _baseline(every[0], values, baseline, runs))
    found.settings = [{key: columns[key][place] for key in every} for place in range(len(runs))]
    found.seeds = [None if value == NOT_SET else value for value in columns.get(seed, (NOT_SET,) * len(runs))]
    machine = {
        f"{metrics.ENVIRONMENT}.{key}": tuple(as_text(run.machine.facts.get(key, NOT_SET)) for run in runs)
        for key in dict.fromkeys(key for run in runs for key in run.machine.facts if is_distinguishing(key))
    }
    known = {*every, seed, *ignore}
    free = {key: column for key, column in {**columns, **machine}.items() if key not in known}
    found.doubts += _differences(free, differing_settings(free))
    return found


def _columns(runs: Sequence[RunRecord]) -> Columns:
    configs = [{key: as_text(value) for key, value in flatten(run.config)} for run in runs]
    every = dict.fromkeys(key for one in configs for key in one)
    return {key: tuple(one.get(key, NOT_SET) for one in configs) for key in every}


def _check(option: str, keys: Sequence[str], columns: Columns) -> None:
    """Raise UserError for a key that no run has; it names those that differ."""
    for key in (key for key in keys if key not in columns):
        near = did_you_mean(key, list(columns)[:5000], 0.5)
        differing = [short(printable(name)) for name in differing_settings(columns)]
        there = f"the runs differ in {some(differing, MAX_KEYS) or 'no setting'}"
        raise UserError(f"{option} {key!r}: no run has this setting; {near and near + ' '}{there}")


def _seed_key(columns: Columns, seed: str | None) -> str:
    if seed is not None:
        _check("--seed", [seed], columns)
    return seed or SEED


def _compared_keys(
    runs: Sequence[RunRecord], columns: Columns, group_by: Sequence[str] | None, seed: str
) -> tuple[str, ...]:
    """Return what is compared: as named, else the arms, else the one setting that a sweep varies."""
    if group_by:
        return tuple(group_by)
    if ARM in columns:
        return (ARM,)
    swept = [key for key in runs[0].swept if key != seed and key in columns]
    if len(swept) == 1 and all(run.swept == runs[0].swept for run in runs):
        return (swept[0],)
    question, arguments, arms = arms_question(runs, {k: v for k, v in columns.items() if k != seed})
    raise MissingInput([question], arguments, arms)


def _baseline(key: str, values: Sequence[str], named: str | None, runs: Sequence[RunRecord]) -> str:
    """Return the baseline: the named value as the runs have it (`32` for 32.0), else the first of named arms,
    else the first value of a sweep. Raises UserError for a value that no run has, else MissingInput.
    """
    if named is not None:
        alike = [value for value in values if _is_same(value.lower(), named.lower())]
        if named in values or alike:
            return named if named in values else alike[0]
        near = did_you_mean(named, values, 0.5)
        there = some([short(printable(value)) for value in sorted(values, key=numeric_sort_key)], MAX_KEYS)
        what = f"no run has this value of {key}; {near and near + ' '}there is {there}"
        raise UserError(f"--baseline {named!r}: {what}")
    swept = [as_text(value) for value in runs[0].swept.get(key, ())]
    if key == ARM or len(values) == 1:
        return values[0]
    if swept and swept[0] in values:
        return swept[0]
    question = f"the baseline: --baseline VALUE of {printable(key)}, one of {values_in(values)}"
    raise MissingInput([question], ["--baseline", values[0]])


def _is_same(value: str, named: str) -> bool:
    return numeric_sort_key(value) == numeric_sort_key(named) or {value, named} == NULLS


def _differences(columns: Columns, keys: Sequence[str]) -> list[str]:
    """Say in which settings runs differ that are taken together."""
    shown = [f"{short(printable(key))} ({values_in(columns[key])})" for key in keys]
    if not shown:
        return []
    told = some(shown, MAX_KEYS)
    return [f"Runs differ, and are taken together or compared, in {told}: --split-by KEY makes groups of it."]
