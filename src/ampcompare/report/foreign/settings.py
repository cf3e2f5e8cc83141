"""Which settings of other people's runs tell them apart: no seeds, names or places, nothing new in each.

Of our own runs each option says what it is to a run (config/options.py). Of others only the name, the values
and how they vary can be asked; whatever is left out for that is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampcompare import metrics
from ampcompare.config.schema import find_option
from ampcompare.errors import UserError, did_you_mean
from ampcompare.records import RunRecord
from ampcompare.records.sources import ARM
from ampcompare.records.tree import as_text, flatten
from ampcompare.report.foreign import names
from ampcompare.report.runs.settings import BACKEND, NOT_SET
from ampcompare.report.words import listed, printable, short, some

JOINT = "+"  # between switches that are compared as one: fp16+bf16
ALL = "all runs"  # the one value where nothing is compared
SWITCH = frozenset({"True", "False", "null", NOT_SET})
OFF = frozenset({"False", "none", "null", "off", NOT_SET})
NEITHER = "none"  # the value of switches that are all off
MOST_NAMED, MOST_KEYS = 6, 12
OFFER = (
    "Nothing in their settings tells these runs apart: name them where they come from, as in "
    "`ampcompare report fp32=logs/a bf16=logs/b`."
)
Columns = Mapping[str, tuple[str, ...]]  # of each setting the values of all runs, as text


@dataclass(frozen=True)
class Told:
    """What tells the runs apart. `settings` and `seeds` are those of each run, in order, None of our own;
    `keys` what is compared and named, by guess or not; `said` and `cautions` are sentences on what was
    found and left out.
    """

    keys: tuple[str, ...]
    settings: list[dict[str, str]] | None
    seeds: list[str | None] | None
    said: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    is_guess: bool = False

    @property
    def values(self) -> list[str]:
        """The values of the compared key, each once, in the order of the runs."""
        return list(dict.fromkeys(one.get(self.keys[0], NOT_SET) for one in self.settings or ()))


def tell_apart(runs: Sequence[RunRecord], asked: Sequence[str] | None, ignored: Sequence[str] = ()) -> Told:
    """The settings of the runs, by the keys that were asked for, or by what is most likely meant.

    Raises UserError for a key that no run has, and where what is to be compared cannot be told.
    """
    columns = _columns(runs)
    differing = _differing(columns)
    seeds = [key for key in columns if _is_seed(key, columns)]
    _check("--group-by", asked or (), columns, differing)
    _check("--ignore", ignored, columns, differing)
    free = [key for key in differing if key not in seeds]
    keys = tuple(asked or ([ARM] if ARM in columns else _guess(columns, free)))
    joint = [key for key in keys if key not in columns and JOINT in key]
    single = {part for key in joint for part in key.split(JOINT)}
    columns |= {key: _joined(columns, key.split(JOINT)) for key in joint}
    paired_by = [key for key in seeds if key not in keys]
    paired_by = [key for key in paired_by if key in differing] or paired_by[:1]
    paired = [_seed_of([columns[key][n] for key in paired_by]) for n in range(len(runs))]
    aside = _aside(columns, keys[0], [k for k in free if k not in {*single, *keys, *ignored}], paired)
    dropped = {*seeds, *single, *(k for group in aside.values() for k in group)} - {*keys, *ignored}
    is_one = keys == (BACKEND,) and BACKEND not in columns  # there is nothing to compare
    kept = ({BACKEND: (ALL,) * len(runs)} if is_one else {}) | {
        k: v for k, v in columns.items() if k not in dropped
    }
    every = [{k: v[n] for k, v in kept.items() if v[n] != NOT_SET} for n in range(len(runs))]
    is_guess = asked is None and ARM not in columns
    offer = (OFFER,) if is_guess and len(set(kept[keys[0]])) == 1 else ()
    return Told(keys, every, paired, _of_arms(columns), (*offer, *_note(aside)), is_guess)


def of_ours(
    runs: Sequence[RunRecord], asked: Sequence[str] | None, ignored: Sequence[str]
) -> tuple[Told, frozenset[str]]:
    """What our own runs are compared by; and, of loops of somebody's own under our recorder, the settings
    that are none of our options and tell no runs apart, with a sentence on them.
    """
    columns = _columns(runs)
    keys = tuple(asked or [ARM if ARM in columns else BACKEND])
    own = (f"{metrics.ENVIRONMENT}.", "recorder", "precision.", BACKEND, ARM, *keys, *ignored)
    theirs = [k for k in _differing(columns) if find_option(k) is None and not k.startswith(own)]
    if not any(run.option("recorder") is not None for run in runs):
        theirs = []
    seeds = [key for key in theirs if _is_seed(key, columns)]
    free = [key for key in theirs if key not in seeds]
    aside = _aside(columns, BACKEND, free, [run.option("seed") for run in runs])
    dropped = frozenset([*seeds, *(key for group in aside.values() for key in group)])
    return Told(keys, None, None, _of_arms(columns), _note(aside)), dropped


def _columns(runs: Sequence[RunRecord]) -> dict[str, tuple[str, ...]]:
    configs = [{key: as_text(value) for key, value in flatten(run.config)} for run in runs]
    every = dict.fromkeys(key for one in configs for key in one)
    return {key: tuple(one.get(key, NOT_SET) for one in configs) for key in every}


def _differing(columns: Columns) -> list[str]:
    return [key for key, column in columns.items() if len(set(column)) > 1]


def _of_arms(columns: Columns) -> tuple[str, ...]:
    """What the configs say of the precision of arms that somebody named, whose names stay."""
    precise = [key for key in columns if key != ARM and names.says_precision(key)]
    if ARM not in columns or not precise:
        return ()
    key = BACKEND if BACKEND in precise else _of_precision(columns, precise)
    values = columns.get(key) or _joined(columns, key.split(JOINT))
    pairs = [*dict.fromkeys(zip(columns[ARM], values, strict=True))][:MOST_KEYS]
    return (
        f"by their own settings {listed([f'{_named(a)} is {_named(key)} {_named(v)}' for a, v in pairs])}",
    )


def _note(aside: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """What is left out and why, as a sentence."""
    said = [f"{some(sorted(map(_named, keys)), MOST_NAMED)} ({why})" for why, keys in aside.items() if keys]
    return (f"Left out of the grouping: {'; '.join(said)}.",) if said else ()


def _named(key: str) -> str:
    return short(printable(key))


def _check(option: str, keys: Sequence[str], columns: Columns, differing: Sequence[str]) -> None:
    """Raise UserError for a key that no run has; it names those that differ."""
    for part in (part for key in keys for part in ([key] if key in columns else key.split(JOINT))):
        if part not in columns:
            below = [key for key in columns if key.startswith(f"{part}.")]
            near = did_you_mean(part, list(columns)[:5000], 0.5)
            there = some([_named(key) for key in below or differing], MOST_KEYS) or "no setting"
            there = f"{'below it are' if below else 'the runs differ in'} {there}"
            raise UserError(f"{option} {part!r}: no run has this setting; {near and near + ' '}{there}")


def _guess(columns: Columns, differing: Sequence[str]) -> tuple[str, ...]:
    """What the comparison is most likely about: a setting of the precision; else the only one that varies."""
    free = [key for key in differing if not _is_place(key, columns[key])]
    if precise := [key for key in free if names.says_precision(key)]:
        return (_of_precision(columns, precise),)
    shared = [key for key in free if len(set(columns[key])) < len(columns[key])] or free
    if len(shared) > 1:
        shown = f"{some([_named(key) for key in shared], MOST_KEYS)}: name one of them"
        raise UserError(f"--group-by: what is compared cannot be told; the runs differ in {shown}")
    return (shared[0] if shared else BACKEND,)


def _of_precision(columns: Columns, keys: Sequence[str]) -> str:
    """The key of the precision; several switches (`fp16`, `bf16`) that are thrown apart as one."""
    order = ("precision", "mixed_precision", "amp", "use_amp", "dtype", "backend")
    if full := [key for key in keys if all(_goes_with(columns[other], columns[key]) for other in keys)]:
        return min(full, key=lambda k: (order.index(n) if (n := names.last_part(k)) in order else 9, len(k)))
    switches = [key for key in keys if set(columns[key]) <= SWITCH - {"null"}]
    return JOINT.join(sorted(switches)) if len(switches) > 1 else min(keys, key=len)


def _joined(columns: Columns, keys: Sequence[str]) -> tuple[str, ...]:
    """One value for several keys: of switches those that are on."""
    rows = [*zip(*(columns[key] for key in keys), strict=True)]
    if not all(set(columns[key]) <= SWITCH for key in keys):
        return tuple(map(JOINT.join, rows))
    on = ([names.last_part(k) for k, v in zip(keys, row, strict=True) if v == "True"] for row in rows)
    return tuple(JOINT.join(words) or NEITHER for words in on)


def _aside(
    columns: Columns, compared: str, keys: Sequence[str], seeds: Sequence[Any]
) -> dict[str, list[str]]:
    """The differing settings that tell no groups apart, by the reason.

    What has another value in every run is no setting of a comparison, but for the numbers that are one by
    their name; where no value of the compared key has two runs, everything has, and only what is a name or a
    place by itself is left out.
    """
    runs = len(seeds)
    values = columns.get(compared, (NOT_SET,) * runs)
    new, place = "another value in every run", "a name or a place of the run"
    follows = f"it goes with {_named(compared)}"
    found: dict[str, list[str]] = {new: [], place: [], follows: []}
    is_precise = compared == ARM or any(map(names.says_precision, compared.split(JOINT)))
    others = [columns[k] for k in keys if not names.label_kind(k) and len(set(columns[k])) < runs]
    alike = [*zip(values, *others, strict=True)]
    for key in keys:
        column = columns[key]
        is_place = _is_place(key, column)
        is_amount = names.says_amount(key) and all(_size(v)[0] == 0 for v in column if v != NOT_SET)
        if len(set(column)) == runs and (is_place or (len(set(values)) < runs and not is_amount)):
            found[new].append(key)
        elif is_place and not _tells(key, column, alike, seeds):
            found[place].append(key)
        elif is_precise and names.says_precision(key) and _goes_with(column, values):
            found[follows].append(key)
    return found


def _is_place(key: str, column: Sequence[str]) -> bool:
    """Whether a setting names a run or a place of its output: by its name, or new values that look so. A name
    that may as well say what was trained needs values that look so, too.
    """
    kind, known = names.label_kind(key), [value for value in column if value != NOT_SET]
    looks_so = all(map(names.looks_like_label, known))
    is_new = len(set(known)) == len(column)
    if set(column) <= SWITCH:
        return False
    return is_new or looks_so if kind == names.EITHER else bool(kind) or (is_new and looks_so)


def _tells(key: str, column: Sequence[str], alike: Sequence[Any], seeds: Sequence[Any]) -> bool:
    """Whether the name of a run is all that says what it trained: runs that are alike otherwise have several,
    each with several seeds (a run that is tried again under its name has its seed). No host or path is.
    """
    looks_so = all(names.looks_like_label(value) for value in column if value != NOT_SET)
    cells: dict[Any, dict[str, set[str]]] = {}
    for number, (value, cell, seed) in enumerate(zip(column, alike, seeds, strict=True)):
        own = f"run {number}" if seed is None else as_text(seed)
        cells.setdefault(cell, {}).setdefault(value, set()).add(own)
    is_repeated = any(len(cell) > 1 and max(map(len, cell.values())) > 1 for cell in cells.values())
    return is_repeated and not looks_so and names.label_kind(key) != names.CIRCUMSTANCE


def _is_seed(key: str, columns: Columns) -> bool:
    """Whether a setting is a seed, by its name and all its values."""
    return names.is_seed(key) and all(map(names.can_be_seed, columns[key]))


def _seed_of(values: Sequence[str]) -> str | None:
    """What a run is paired by; None where it recorded no seed."""
    return ", ".join(short(v) for v in values if v not in (NOT_SET, "null", "None")) or None


def _goes_with(column: Sequence[str], leader: Sequence[str]) -> bool:
    """Whether each value of the leader comes with one value of the other alone."""
    return len({*zip(leader, column, strict=True)}) == len(set(leader))


def guess_baseline(told: Told) -> str:
    """The value that the others are most likely compared with: the first of the arms that somebody named;
    full precision, what is off, else what does not say half precision, else the value that comes first.
    """
    if told.keys[0] == ARM:
        return told.values[0]
    is_precise = any(map(names.says_precision, told.keys[0].split(JOINT)))
    full = [v for v in told.values if (names.is_full_precision(v) if is_precise else v in OFF)]
    if full:
        return min(full, key=lambda value: (value in names.UNSAID, value == "0", len(value), value))
    return min(told.values, key=lambda value: (is_precise and names.is_half_precision(value), _size(value)))


def meant_baseline(asked: str, told: Told) -> str:
    """The value as the runs have it: `32` for 32.0, `false` for False. Raises UserError for none of them."""
    wanted = _size(asked.lower())
    alike = [v for v in told.values if _size(v.lower()) == wanted or {v, asked.lower()} == {"null", "none"}]
    if asked in told.values or alike:
        return asked if asked in told.values else alike[0]
    near = nearest(asked, told.values)
    there = some([_named(value) for value in sorted(told.values, key=_size)], MOST_KEYS)
    what = f"no run has this value of {told.keys[0]}; {near and near + ' '}there is {there}"
    raise UserError(f"--baseline {asked!r}: {what}")


def nearest(asked: str, values: Sequence[str]) -> str:
    """`did you mean 32-true?` for `fp32`, or `none?` of our own runs; nothing where no value is near."""
    full = [value for value in values if names.is_full_precision(value) and names.is_full_precision(asked)]
    return did_you_mean(asked, values, 0.5) or (f"did you mean {_named(full[0])}?" if full else "")


def _size(value: str) -> tuple[int, float, str]:
    """Numbers by their size, before everything else in the order of the alphabet."""
    try:
        return 0, float(value), ""
    except ValueError:
        return 1, 0.0, value
