"""What was run, on what data and on which machine, and in what the runs differ besides the backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from ampcompare.records.tree import flatten
from ampcompare.report.figures import RunFigures, environment_of

# Differences in these are what a comparison is about, or do not touch its figures.
COMPARED_KEYS = frozenset(
    {"backend", "precision", "seed", "wandb", "output_dir", "environment", "resume", "checkpoint"}
)
NOT_SETTINGS = frozenset({"packages"})
MAX_VALUE_CHARS = 60
DATA_NAMES = {"synthetic": "synthetic data", "cifar10": "CIFAR-10"}
NO_DEVICE = "device not recorded"


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


@dataclass(frozen=True)
class Difference:
    """A key on which runs differ, with the labels of the runs that have each value."""

    key: str
    values: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def mixed(self) -> list[str]:
        """Labels under which runs with different values are put together."""
        everywhere = [label for _, labels in self.values for label in labels]
        return [label for label in dict.fromkeys(everywhere) if everywhere.count(label) > 1]


def describe(figures: Sequence[RunFigures]) -> Setting:
    """The setting of the runs. Where they differ, every value is named."""
    datasets = _distinct(_data_of(f) for f in figures)
    devices = _distinct(device_words(f) for f in figures if f.device) or [NO_DEVICE]
    return Setting(
        model=", ".join(_distinct(f.run.option("model.name") for f in figures)),
        data=" and ".join(datasets) or "data not recorded",
        is_synthetic=any(f.run.option("data.source") == "synthetic" for f in figures),
        batch=_listed("batch", (f.run.option("batch_size") for f in figures)),
        epochs=_length(figures),
        devices=tuple(devices),
        is_cpu=any(f.device_type == "cpu" or f.run.option("device") == "cpu" for f in figures),
    )


def device_words(figures: RunFigures) -> str:
    """The device of a run: `NVIDIA A100 (CUDA)`."""
    if not figures.device:
        return NO_DEVICE
    return f"{figures.device} ({figures.device_type.upper()})" if figures.device_type else figures.device


def differences(figures: Sequence[RunFigures]) -> list[Difference]:
    """Config and environment keys on which runs differ although the comparison is not about them.

    Runs whose config or environment is lost are left out; their problems say so.
    """
    config = [(f, _flat_config(f)) for f in figures if f.run.config]
    machine = [(f, _flat_environment(f)) for f in figures if environment_of(f.run)]
    return _differing(config) + _differing(machine)


def _flat_config(figures: RunFigures) -> dict[str, str]:
    flat = flatten(figures.run.config)
    return {key: _shown(value) for key, value in flat if key.partition(".")[0] not in COMPARED_KEYS}


def _flat_environment(figures: RunFigures) -> dict[str, str]:
    flat = flatten(environment_of(figures.run))
    return {f"environment.{k}": _shown(v) for k, v in flat if k.partition(".")[0] not in NOT_SETTINGS}


def _differing(flat: Sequence[tuple[RunFigures, Mapping[str, str]]]) -> list[Difference]:
    found = []
    for key in dict.fromkeys(key for _, settings in flat for key in settings):
        labels: dict[str, list[str]] = {}
        for figures, settings in flat:
            labels.setdefault(settings.get(key, "not set"), []).append(figures.label)
        if len(labels) > 1:
            values = tuple((value, tuple(dict.fromkeys(names))) for value, names in labels.items())
            found.append(Difference(key, values))
    return found


def _shown(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 1] + "…"


def _data_of(figures: RunFigures) -> str:
    source = figures.run.option("data.source")
    if source is None:
        return ""
    name = DATA_NAMES.get(str(source), str(source).replace("_", " "))
    root = figures.run.option("data.root")
    if source == "image_folder" and isinstance(root, str):  # the name alone: a report leaves the machine
        name = f"{name} {PurePath(root.replace(chr(92), '/')).name}"
    limit = figures.run.option("data.train_limit")
    return f"{name} ({limit:,} training images)" if isinstance(limit, int) else name


def _length(figures: Sequence[RunFigures]) -> str:
    steps = [s for f in figures if (s := f.run.option("max_steps")) is not None]
    if steps:
        return _listed("", steps, " steps")
    return _listed("", (f.run.option("epochs") for f in figures), " epochs")


def _listed(before: str, values: Any, after: str = "") -> str:
    words = _distinct(values)
    return f"{before} {', '.join(words)}{after}".strip() if words else ""


def _distinct(values: Any) -> list[str]:
    return list(dict.fromkeys(str(value) for value in values if value not in (None, "")))
