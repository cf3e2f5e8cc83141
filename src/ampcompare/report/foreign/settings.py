"""Which settings of other people's runs tell them apart: no seeds, names or places, nothing new in each.

Of our own runs each option says what it is to a run (config/options.py). Of others only the name, the values
and how they vary can be asked; whatever is left out for that is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampcompare import metrics
from ampcompare.config.schema import find_option
from ampcompare.errors import UserError, did_you_mean
from ampcompare.records import RunRecord
from ampcompare.records.tree import as_text, flatten
from ampcompare.report.foreign import names
from ampcompare.report.runs.settings import BACKEND, NOT_SET, differing_keys
from ampcompare.report.words import printable, short, some

JOINT = "+"  # between keys that are compared as one: fp16+bf16
ALL = "all runs"  # the one value where nothing is compared
OFF = frozenset({"False", "none", "null", "off", NOT_SET})
SWITCH = frozenset({"True", "False", "null", NOT_SET})
NEITHER = "none"  # the value of such, where all of them are off
MOST_NAMED = 6
MOST_KEYS = 12
Settings = Mapping[str, str]


@dataclass(frozen=True)
class Told:
    """What tells the runs apart. `settings` and `seeds` are those of each run, in order; `keys` what is
    compared and named; `left_out` are sentences on the settings that are left out.
    """

    keys: tuple[str, ...]
    settings: tuple[Settings, ...]
    seeds: tuple[Any, ...]
    left_out: tuple[str, ...] = ()
    is_guess: bool = False


def tell_apart(runs: Sequence[RunRecord], asked: Sequence[str] | None, ignored: Sequence[str] = ()) -> Told:
    """The settings of the runs, by the keys that were asked for, or by what is most likely meant.

    Raises UserError for a key that no run has, and where what is to be compared cannot be told.
    """
    configs = [{key: as_text(value) for key, value in flatten(run.config)} for run in runs]
    differing = differing_keys(configs)
    seeds = [key for key in dict.fromkeys(k for c in configs for k in c) if _is_seed(configs, key)]
    if asked is not None:
        _check("--group-by", asked, configs, differing)
    _check("--ignore", ignored, configs, differing)
    keys = tuple(asked) if asked is not None else _guess(configs, [k for k in differing if k not in seeds])
    settings, single = _joined(configs, keys)
    wanted = {*single, *keys, *ignored}
    free = [key for key in differing if key not in wanted and key not in seeds]
    paired = _seeds(configs, [key for key in seeds if key not in keys])
    aside = _aside(settings, keys[0], free, paired)
    dropped = {*seeds, *single, *(key for group in aside.values() for key in group)} - set(keys)
    kept = [{k: v for k, v in one.items() if k not in dropped or k in ignored} for one in settings]
    if keys == (BACKEND,) and not any(BACKEND in one for one in configs):  # there is nothing to compare
        kept = [{BACKEND: ALL, **one} for one in kept]
    return Told(keys, tuple(kept), paired, _note(aside), asked is None)


def beside_ours(
    runs: Sequence[RunRecord], kept: Sequence[str] = ()
) -> tuple[frozenset[str], tuple[str, ...]]:
    """Of loops of somebody's own under our recorder the settings that are none of our options and tell no
    runs apart, but those of `kept`; and a sentence on them.
    """
    if not any(run.option("recorder") is not None for run in runs):
        return frozenset(), ()
    theirs = [
        {k: as_text(v) for k, v in flatten(run.config) if k == BACKEND or find_option(k) is None}
        for run in runs
    ]
    differing = [key for key in differing_keys(theirs) if key not in (BACKEND, *kept)]
    own = (f"{metrics.ENVIRONMENT}.", "recorder", "precision.")
    seeds = [key for key in differing if _is_seed(theirs, key)]
    free = [key for key in differing if not key.startswith(own) and key not in seeds]
    aside = _aside(theirs, BACKEND, free, [run.option("seed") for run in runs])
    return frozenset([*seeds, *(key for group in aside.values() for key in group)]), _note(aside)


def _note(aside: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """What is left out and why, as a sentence."""
    said = [f"{some(sorted(map(_named, keys)), MOST_NAMED)} ({why})" for why, keys in aside.items() if keys]
    return (f"Left out of the grouping: {'; '.join(said)}.",) if said else ()


def _named(key: str) -> str:
    return short(printable(key))


def _check(option: str, keys: Sequence[str], configs: Sequence[Settings], differing: Sequence[str]) -> None:
    """Raise UserError for a key that no run has; it names those that differ."""
    known = dict.fromkeys(key for one in configs for key in one)
    for key in keys:
        for part in key.split(JOINT) if key not in known else (key,):
            if part in known:
                continue
            near = did_you_mean(part, list(known)[:5000], 0.5)
            shown = [k for k in known if k.startswith(f"{part}.")] or [*differing]
            what = "below it are" if any(k.startswith(f"{part}.") for k in known) else "the runs differ in"
            listed = some([_named(k) for k in shown], MOST_KEYS) or "no setting"
            raise UserError(
                f"{option} {part!r}: no run has this setting; {near and near + ' '}{what} {listed}"
            )


def _guess(configs: Sequence[Settings], differing: Sequence[str]) -> tuple[str, ...]:
    """What the comparison is most likely about: a setting of the precision; else the only one that varies."""
    free = [key for key in differing if not _is_place(key, _column(configs, key))]
    if precise := [key for key in free if names.says_precision(key)]:
        return (_of_precision(configs, precise),)
    counts = {key: len(set(_column(configs, key))) for key in free}
    repeated = [key for key in free if counts[key] < len(configs)]
    if len(repeated) == 1 or (not repeated and len(free) == 1):
        return ((repeated or free)[0],)
    if not free:
        return (BACKEND,)
    shown = some([_named(key) for key in repeated or free], MOST_KEYS)
    raise UserError(
        f"--group-by: what is compared cannot be told; the runs differ in {shown}: name one of them"
    )


def _of_precision(configs: Sequence[Settings], keys: Sequence[str]) -> str:
    """The key of the precision; several switches (`fp16`, `bf16`) that are thrown apart as one."""
    full = [key for key in keys if all(_follows(configs, other, key) for other in keys)]
    if full:
        order = ("precision", "mixed_precision", "amp", "use_amp", "dtype", "backend")
        return min(full, key=lambda k: (order.index(n) if (n := names.last_part(k)) in order else 9, len(k)))
    switches = [key for key in keys if set(_column(configs, key)) <= {"True", "False", NOT_SET}]
    return JOINT.join(sorted(switches)) if len(switches) > 1 else min(keys, key=len)


def _joined(configs: Sequence[Settings], keys: Sequence[str]) -> tuple[list[dict[str, str]], set[str]]:
    """The settings with a value for each joint key, and the keys that went into one."""
    known = {key for one in configs for key in one}
    joint = [key for key in keys if key not in known and JOINT in key]
    found = [dict(one) for one in configs]
    for key in joint:
        inner = key.split(JOINT)
        is_switch = all(set(_column(configs, k)) <= {"True", "False", NOT_SET, "null"} for k in inner)
        for one in found:
            values = [one.get(k, NOT_SET) for k in inner]
            on = [names.last_part(k) for k, v in zip(inner, values, strict=True) if v == "True"]
            one[key] = (JOINT.join(on) or NEITHER) if is_switch else JOINT.join(values)
    return found, {k for key in joint for k in key.split(JOINT)}


def _aside(
    settings: Sequence[Settings], compared: str, keys: Sequence[str], seeds: Sequence[Any]
) -> dict[str, list[str]]:
    """The differing settings that tell no groups apart, by the reason.

    What has another value in every run is no setting of a comparison, but for the numbers that are one by
    their name; where no value of the compared key has two runs, everything has, and only what is a name or a
    place by itself is left out.
    """
    values = [one.get(compared, NOT_SET) for one in settings]
    has_repeats = len(set(values)) < len(values)
    found: dict[str, list[str]] = {"another value in every run": [], "a name or a place of the run": []}
    follows = f"it goes with {_named(compared)}"
    found[follows] = []
    is_precise = any(map(names.says_precision, compared.split(JOINT)))
    others = [k for k in keys if not names.is_label(k) and len(set(_column(settings, k))) < len(settings)]
    alike = [tuple(one.get(k, NOT_SET) for k in (compared, *others)) for one in settings]
    for key in keys:
        column = _column(settings, key)
        is_place = _is_place(key, column)
        is_new = len(set(column)) == len(column)
        if is_new and (is_place or (has_repeats and not (names.says_amount(key) and _are_numbers(column)))):
            found["another value in every run"].append(key)
        elif is_place and not (_may_tell(key, column) and _repeats(column, alike, seeds)):
            found["a name or a place of the run"].append(key)
        elif is_precise and names.says_precision(key) and _follows(settings, key, compared):
            found[follows].append(key)
    return found


def _is_place(key: str, column: Sequence[str]) -> bool:
    """Whether a setting names a run or a place of its output: by its name, or new values that look so. A name
    that may as well say what was trained needs such values too.
    """
    known = [value for value in column if value != NOT_SET]
    if set(column) <= SWITCH:
        return False
    is_new, looks_so = len(set(known)) == len(column), all(map(names.looks_like_label, known))
    if names.may_be_setting(key):
        return is_new or (looks_so and not names.says_weights(key))
    return names.is_label(key) or (is_new and looks_so)


def _may_tell(key: str, column: Sequence[str]) -> bool:
    """Whether the name of a run can be all that says what it trained: no place, and none of its host."""
    known = [value for value in column if value != NOT_SET]
    return not names.of_its_circumstances(key) and not all(map(names.looks_like_label, known))


def _repeats(column: Sequence[str], alike: Sequence[Any], seeds: Sequence[Any]) -> bool:
    """Whether a setting tells runs apart that are alike otherwise, and each value comes with several seeds: a
    run that is tried again under its name has its seed.
    """
    cells: dict[Any, dict[str, set[Any]]] = {}
    for number, (value, cell, seed) in enumerate(zip(column, alike, seeds, strict=True)):
        own = ("run", number) if seed is None else as_text(seed)
        cells.setdefault(cell, {}).setdefault(value, set()).add(own)
    return any(len(cell) > 1 and max(map(len, cell.values())) > 1 for cell in cells.values())


def _are_numbers(column: Sequence[str]) -> bool:
    return all(_by_size(value)[0] == 0 for value in column if value != NOT_SET)


def _is_seed(settings: Sequence[Settings], key: str) -> bool:
    """Whether a setting is a seed, by its name and all its values."""
    return names.is_seed(key) and all(map(names.can_be_seed, _column(settings, key)))


def _follows(settings: Sequence[Settings], key: str, leader: str) -> bool:
    """Whether each value of the leader comes with one value of the key alone."""
    pairs = {(one.get(leader, NOT_SET), one.get(key, NOT_SET)) for one in settings}
    return len(pairs) == len({value for value, _ in pairs})


def _column(settings: Sequence[Settings], key: str) -> list[str]:
    return [one.get(key, NOT_SET) for one in settings]


def _seeds(configs: Sequence[Settings], keys: Sequence[str]) -> tuple[Any, ...]:
    """What each run is paired by: the seeds that vary, or the first there is; None where none is recorded."""
    varying = [key for key in keys if len(set(_column(configs, key))) > 1]
    used = varying or list(keys[:1])
    found = []
    for one in configs:
        values = [value for key in used if (value := one.get(key)) not in (None, "null", "None")]
        found.append(", ".join(short(value) for value in values) if values else None)
    return tuple(found)


def guess_baseline(told: Told) -> str:
    """The value that the others are most likely compared with: full precision, what is off, else what does
    not say half precision, else the value that comes first.
    """
    values = Counter(one.get(told.keys[0], NOT_SET) for one in told.settings)
    is_precise = any(map(names.says_precision, told.keys[0].split(JOINT)))
    full = [v for v in values if (names.is_full_precision(v) if is_precise else v in OFF)]
    if full:
        return min(full, key=lambda value: (value in names.UNSAID, value == "0", len(value), value))
    return min(values, key=lambda value: (is_precise and names.is_half_precision(value), _by_size(value)))


def meant_baseline(asked: str, told: Told) -> str:
    """The value as the runs have it: `32` for 32.0, `false` for False. Raises UserError for none of them."""
    values = list(dict.fromkeys(one.get(told.keys[0], NOT_SET) for one in told.settings))
    for is_same in (str.__eq__, _is_same):
        if found := next((value for value in values if is_same(value, asked)), None):
            return found
    listed = some([_named(value) for value in sorted(values, key=_by_size)], MOST_KEYS)
    near = did_you_mean(asked, values, 0.5)
    what = f"no run has this value of {told.keys[0]}; {near and near + ' '}there is {listed}"
    raise UserError(f"--baseline {asked!r}: {what}")


def _is_same(one: str, other: str) -> bool:
    try:
        return float(one) == float(other)
    except ValueError:
        off = {"none": "null"}
        return off.get(one.lower(), one.lower()) == off.get(other.lower(), other.lower())


def _by_size(value: str) -> tuple[int, float, str]:
    try:
        return 0, float(value), value
    except ValueError:
        return 1, 0.0, value
