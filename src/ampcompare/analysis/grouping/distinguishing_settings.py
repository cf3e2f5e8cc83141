"""The settings that distinguish runs, the labels of groups, and the setting that all runs share."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

import pandas as pd

from ampcompare import metrics
from ampcompare.analysis.grouping.backend_info import label_of
from ampcompare.analysis.grouping.run_table import DEVICE, NO_DEVICE, RUN, describe_device
from ampcompare.config.compose import KEY_HINTS
from ampcompare.config.removed import had_no_effect
from ampcompare.config.schema import ONE_ULP, OPTIONS, PERTURBATION, find_option
from ampcompare.data import sources
from ampcompare.identity.agreement import REPEAT
from ampcompare.identity.run_identity import (
    DATA,
    ENVIRONMENT,
    RunIdentity,
    role_of,
    value_text,
)
from ampcompare.runs import RunRecord
from ampcompare.runs.loader import ARM
from ampcompare.runs.nested import as_text, flatten, is_number
from ampcompare.runs.table_format import is_number_text
from ampcompare.runtime.formatting import listed, printable, short

BACKEND = "backend"
NOT_SET = "not set"
NO_SETTINGS = ("environment", "recorder")  # groups of a config with no setting of the training
# Settings that depend on the compared one: a wider network, for example, has more parameters.
FOLLOWS: Mapping[str, tuple[str, ...]] = {
    BACKEND: ("precision.", "environment.backend_source", "environment.frozen_weights"),
    ARM: (BACKEND, "precision.", "environment.backend_source", "environment.frozen_weights"),
    "model": ("environment.model_",),
    "data": ("environment.data_",),
}
# What programs of the user's own call the setting that decides the backend, by the last part of the key.
NAMES_OF_BACKEND = ("precision", *KEY_HINTS[BACKEND].split())
NO_DATA = "data not recorded"
CHANGED_CODE = "changed_code."  # prefix of keys for user files that changed during a sweep
BARE_VALUES = frozenset({"true", "false", "on", "off", "yes", "no", "none", "null", "", NOT_SET})
SUFFIX_CHARS = 32  # a longer list of differing settings is replaced by a number


def settings_of(run: RunRecord, ignored: Collection[str] = ()) -> dict[str, str]:
    """Return everything that must be equal for runs to be pooled, as text; not the seed.

    For our own runs these are the canonical options and whatever else their config has. Machine and software
    are always included.

    Args:
        ignored: Keys that may differ.
    """
    environment = run.environment
    # A record of ours may be older than the keys of the reductions.
    defaults = metrics.REDUCTION_DEFAULTS if "tf32" in environment else {}
    recorded = {key: value for key, value in flatten(environment) if is_distinguishing(key)}
    facts = {f"{ENVIRONMENT}{key}": as_text(value) for key, value in {**defaults, **recorded}.items()}
    if as_text(run.option("data.source")) in sources.SOURCES:
        facts.pop(DATA, None)  # the name of built-in data says which they are, and older records have only it
    options = RunIdentity.of_run(run.config, environment).options
    settings = {key: value_text(value) for key, value in options.items()}
    settings |= {
        key: as_text(value)
        for key, value in flatten(run.config)
        if not find_option(key) and not had_no_effect(key, value)
    }
    settings[BACKEND] = label_of(run)
    may_differ = {*NO_SETTINGS, *ignored}
    if "device_name" in environment:
        may_differ.add("device")
    distinguishing = {
        key: value
        for key, value in settings.items()
        if role_of(key) in REPEAT.roles and may_differ.isdisjoint((key, key.partition(".")[0]))
    }
    # An environment value that equals the option adds nothing.
    added = {k: v for k, v in facts.items() if distinguishing.get(k.removeprefix(ENVIRONMENT)) != v}
    return distinguishing | added


def identity_of(run: RunRecord) -> RunIdentity:
    """Return the identity of a run, as far as its record tells it.

    Of the loop of a user or of another program only the recorded options are known.
    """
    identity = RunIdentity.of_run(run.config, run.environment, run.summary)
    if run.is_own_training:
        return identity
    recorded = {key: value for key, value in identity.options.items() if run.option(key) is not None}
    return RunIdentity(recorded, identity.facts, is_complete=False)


def dependent_prefixes(compared: str) -> tuple[str, ...]:
    """Return the prefixes of keys that differ because the compared key differs."""
    if compared.rpartition(".")[2] in NAMES_OF_BACKEND:
        return FOLLOWS[ARM]
    return FOLLOWS.get(compared.partition(".")[0], ())


def is_distinguishing(key: str) -> bool:
    """Return whether runs that differ in this key of the environment are never pooled."""
    return role_of(f"{ENVIRONMENT}{key}") in REPEAT.roles


def control_position(run: RunRecord) -> str:
    """Return the arm of a control run in its sweep, "" for any other run.

    It is `first` or `last` for an A/A control, and `chaos` for a run that began with changed last bits.
    """
    arm = run.option("plan.arm")
    return as_text(arm) if arm or arm == 0 else ""


def is_perturbed(run: RunRecord) -> bool:
    """Return whether the last bits of the initial weights were changed (`training.perturb_weights`)."""
    return as_text(run.option(PERTURBATION, "")) == ONE_ULP


def differing_keys(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the keys whose values differ between the settings, in their order."""
    keys = dict.fromkeys(key for own in settings for key in own)
    return [key for key in keys if len({own.get(key) for own in settings}) > 1]


