"""What was run, on what data and on which machine: the setting that a set of runs has in common, in words."""

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

import pandas as pd

from ampcompare.data import sources
from ampcompare.records import RunRecord
from ampcompare.records.tree import as_text, is_number
from ampcompare.report.runs.table import DEVICE, NO_DEVICE, RUN, device_words
from ampcompare.report.words import printable, short

NO_DATA = "data not recorded"


class Setting(NamedTuple):
    """The common setting of a set of runs: model, data, batch size and length in `words`, the data always;
    where the runs differ, every value is named.
    """

    words: str
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


def describe(rows: pd.DataFrame) -> Setting:
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
    devices = dict.fromkeys(device_words(row) for _, row in rows.iterrows() if row[DEVICE])
    named = {run.option("data.source") for run in runs if isinstance(run.option("data.source"), str)}
    is_synthetic = any(sources.SOURCES[name].is_made_up for name in named & {*sources.SOURCES})
    return Setting(", ".join(filter(None, parts)), tuple(devices) or (NO_DEVICE,), is_synthetic)


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
    name = printable(sources.label_of(named))
    if named in sources.SOURCES and sources.SOURCES[named].needs_root:  # the last part: a report leaves here
        name = f"{name} {_one(run.option('data.root'))}".strip()
    return f"{name} ({limit:,} training images)" if is_number(limit) and abs(limit) < 1e15 else name
