"""Which settings of other people's runs tell them apart: no seeds, names or places, nothing new in each.

Of our own runs each option says what it is to a run (config/options.py). Of others only the name, the values
and how they vary can be asked; whatever is left out for that is named.
"""

from collections.abc import Sequence

from ampcompare import metrics
from ampcompare.config.schema import find_option
from ampcompare.errors import UserError, did_you_mean
from ampcompare.records import RunRecord
from ampcompare.records.sources import ARM
from ampcompare.records.tree import as_text, flatten
from ampcompare.report.foreign import names
from ampcompare.report.foreign.reading import Reading
from ampcompare.report.runs.settings import BACKEND, NOT_SET, settings_of
from ampcompare.report.words import by_size, listed, printable, short, some

JOINT = "+"  # between switches that are compared as one: fp16+bf16
ALL = "all runs"  # the one value where nothing is compared
BASELINE = "none"  # of our own runs
NEITHER = "none"  # the value of switches that are all off
SWITCH = frozenset({"True", "False", NOT_SET})
OFF = frozenset({"False", "none", "null", "off", NOT_SET})
MOST_NAMED, MOST_KEYS = 6, 12
MOMENTS = 1e8  # from which a number may be seconds since 1970
OFFER = (
    "Nothing in their settings tells these runs apart: name them where they come from, as in "
    "`ampcompare report fp32=logs/a bf16=logs/b`."
)
Columns = dict[str, tuple[str, ...]]  # of each setting the values of all runs, as text


def tell_apart(reading: Reading) -> None:
    """What is compared, with what, and which settings and seeds other programs' runs have: by the keys that
    were asked for, or by what is most likely meant.

    Raises UserError for a key that no run has, and where what is to be compared cannot be told.
    """
    columns = _columns(reading.logged.runs)
    (_tell_theirs if reading.is_foreign else _tell_ours)(reading, columns)
    reading.notes += _of_arms(columns)


def _tell_ours(reading: Reading, columns: Columns) -> None:
    """By the backend, or by arms that somebody named. Of loops of somebody's own under our recorder, the
    settings that are none of our options and tell no runs apart are set aside.
    """
    runs, asked = reading.logged.runs, reading.asked
    reading.keys = keys = tuple(asked.group_by or [ARM if ARM in columns else BACKEND])
    reading.baseline = asked.baseline or (
        columns[ARM][0] if keys == (ARM,) and ARM in columns else _of_fp32(runs)
    )
    aside: list[str] = []
    if any(run.is_recorded for run in runs):
        own = (f"{metrics.ENVIRONMENT}.", "recorder", "precision.", BACKEND, ARM, *keys, *asked.ignore)
        free = [k for k in _differing(columns) if find_option(k) is None and not k.startswith(own)]
        seeds = [key for key in free if names.is_seed(key)]
        aside = [*seeds, *_leave_out(reading, columns, BACKEND, [key for key in free if key not in seeds])]
    reading.seeds = [run.option("seed") for run in runs]
    reading.settings = [settings_of(run, aside=aside) for run in reading.runs]
    known = [BACKEND, *dict.fromkeys(key for one in reading.settings for key in one)]
    for option, asked_for in (("--group-by", keys), ("--ignore", asked.ignore)):
        for key in (key for key in asked_for if key not in known):
            hint = did_you_mean(key, known, 0.5) or "name a config key such as backend or batch_size"
            raise UserError(f"{option} {key!r}: no run has this setting; {hint}")


def _of_fp32(runs: Sequence[RunRecord]) -> str:
    """The baseline of our runs and of recorded loops, whose word for fp32 is their own."""
    values = [str(run.option(BACKEND)) for run in runs]
    meant = (str(run.option(BACKEND)) for run in runs if run.option("recorder.backend") == BASELINE)
    return BASELINE if BASELINE in values else next(meant, BASELINE)


