"""What was run, on what data and on which machine, and the settings by which runs are told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from ampcompare.config.canonical import has_no_effect
from ampcompare.config.options import Role, listed
from ampcompare.config.schema import LEAVES, find_option, with_role
from ampcompare.config.trees import written
from ampcompare.data import sources
from ampcompare.metrics import MODEL_PARAMETERS
from ampcompare.records import RunRecord
from ampcompare.records.tree import as_text, flatten, lookup
from ampcompare.report.runs.arithmetic import is_on_cpu
from ampcompare.report.runs.figures import (
    NO_DEVICE,
    RunFigures,
    environment_of,
    label_of,
)
from ampcompare.report.words import printable, short

# What runs that are pooled may differ in. The environment has settings of its own.
BOOKKEEPING = with_role(Role.BOOKKEEPING, Role.REPEAT) | {"environment", "recorder"}
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
# What differs between backends because they are others, and between networks, and data.
OF_BACKEND = ("precision.", "environment.backend_source")
OF_PART: dict[str, tuple[str, ...]] = {"model": ("environment.model_",), "data": ("environment.data_",)}
AUTO = "auto"  # an option that was left to the machine
PARAMETERS = f"environment.{MODEL_PARAMETERS}"

NO_DATA = "data not recorded"


@dataclass(frozen=True)
class Setting:
    """The common setting of a set of runs, in words."""

    model: str
    data: str
    is_synthetic: bool
    batch: str
    epochs: str
    devices: tuple[str, ...]
    is_cpu: bool

    @property
    def words(self) -> str:
        """Model, data, batch size and length in one line; the data always."""
        return " · ".join(part for part in (self.model, self.data, self.batch, self.epochs) if part)

    @property
    def machine(self) -> str:
        """The devices in one line."""
        return " · ".join(self.devices)

    @property
    def whole(self) -> str:
        """What was run and on what, in one line."""
        return " · ".join(part for part in (self.words, self.machine) if part)


def describe(figures: Sequence[RunFigures]) -> Setting:
    """The setting of the runs. Where they differ, every value is named."""
    if figures and all(f.settings is not None for f in figures):
        return _describe_others(figures)
    datasets = _distinct(_data_of(f) for f in figures)
    devices = _distinct(f.device_words for f in figures if f.device) or [NO_DEVICE]
    return Setting(
        model=", ".join(_distinct(f.run.option("model.name") for f in figures)),
        data=" and ".join(datasets) or NO_DATA,
        is_synthetic=any((s := _source_of(f)) and s.is_made_up for f in figures),
        batch=_listed("batch", (f.run.option("batch_size") for f in figures)),
        epochs=_length(figures),
        devices=tuple(devices),
        is_cpu=any(map(is_on_cpu, figures)),
    )


# Where other programs say what they trained, on what, and how long: the first that any run has.
MODELS = ("model.name", "model_name", "model", "arch", "architecture", "model_name_or_path", "_name_or_path")
DATASETS = ("dataset.name", "dataset_name", "dataset", "data.name", "data.dataset", "data")
BATCHES = ("batch_size", "data.batch_size", "train_batch_size", "per_device_train_batch_size")
STEPS, EPOCHS = (
    ("max_steps",),
    ("epochs", "max_epochs", "num_train_epochs", "num_epochs", "trainer.max_epochs"),
)


def _describe_others(figures: Sequence[RunFigures]) -> Setting:
    """The setting of other programs' runs, as far as their config has it under a name that is known."""

    def said(keys: Sequence[str]) -> list[str]:
        found = ([_one(f.run.option(key)) for f in figures] for key in keys)
        return next((list(dict.fromkeys(filter(None, values))) for values in found if any(values)), [])

    steps, epochs = ([v for v in said(keys) if _is_count(v)] for keys in (STEPS, EPOCHS))
    length = _listed("", steps, " steps") or _listed("", epochs, " epoch" if epochs == ["1"] else " epochs")
    return Setting(
        model=", ".join(said(MODELS)),
        data=" and ".join(said(DATASETS)),
        is_synthetic=False,
        batch=_listed("batch", said(BATCHES)),
        epochs=length,
        devices=tuple(_distinct(f.device_words for f in figures if f.device) or [NO_DEVICE]),
        is_cpu=any(map(is_on_cpu, figures)),
    )


