"""The settings that distinguish runs, the labels of groups, and the setting that all runs share."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

import pandas as pd

from ampcompare import metrics
from ampcompare.analysis.grouping.backend_info import label_of
from ampcompare.analysis.grouping.run_table import DEVICE, NO_DEVICE, RUN, describe_device
from ampcompare.config.canonical import canonical
from ampcompare.config.option_spec import Role
from ampcompare.config.schema import ONE_ULP, PERTURBATION, find_option, with_role
from ampcompare.data import sources
from ampcompare.runs import RunRecord
from ampcompare.runs.loader import ARM
from ampcompare.runs.nested import as_text, flatten, is_number
from ampcompare.runtime.formatting import listed, printable, short

BACKEND = "backend"
NOT_SET, NULL = "not set", "null"
# Options in which pooled runs may differ. The environment has its own list.
BOOKKEEPING = with_role(Role.BOOKKEEPING, Role.REPEAT) | {"environment", "recorder", "plan", metrics.RUN}
# Keys of the environment that change what is measured: the device and how much of the machine a run had,
# the software that computes, and the numerics in effect. All other keys (clocks and temperatures, card
# and host, commit, keys of later versions) are listed if they differ and split no groups. With a value
# of its own in each run, no two runs would ever be pooled.
SPLITS = frozenset(
    """
    device_name device_type cpu_count cpu_threads processes
    driver platform python torch cuda cudnn
    tf32 cudnn_benchmark deterministic memory_format execution fused
    model_parameters frozen_weights
    """.split()
) | {*metrics.REDUCTION_DEFAULTS}
HASHES = ("_source", "_fingerprint")  # hashes of code and data, by the end of their keys
# Settings that depend on the compared one: a wider network, for example, has more parameters.
FOLLOWS: Mapping[str, tuple[str, ...]] = {
    BACKEND: ("precision.", "environment.backend_source", "environment.frozen_weights"),
    ARM: (BACKEND, "precision.", "environment.backend_source", "environment.frozen_weights"),
    "model": ("environment.model_",),
    "data": ("environment.data_",),
}
NO_DATA = "data not recorded"
CHANGED_CODE = "changed_code."  # prefix of keys for user files that changed during a sweep
SUFFIX_CHARS = 32  # a longer list of differing settings is replaced by a number


def settings_of(
    run: RunRecord, external_settings: Mapping[str, str] | None = None, ignored: Collection[str] = ()
) -> dict[str, str]:
    """Return everything that must be equal for runs to be pooled, as text; not the seed.

    For our own runs these are the canonical options and whatever else their config has. Machine and software
    are always included.

    Args:
        run: The run.
        external_settings: For a run of another program, the settings that its reading found.
        ignored: Keys that may differ.
    """
    environment = run.environment
    facts = {f"environment.{k}": as_text(v) for k, v in flatten(environment) if is_distinguishing(k)}
    if "tf32" in environment:  # a record of ours, perhaps older than these keys
        defaults = metrics.REDUCTION_DEFAULTS.items()
        facts = {f"environment.{key}": as_text(value) for key, value in defaults} | facts
    if external_settings is not None:
        return facts | dict(external_settings)
    settings = {key: _text(value) for key, value in canonical(run.config, environment).items()}
    settings |= {key: as_text(value) for key, value in flatten(run.config) if not find_option(key)}
    settings |= {BACKEND: label_of(run)}
    passing = BOOKKEEPING | {*ignored, *(("device",) if "device_name" in environment else ())}
    distinguishing = {k: v for k, v in settings.items() if not {k, k.partition(".")[0]} & passing}
    # An environment value that equals the option adds nothing.
    return distinguishing | {k: v for k, v in facts.items() if distinguishing.get(k.partition(".")[2]) != v}


def _text(value: Any) -> str:
    return (",".join(map(as_text, value)) or NULL) if isinstance(value, list) else as_text(value)


def dependent_prefixes(compared: str) -> tuple[str, ...]:
    """Return the prefixes of keys that differ because the compared key differs."""
    return FOLLOWS.get(compared.partition(".")[0], ())


def is_distinguishing(key: str) -> bool:
    """Return whether runs that differ in this key of the environment are never pooled."""
    head = key.partition(".")[0]
    return head in SPLITS or head.endswith(HASHES)


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
    code = [key for key in (*always, *others) if key.startswith(CHANGED_CODE)]
    always = [key for key in always if key not in code]
    if code:  # name and date of a file are clearer than its hash
        others = [key for key in others if key not in code and not key.endswith(HASHES)]
    labels: list[str] = []
    for number, own in enumerate(settings, 1):
        # `tf32 on`, `lr 0.009`, `model resnet50`
        always_parts, differing_parts = (
            [
                f"{key.removesuffix('.name').rpartition('.')[2]} {format_setting(own.get(key, NOT_SET))}"
                for key in keys
            ]
            for keys in (always, others)
        )
        differing_parts = (
            differing_parts if len(", ".join(differing_parts)) <= SUFFIX_CHARS else [f"setting {number}"]
        )
        always_parts += [_code_label(own, key, settings) for key in code]
        name = " · ".join(part for part in (value, ", ".join([*always_parts, *differing_parts])) if part)
        labels.append(name if name not in {*taken, *labels} else f"{name} ({number})")
    return labels


def _code_label(own: Mapping[str, str], key: str, settings: Sequence[Mapping[str, str]]) -> str:
    """Return which version of a user's file a group ran: `net.py of 2026-11-26 16:21:22`.

    Runs that were made before the first change do not record the file: `net.py before 2026-11-26 16:21:22`.
    """
    if own.get(key, NOT_SET) != NOT_SET:
        return own[key]
    changed = [other[key] for other in settings if other.get(key, NOT_SET) != NOT_SET]
    file, _, first_change = min(changed, default="").partition(" of ")
    return f"{file} before {first_change}" if changed else "before the change"


def format_setting(value: str) -> str:
    """Return a setting as it stands in a label.

    Numbers have six digits (0.009 for 0.009000000000000001), True is `on`, and long texts are cut.
    """
    try:
        return f"{float(value):.6g}" if "." in value else {"True": "on", "False": "off"}.get(value, value)
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
    model, batch = listed(first_values(runs, MODELS)), listed(first_values(runs, BATCHES))
    data_names = [name for name in dict.fromkeys(map(_data_of, runs)) if name]
    data = " and ".join(data_names or first_values(runs, DATASETS)) or NO_DATA
    parts = [f"{model} on {data}" if model else data, f"batch {batch}" if batch else ""]
    for unit, keys in (("step", STEPS), ("epoch", EPOCHS)):
        # Trainers write -1 for "no limit".
        counts = [n for n in first_values(runs, keys) if n.strip("0.").replace(".", "").isdecimal()]
        if counts:
            parts.append(f"{listed(counts)} {unit}{'s' * (counts != ['1'])}")
            break
    devices = dict.fromkeys(describe_device(row) for _, row in rows.iterrows() if row[DEVICE])
    sources_named = {run.option("data.source") for run in runs if isinstance(run.option("data.source"), str)}
    is_synthetic = any(sources.SOURCES[name].is_synthetic for name in sources_named & {*sources.SOURCES})
    return CommonSetting(", ".join(filter(None, parts)), tuple(devices) or (NO_DEVICE,), is_synthetic)


def first_values(runs: Sequence[RunRecord], keys: Sequence[str]) -> list[str]:
    """Return the distinct values of the first key that any run has."""
    values_by_key = (dict.fromkeys(_short_value(run.option(key)) for run in runs) for key in keys)
    return next((texts for values in values_by_key if (texts := [value for value in values if value])), [])


def _short_value(value: Any) -> str:
    """Return a name or number without the folders of a path, "" for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return short(printable(PurePath(as_text(value).replace(chr(92), "/")).name))


def _data_of(run: RunRecord) -> str:
    """Return the name of a run's data set, "" if it is not recorded."""
    source, limit = run.option("data.source"), run.option("data.train_limit")
    if not isinstance(source, str) or not source:
        return ""
    name = printable(sources.get_source_label(source))
    # Only the last part of the path, because a report leaves this machine.
    if source in sources.SOURCES and sources.SOURCES[source].needs_root:
        name = f"{name} {_short_value(run.option('data.root'))}".strip()
    unit = "images" if source in sources.SOURCES else "samples"
    return f"{name} ({limit:,} training {unit})" if is_number(limit) and abs(limit) < 1e15 else name