def _tell_theirs(reading: Reading, columns: Columns) -> None:
    asked, every = reading.asked, len(reading.runs)
    differing = _differing(columns)
    _check("--group-by", asked.group_by or (), columns, differing)
    _check("--ignore", asked.ignore, columns, differing)
    seeds = [key for key in columns if names.is_seed(key)]
    free = [key for key in differing if key not in seeds]
    is_guess = asked.group_by is None and ARM not in columns
    keys = tuple(asked.group_by or ([ARM] if ARM in columns else [_guess(columns, free)]))
    joint = {key: key.split(JOINT) for key in keys if key not in columns and key != BACKEND}
    single = {part for parts in joint.values() for part in parts}
    columns |= {key: _joined(columns, parts) for key, parts in joint.items()}
    values = [*dict.fromkeys(columns.setdefault(keys[0], (ALL,) * every))]
    reading.doubts += [OFFER] * (is_guess and len(values) == 1)
    rest = [key for key in free if key not in {*single, *keys, *asked.ignore}]
    left_out = _leave_out(reading, columns, keys[0], rest)
    dropped = {*seeds, *single, *left_out} - {*keys, *asked.ignore}
    kept = {key: column for key, column in columns.items() if key not in dropped}
    reading.keys = keys
    told = [{k: v[n] for k, v in kept.items() if v[n] != NOT_SET} for n in range(every)]
    reading.settings = [settings_of(run, own) for run, own in zip(reading.runs, told, strict=True)]
    paired_by = [key for key in seeds if key not in keys]
    paired_by = [key for key in paired_by if key in differing] or paired_by[:1]
    reading.seeds = [_seed_of([columns[key][n] for key in paired_by]) for n in range(every)]
    if values == [ALL]:
        reading.baseline = asked.baseline or NEITHER
        return
    reading.baseline = _baseline_of(keys[0], values, asked.baseline)
    taken = [(f"{keys[0]} as what is compared", "--group-by")] * is_guess
    taken += [(f"{reading.baseline} as the baseline", "--baseline")] * (asked.baseline is None)
    reading.picked[:0] = taken


def _columns(runs: Sequence[RunRecord]) -> Columns:
    configs = [{key: as_text(value) for key, value in flatten(run.config)} for run in runs]
    every = dict.fromkeys(key for one in configs for key in one)
    return {key: tuple(one.get(key, NOT_SET) for one in configs) for key in every}


def _differing(columns: Columns) -> list[str]:
    return [key for key, column in columns.items() if len(set(column)) > 1]


def _of_arms(columns: Columns) -> list[str]:
    """What the configs say of the precision of arms that somebody named, whose names stay."""
    precise = [key for key in columns if key != ARM and names.says_precision(key)]
    if ARM not in columns or not precise:
        return []
    key = min(precise, key=lambda key: (key != BACKEND, len(key)))
    pairs = [*dict.fromkeys(zip(columns[ARM], columns[key], strict=True))][:MOST_KEYS]
    told = [f"{_named(arm)} is {_named(key)} {_named(value)}" for arm, value in pairs]
    return [f"by their own settings {listed(told)}"]


def _named(key: str) -> str:
    return short(printable(key))


def _check(option: str, keys: Sequence[str], columns: Columns, differing: Sequence[str]) -> None:
    """Raise UserError for a key that no run has; it names those that differ."""
    for part in (part for key in keys for part in ([key] if key in columns else key.split(JOINT))):
        if part not in columns:
            near = did_you_mean(part, list(columns)[:5000], 0.5)
            there = f"the runs differ in {some(list(map(_named, differing)), MOST_KEYS) or 'no setting'}"
            raise UserError(f"{option} {part!r}: no run has this setting; {near and near + ' '}{there}")


def _guess(columns: Columns, differing: Sequence[str]) -> str:
    """What the comparison is most likely about: a setting of the precision; else the only one that varies."""
    if precise := [key for key in differing if names.says_precision(key)]:
        return _of_precision(columns, precise)
    free = [key for key in differing if not names.is_label(key)]
    shared = [key for key in free if len(set(columns[key])) < len(columns[key])] or free
    if len(shared) > 1:
        shown = f"{some(list(map(_named, shared)), MOST_KEYS)}: name one of them"
        raise UserError(f"--group-by: what is compared cannot be told; the runs differ in {shown}")
    return shared[0] if shared else BACKEND


