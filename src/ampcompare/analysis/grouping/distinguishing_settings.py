"""The settings by which runs are told apart, what a group is called for them, what all have in common."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

import pandas as pd

from ampcompare.analysis.grouping.backend_info import label_of
from ampcompare.analysis.grouping.run_table import DEVICE, NO_DEVICE, RUN, describe_device
from ampcompare.config.canonical import canonical
from ampcompare.config.option_spec import Role
from ampcompare.config.schema import find_option, with_role
from ampcompare.data import sources
from ampcompare.runs import RunRecord
from ampcompare.runs.loader import ARM
from ampcompare.runs.nested import as_text, flatten, is_number
from ampcompare.runtime.formatting import printable, short

BACKEND = "backend"
NOT_SET, NULL = "not set", "null"
# What runs that are pooled may differ in. The environment has settings of its own.
BOOKKEEPING = with_role(Role.BOOKKEEPING, Role.REPEAT) | {"environment", "recorder", "plan"}
# Of the environment what makes a figure another one, by our knowledge: the device and how much of the machine
# a run had, the software that computes, the numerics in effect. Whatever else a record holds of it (clocks
# and temperatures, the card and the host, the commit, what a later version adds) is said where it differs and
# sets nothing apart: with a value of its own in each run no two runs would ever be pooled.
SPLITS = frozenset(
    """
    device_name device_type cpu_count cpu_threads processes
    driver platform python torch cuda cudnn
    tf32 cudnn_benchmark deterministic memory_format execution fused
    model_parameters
    """.split()
)
HASHES = ("_source", "_fingerprint")  # and, by how their keys end, hashes of code and data
# What differs because what is compared does: a backend has other settings, a wider network more parameters.
FOLLOWS: Mapping[str, tuple[str, ...]] = {
    BACKEND: ("precision.", "environment.backend_source"),
    ARM: (BACKEND, "precision.", "environment.backend_source"),
    "model": ("environment.model_",),
    "data": ("environment.data_",),
}
NO_DATA = "data not recorded"
CHANGED_CODE = "changed_code."  # keys of a sweep's runs: the user's files that changed since it began
SUFFIX_CHARS = 32  # of a longer list of what sets a group apart, a number stands in


def settings_of(
    run: RunRecord, told: Mapping[str, str] | None = None, aside: Collection[str] = ()
) -> dict[str, str]:
    """All that must be equal for runs to be pooled, as text: not the seed.

    Of our own runs the `canonical` options, and whatever else their config holds but `aside`; of another
    program's what its reading has `told`. With either the machine and the software.
    """
    environment = run.environment
    facts = {f"environment.{k}": as_text(v) for k, v in flatten(environment) if is_distinguishing(k)}
    if told is not None:
        return facts | dict(told)
    found = {key: _text(value) for key, value in canonical(run.config, environment).items()}
    found |= {key: as_text(value) for key, value in flatten(run.config) if not find_option(key)}
    found |= {BACKEND: label_of(run)}
    passing = BOOKKEEPING | {*aside, *(("device",) if "device_name" in environment else ())}
    own = {k: v for k, v in found.items() if not {k, k.partition(".")[0]} & passing}
    # What came out as the config asked for says nothing more.
    return own | {k: v for k, v in facts.items() if own.get(k.partition(".")[2]) != v}


def _text(value: Any) -> str:
    return (",".join(map(as_text, value)) or NULL) if isinstance(value, list) else as_text(value)


def dependent_prefixes(compared: str) -> tuple[str, ...]:
    """How the keys begin of what differs because this one does."""
    return FOLLOWS.get(compared.partition(".")[0], ())


def is_distinguishing(key: str) -> bool:
    """Whether runs that differ in this key of the environment are never pooled."""
    head = key.partition(".")[0]
    return head in SPLITS or head.endswith(HASHES)


def control_position(run: RunRecord) -> str:
    """Where in its sweep a run of the A/A control stands (`first`, `last`); nothing for any other run."""
    arm = run.option("plan.arm")
    return as_text(arm) if arm or arm == 0 else ""


def differing_keys(settings: Sequence[Mapping[str, str]]) -> list[str]:
    keys = dict.fromkeys(key for one in settings for key in one)
    return [key for key in keys if len({one.get(key) for one in settings}) > 1]


def make_labels(
    value: str,
    settings: Sequence[Mapping[str, str]],
    always: Sequence[str],
    differing: Sequence[str],
    taken: Collection[str],
) -> list[str]:
    """A label for each of the groups of one value, none of them `taken`: the value, the settings that every
    label shows, and in which of the differing ones they do.
    """
    # Another backend has other precision settings; its name says enough.
    told = tuple(begins for key in differing for begins in dependent_prefixes(key))
    others = [key for key in differing if not key.startswith(told) and key not in always]
    code = [key for key in (*always, *others) if key.startswith(CHANGED_CODE)]
    always = [key for key in always if key not in code]
    if code:  # a file's name and date say more than its hash
        others = [key for key in others if key not in code and not key.endswith(HASHES)]
    labels: list[str] = []
    for number, one in enumerate(settings, 1):
        # `tf32 on`, `lr 0.009`, `model resnet50`
        fixed, more = (
            [
                f"{key.removesuffix('.name').rpartition('.')[2]} {format_setting(one.get(key, NOT_SET))}"
                for key in keys
            ]
            for keys in (always, others)
        )
        more = more if len(", ".join(more)) <= SUFFIX_CHARS else [f"setting {number}"]
        fixed += [_code_label(one, key, settings) for key in code]
        name = " · ".join(part for part in (value, ", ".join([*fixed, *more])) if part)
        labels.append(name if name not in {*taken, *labels} else f"{name} ({number})")
    return labels


def _code_label(one: Mapping[str, str], key: str, settings: Sequence[Mapping[str, str]]) -> str:
    """Return which version of a user's file a group ran: `net.py of 2026-11-26 16:21:22`.

    Runs that were made before the first change do not record the file: `net.py before 2026-11-26 16:21:22`.
    """
    if one.get(key, NOT_SET) != NOT_SET:
        return one[key]
    changed = [other[key] for other in settings if other.get(key, NOT_SET) != NOT_SET]
    file, _, first_change = min(changed, default="").partition(" of ")
    return f"{file} before {first_change}" if changed else "before the change"


def format_setting(value: str) -> str:
    """A setting in a label: a number with six digits, 0.009 for 0.009000000000000001; `on` for True; a text
    as it is, cut where it is long.
    """
    try:
        return f"{float(value):.6g}" if "." in value else {"True": "on", "False": "off"}.get(value, value)
    except ValueError:
        return short(value, 24)


class CommonSetting(NamedTuple):
    """The common setting of a set of runs: model, data, batch size and length in `words`, the data always;
    where the runs differ, every value is named.
    """

    text: str
    devices: tuple[str, ...]
    is_synthetic: bool

    @property
    def machine(self) -> str:
        return " · ".join(self.devices)


# Where the setting is said: by us first, then as other programs call it; the first that any run has.
MODELS = ("model.name", "model_name", "model", "arch", "architecture", "model_name_or_path", "_name_or_path")
DATASETS = ("dataset.name", "dataset_name", "dataset", "data.name", "data.dataset", "data")
BATCHES = ("batch_size", "data.batch_size", "train_batch_size", "per_device_train_batch_size")
STEPS = ("max_steps",)
EPOCHS = ("epochs", "max_epochs", "num_train_epochs", "num_epochs", "trainer.max_epochs")


def describe_setting(rows: pd.DataFrame) -> CommonSetting:
    runs: list[RunRecord] = list(rows[RUN])
    model, batch = ", ".join(_said(runs, MODELS)), ", ".join(_said(runs, BATCHES))
    own = [name for name in dict.fromkeys(map(_data_of, runs)) if name]
    data = " and ".join(own or _said(runs, DATASETS)) or NO_DATA
    parts = [f"{model} on {data}" if model else data, f"batch {batch}" if batch else ""]
    for unit, keys in (("step", STEPS), ("epoch", EPOCHS)):
        counts = [n for n in _said(runs, keys) if n.strip("0.").replace(".", "").isdecimal()]  # -1: none
        if counts:
            parts.append(f"{', '.join(counts)} {unit}{'s' * (counts != ['1'])}")
            break
    devices = dict.fromkeys(describe_device(row) for _, row in rows.iterrows() if row[DEVICE])
    named = {run.option("data.source") for run in runs if isinstance(run.option("data.source"), str)}
    is_synthetic = any(sources.SOURCES[name].is_synthetic for name in named & {*sources.SOURCES})
    return CommonSetting(", ".join(filter(None, parts)), tuple(devices) or (NO_DEVICE,), is_synthetic)


def _said(runs: Sequence[RunRecord], keys: Sequence[str]) -> list[str]:
    """The values of the first of the keys that any run has."""
    found = (dict.fromkeys(_one(run.option(key)) for run in runs) for key in keys)
    return next((known for values in found if (known := [value for value in values if value])), [])


def _one(value: Any) -> str:
    """A name or a number, without the folders of a path; nothing for what is neither."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return short(printable(PurePath(as_text(value).replace(chr(92), "/")).name))


def _data_of(run: RunRecord) -> str:
    named, limit = run.option("data.source"), run.option("data.train_limit")
    if not isinstance(named, str) or not named:
        return ""
    name = printable(sources.get_source_label(named))
    if named in sources.SOURCES and sources.SOURCES[named].needs_root:  # the last part: a report leaves here
        name = f"{name} {_one(run.option('data.root'))}".strip()
    return f"{name} ({limit:,} training images)" if is_number(limit) and abs(limit) < 1e15 else name