def make_labels(
    value: str,
    settings: Sequence[Mapping[str, str]],
    always: Sequence[str],
    differing: Sequence[str],
    taken: Collection[str],
) -> list[str]:
    """Return a unique label for each group of one value.

    A label has the value, the settings that every label shows, and the settings that differ.

    Args:
        value: The compared value.
        settings: The settings of each group.
        always: Keys that every label shows.
        differing: Keys that differ between the groups.
        taken: Labels that exist already.
    """
    # The name of the backend implies its precision settings.
    dependent = tuple(begins for key in differing for begins in dependent_prefixes(key))
    others = [key for key in differing if not key.startswith(dependent) and key not in always]
    labels: list[str] = []
    for number, own in enumerate(settings, 1):
        # `tf32 on`, `lr 0.009`, `model resnet50`
        parts = {
            key: f"{short_key(key)} {format_setting(own.get(key, NOT_SET))}" for key in (*always, *others)
        }
        differing_parts = [parts[key] for key in others]
        if len(", ".join(differing_parts)) > SUFFIX_CHARS:
            differing_parts = [f"setting {number}"]
        suffix = ", ".join([*(parts[key] for key in always), *differing_parts])
        name = " · ".join(part for part in (value, suffix) if part)
        labels.append(name if name not in {*taken, *labels} else f"{name} ({number})")
    return labels


def name_of_value(key: str, value: str) -> str:
    """Return a compared value, with its key where the value alone says nothing.

    >>> name_of_value("trainer.amp", "True"), name_of_value("lr", "0.1"), name_of_value("precision", "bf16")
    ('amp True', 'lr 0.1', 'bf16')
    >>> name_of_value("precision", "")
    "precision ''"
    """
    is_bare = is_number_text(value) or value.lower() in BARE_VALUES
    return f"{short_key(key)} {value or repr(value)}" if is_bare else value


def short_key(key: str) -> str:
    """Return the last part of a key; the whole key where the part is another option.

    >>> short_key("optimizer.lr"), short_key("model.name"), short_key("eval.batch_size")
    ('lr', 'model', 'eval.batch_size')
    """
    name = key.removesuffix(".name").rpartition(".")[2]
    return key if name in OPTIONS else name


def format_setting(value: str) -> str:
    """Return a setting as it stands in a label.

    Numbers have six digits (0.009 for 0.009000000000000001), True is `on`, and long texts are cut.
    """
    if "." not in value:
        return {"True": "on", "False": "off"}.get(value, value)
    try:
        return f"{float(value):.6g}"
    except ValueError:
        return short(value, 24)