def _of_precision(columns: Columns, keys: Sequence[str]) -> str:
    """The key of the precision; several switches (`fp16`, `bf16`) that are thrown apart as one."""
    order = ("precision", "mixed_precision", "amp", "use_amp", "dtype", "backend")
    if full := [key for key in keys if all(_goes_with(columns[other], columns[key]) for other in keys)]:
        return min(full, key=lambda k: (order.index(n) if (n := names.last_part(k)) in order else 9, len(k)))
    switches = [key for key in keys if set(columns[key]) <= SWITCH]
    return JOINT.join(sorted(switches)) if len(switches) > 1 else min(keys, key=len)


def _joined(columns: Columns, keys: Sequence[str]) -> tuple[str, ...]:
    """One value for several keys: of switches those that are on."""
    rows = [*zip(*(columns[key] for key in keys), strict=True)]
    if not all(set(columns[key]) <= {*SWITCH, "null"} for key in keys):
        return tuple(map(JOINT.join, rows))
    on = ([names.last_part(k) for k, v in zip(keys, row, strict=True) if v == "True"] for row in rows)
    return tuple(JOINT.join(words) or NEITHER for words in on)


def _leave_out(reading: Reading, columns: Columns, compared: str, keys: Sequence[str]) -> list[str]:
    """Those of the differing settings that tell no groups apart; the reason of each is said. A number that is
    new in every run may be a setting, but for a moment in seconds; so may a word, where no value of the
    compared key has two runs.
    """
    values, found = columns[compared], dict[str, list[str]]()
    is_repeated = len(set(values)) < len(values)
    is_precise = compared == ARM or any(map(names.says_precision, compared.split(JOINT)))
    for key in keys:
        column, why = columns[key], ""
        is_new = is_repeated and len(set(column)) == len(column)
        if is_new and not all(by_size(value) < (0, MOMENTS) for value in column if value != NOT_SET):
            why = "another value in every run"
        elif names.is_label(key):
            why = "a name or a place of the run"
        elif is_precise and names.says_precision(key) and _goes_with(column, values):
            why = f"it goes with {_named(compared)}"
        if why:
            found.setdefault(why, []).append(key)
    if found:
        said = [f"{some(sorted(map(_named, of)), MOST_NAMED)} ({why})" for why, of in found.items()]
        reading.doubts.append(f"Left out of the grouping: {'; '.join(said)}.")
    return [key for of in found.values() for key in of]


def _seed_of(values: Sequence[str]) -> str | None:
    return ", ".join(short(v) for v in values if v not in (NOT_SET, "null", "None")) or None


def _goes_with(column: Sequence[str], leader: Sequence[str]) -> bool:
    """Whether each value of the leader comes with one value of the other alone."""
    return len({*zip(leader, column, strict=True)}) == len(set(leader))


def _baseline_of(key: str, values: Sequence[str], asked: str | None) -> str:
    """The value that was asked for as the runs have it (`32` for 32.0, `false` for False), else that with
    which the others are most likely compared: the first of the arms that somebody named; full precision, what
    is off, else what does not say half precision, else the value that comes first. Raises UserError.
    """
    if asked is not None:
        wanted = asked.lower()
        alike = [
            v for v in values if by_size(v.lower()) == by_size(wanted) or {v, wanted} == {"null", "none"}
        ]
        if asked in values or alike:
            return asked if asked in values else alike[0]
        near = nearest(asked, values)
        there = some([_named(value) for value in sorted(values, key=by_size)], MOST_KEYS)
        what = f"no run has this value of {key}; {near and near + ' '}there is {there}"
        raise UserError(f"--baseline {asked!r}: {what}")
    if key == ARM:
        return values[0]
    is_precise = any(map(names.says_precision, key.split(JOINT)))
    if full := [v for v in values if (names.is_full_precision(v) if is_precise else v in OFF)]:
        return min(full, key=lambda value: (value in names.UNSAID, value == "0", len(value), value))
    return min(values, key=lambda value: (is_precise and names.is_half_precision(value), by_size(value)))


def nearest(asked: str, values: Sequence[str]) -> str:
    """`did you mean 32-true?` for `fp32`, or `none?` of our own runs; nothing where no value is near."""
    full = [value for value in values if names.is_full_precision(value) and names.is_full_precision(asked)]
    return did_you_mean(asked, values, 0.5) or (f"did you mean {_named(full[0])}?" if full else "")