def _one(value: Any) -> str:
    """A name or a number, without the folders of a path; nothing for what is neither."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return short(printable(PurePath(as_text(value).replace(chr(92), "/")).name))


def _is_count(text: str) -> bool:
    try:
        return 0 < float(text) < 1e15
    except ValueError:
        return False


def pooling_settings(figures: RunFigures) -> dict[str, str]:
    """All of a run's config and environment that must be equal for runs to be pooled: not the seed.

    What has no effect is left out: the precision group of fp32, the loss scale of a backend without one; and
    `device=auto` where the device itself is known. What was left to the machine (`auto`) counts as what it
    came to there.
    """
    run, environment = figures.run, environment_of(figures.run)
    if figures.settings is not None:
        told = {f"environment.{k}": as_text(v) for k, v in flatten(environment) if sets_apart(k)}
        return told | dict(figures.settings)
    backend = str(run.option("backend"))
    found = {"backend": label_of(run)}
    for key, value in flatten(run.config):
        head = key.partition(".")[0]
        known_better = has_no_effect(key, backend) or (key == "device" and "device_name" in environment)
        known_better |= key in figures.aside
        if not {head, key} & BOOKKEEPING and key != "backend" and not known_better:
            found |= _setting(run, key, value)
    for key, leaf in LEAVES.items():  # what a record lacks has the default
        if not (key in BOOKKEEPING or leaf.is_tree or has_no_effect(key, backend)):
            found.setdefault(key, as_text(leaf.default))
    for key, value in flatten(environment):
        if found.get(key) == AUTO:
            found[key] = as_text(value)
        # What came out as the config asked for says nothing more.
        elif sets_apart(key) and found.get(key) != as_text(value):
            found[f"environment.{key}"] = as_text(value)
    return found


def as_recorded_later(settings_of: Sequence[dict[str, str]]) -> None:
    """Give runs with a network from elsewhere that were recorded before its parameters were counted the count
    of the runs that they are like in everything else, where these have one. In place.
    """
    counts: dict[frozenset[tuple[str, str]], set[str]] = {}
    for one in settings_of:
        if PARAMETERS in one:
            rest = frozenset((k, v) for k, v in one.items() if k != PARAMETERS)
            counts.setdefault(rest, set()).add(one[PARAMETERS])
    for one in settings_of:
        if PARAMETERS not in one and len(found := counts.get(frozenset(one.items()), set())) == 1:
            one[PARAMETERS] = min(found)


def follows(compared: str) -> tuple[str, ...]:
    """How the keys begin of what differs because this one does: a network of another width has another number
    of parameters.
    """
    return OF_BACKEND if compared == "backend" else OF_PART.get(compared.partition(".")[0], ())


def sets_apart(key: str) -> bool:
    """Whether runs that differ in this key of the environment are never pooled."""
    head = key.partition(".")[0]
    return head in SPLITS or head.endswith(HASHES)


def _setting(run: RunRecord, key: str, value: Any) -> dict[str, str]:
    """A key of the config with its value in words; of a free tree one that keeps the type, of an empty one
    nothing, as of runs from before there were any.
    """
    option = find_option(key)
    if key in LEAVES and LEAVES[key].meta["names"]:
        return {key: _names(run.option(key))}
    if not option or not option[0].is_tree:
        return {key: as_text(_as_null(run, key))}
    head, _, rest = key.partition(".")
    if isinstance(inner := run.config.get(head), Mapping):
        value = lookup(inner, rest, value)  # rather than what a sweep calls it: `"1e-5"` is 1e-05 in the tree
    if key == option[0].key and value in ({}, None):
        return {}
    return {key: written(value) if isinstance(value, str) else as_text(value)}


def _names(value: Any) -> str:
    """Names that go in any order, as a list or as a sweep has them: a text with commas."""
    try:
        return ",".join(sorted(listed(value) or ())) or as_text(None)
    except ValueError:  # a record may hold anything
        return as_text(value)


def _as_null(run: RunRecord, key: str) -> Any:
    """The value of an option; null where it says no more than null would have."""
    value, leaf = run.option(key), LEAVES.get(key)
    said = leaf.meta["null_is"] if leaf else None
    return None if said and value == said(run.option) else value


def arm_of(run: RunRecord) -> str:
    """Where in its sweep a run of the A/A control stands (`first`, `last`); nothing for any other run."""
    arm = run.option("plan.arm")
    return as_text(arm) if arm or arm == 0 else ""


def _source_of(figures: RunFigures) -> sources.Source | None:
    """None for a run that recorded none, or one that this installation lacks."""
    return sources.SOURCES.get(as_text(figures.run.option("data.source")))


def _data_of(figures: RunFigures) -> str:
    if (recorded := figures.run.option("data.source")) is None:
        return ""
    name, source = sources.label_of(as_text(recorded)), _source_of(figures)
    root = figures.run.option("data.root")
    if source and source.needs_root and isinstance(root, str):  # the name alone: a report leaves the machine
        name = f"{name} {PurePath(root.replace(chr(92), '/')).name}"
    limit = figures.run.option("data.train_limit")
    is_count = isinstance(limit, int) and not isinstance(limit, bool) and abs(limit) < 1e15
    return f"{name} ({limit:,} training images)" if is_count else name


def _length(figures: Sequence[RunFigures]) -> str:
    if steps := [s for f in figures if (s := f.run.option("max_steps")) is not None]:
        return _listed("", steps, " steps")
    epochs = _distinct(f.run.option("epochs") for f in figures)
    return _listed("", epochs, " epoch" if epochs == ["1"] else " epochs")


def _listed(before: str, values: Any, after: str = "") -> str:
    words = _distinct(values)
    return f"{before} {', '.join(words)}{after}".strip() if words else ""


def _distinct(values: Any) -> list[str]:
    return list(dict.fromkeys(as_text(value) for value in values if value is not None and value != ""))