class CommonSetting(NamedTuple):
    """The setting that a set of runs has in common.

    Attributes:
        text: Model, data, batch size and length in words. If the runs differ, every value is named.
        devices: The devices in words.
        is_synthetic: Whether the data are synthetic.
    """

    text: str
    devices: tuple[str, ...]
    is_synthetic: bool

    @property
    def machine(self) -> str:
        """The devices in one line."""
        return " · ".join(self.devices)


# Keys of the common setting: first ours, then those of other programs. The first that a run has counts.
MODELS = ("model.name", "model_name", "model", "arch", "architecture", "model_name_or_path", "_name_or_path")
DATASETS = ("dataset.name", "dataset_name", "dataset", "data.name", "data.dataset", "data")
BATCHES = ("batch_size", "data.batch_size", "train_batch_size", "per_device_train_batch_size")
STEPS = ("max_steps",)
EPOCHS = ("epochs", "max_epochs", "num_train_epochs", "num_epochs", "trainer.max_epochs")


def describe_setting(rows: pd.DataFrame) -> CommonSetting:
    """Return the setting that the runs of a table have in common."""
    runs: list[RunRecord] = list(rows[RUN])
    data_names = [name for name in dict.fromkeys(map(_data_of, runs)) if name]
    data = " and ".join(data_names or first_values(runs, DATASETS)) or NO_DATA
    model = listed(first_values(runs, MODELS))
    parts = [f"{model} on {data}" if model else data]
    batch = listed(first_values(runs, BATCHES))
    if batch:
        parts.append(f"batch {batch}")
    length = _describe_length(runs)
    if length:
        parts.append(length)
    devices = dict.fromkeys(describe_device(row) for _, row in rows.iterrows() if row[DEVICE])
    return CommonSetting(", ".join(parts), tuple(devices) or (NO_DEVICE,), any(map(_is_synthetic, runs)))


def _describe_length(runs: Sequence[RunRecord]) -> str:
    """Return the length of the training: `90 epochs`, `500 and 1000 steps`; "" if it is not recorded."""
    for unit, keys in (("step", STEPS), ("epoch", EPOCHS)):
        # Trainers write -1 for "no limit".
        counts = [n for n in first_values(runs, keys) if n.strip("0.").replace(".", "").isdecimal()]
        if counts == ["1"]:
            return f"1 {unit}"
        if counts:
            return f"{listed(counts)} {unit}s"
    return ""


def _is_synthetic(run: RunRecord) -> bool:
    source = run.option("data.source")
    return isinstance(source, str) and source in sources.SOURCES and sources.SOURCES[source].is_synthetic


def first_value(run: RunRecord, keys: Sequence[str]) -> Any:
    """Return the value of the first key at which a run has a name, a number or a switch; None without one."""
    values = (run.option(key) for key in keys)
    return next(
        (value for value in values if value != "" and isinstance(value, bool | int | float | str)), None
    )


def first_values(runs: Sequence[RunRecord], keys: Sequence[str]) -> list[str]:
    """Return the distinct names and numbers that the runs have at the first of the keys."""
    texts = dict.fromkeys(_short_value(first_value(run, keys)) for run in runs)
    return [text for text in texts if text]


def _short_value(value: Any) -> str:
    """Return a name or number without the folders of a path, "" for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return short(printable(PurePath(as_text(value).replace(chr(92), "/")).name))


def _data_of(run: RunRecord) -> str:
    """Return the name of a run's data set, "" if it is not recorded."""
    source = run.option("data.source")
    if not isinstance(source, str) or not source:
        return ""
    name = printable(sources.get_source_label(source))
    built_in = sources.SOURCES.get(source)
    # Only the last part of the path, because a report leaves this machine.
    if built_in is not None and built_in.needs_root:
        name = f"{name} {_short_value(run.option('data.root'))}".strip()
    limit = run.option("data.train_limit")
    unit = "samples" if built_in is None else "images"
    return f"{name} ({limit:,} training {unit})" if is_number(limit) and abs(limit) < 1e15 else name
