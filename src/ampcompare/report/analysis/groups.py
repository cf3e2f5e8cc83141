"""Which runs are pooled: those that differ in nothing but the seed. All else sets groups apart, by name.

A group is the runs of one value of the compared key (the backend, usually) under one and the same setting.
Two runs of one backend with different batch sizes, or on different machines, are two groups, and their labels
say which is which.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median

import numpy as np

from ampcompare import metrics
from ampcompare.errors import UserError, did_you_mean
from ampcompare.report.analysis.figures import MEANS, MEDIANS, RunFigures, steady_rows
from ampcompare.report.analysis.settings import OF_BACKEND, pooling_settings
from ampcompare.report.analysis.statistics import Estimate, mean, mean_of_seeds
from ampcompare.report.palette import ordered

BACKEND = "backend"
WORDS_THAT_TELL = ("execution", "memory_format", "model.name")
# `fuse` and the optimizer's `fused` are two things.
NAMES = {
    "fuse": "fused operations",
    "optimizer.fused": "fused optimizer",
    "environment.fused": "fused optimizer",
    "environment.backend_source": "source",
    "environment.model_source": "source of the model",
}
QUANTILES = {"p5": 5, "p25": 25, "p50": 50, "p75": 75, "p95": 95}
SUFFIX_CHARS = 24  # of a longer list of what sets a group apart, a letter stands in


@dataclass(frozen=True)
class Group:
    """Runs that may be pooled. `counted`: those whose figures count, the finished, or all if none is.

    `value` is that of the compared key and decides the colour; `label` is unique; `apart` are the settings,
    with their values, in which the group differs from others of the same value.
    """

    label: str
    runs: tuple[RunFigures, ...]
    counted: tuple[RunFigures, ...]
    value: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    apart: tuple[tuple[str, str], ...] = ()

    @property
    def is_unfinished(self) -> bool:
        """Whether the figures come from runs that did not finish."""
        return bool(self.counted) and all(r.run.state != "finished" for r in self.counted)

    @property
    def seeds(self) -> int:
        """How many different seeds the counted runs had."""
        return len({seed_key(r) for r in self.counted})

    @property
    def devices(self) -> frozenset[str]:
        """Names of the devices of the counted runs; an empty name where none was recorded."""
        return frozenset(r.device for r in self.counted)

    @property
    def n(self) -> int:
        """How many runs count."""
        return len(self.counted)

    @cached_property
    def means(self) -> dict[str, Estimate | None]:
        """Of each of MEANS the mean over the seeds with its interval, None where nothing was recorded."""
        return {name: mean(self.per_seed(name)) for name in MEANS}

    @cached_property
    def medians(self) -> dict[str, float | None]:
        """Of each of MEDIANS the median over the counted runs, None where nothing was recorded."""
        return {name: median(values) if (values := self.values(name)) else None for name in MEDIANS}

    @cached_property
    def step_times(self) -> dict[str, float]:
        """Quantiles of the counted runs' step times (ms, means of log intervals after warm-up), and how many
        `intervals` they are of; empty where none was recorded.
        """
        windows = [f.run.numbers(metrics.STEP_TIME)[steady_rows(f.run)] for f in self.counted]
        values = np.concatenate(windows) if windows else np.empty(0)
        values = values[np.isfinite(values)]
        if not len(values):
            return {}
        found = {name: float(np.percentile(values, q)) for name, q in QUANTILES.items()}
        return {"intervals": len(values), **found}

    def values(self, name: str) -> list[float]:
        """One attribute of RunFigures of the counted runs that have it."""
        return [value for r in self.counted if (value := getattr(r, name)) is not None]

    def per_seed(self, name: str, factor: float = 1.0) -> dict[Hashable, float]:
        """One attribute of RunFigures for each seed of the counted runs."""
        found = ((seed_key(r), getattr(r, name)) for r in self.counted)
        return mean_of_seeds((seed, value * factor) for seed, value in found if value is not None)


def seed_key(figures: RunFigures) -> Hashable:
    """What runs are paired by. A run without a recorded seed can be paired with none."""
    return ("no seed", figures.run.id) if figures.seed is None else str(figures.seed)


def group_runs(
    figures: Sequence[RunFigures], keys: Sequence[str] = (BACKEND,), ignored: frozenset[str] = frozenset()
) -> list[Group]:
    """The groups, known backends first. The first of `keys` is compared, all are in the labels."""
    pools: dict[tuple[str, tuple[tuple[str, str], ...]], list[RunFigures]] = {}
    for f in figures:
        every = pooling_settings(f)
        settings = tuple(sorted((k, v) for k, v in every.items() if k not in ignored))
        pools.setdefault((every.get(keys[0], "not set"), settings), []).append(f)
    groups = []
    for value in ordered(value for value, _ in pools):
        alike = [(dict(own), runs) for (v, own), runs in pools.items() if v == value]
        differing = differing_keys([settings for settings, _ in alike])
        names = _names(value, [settings for settings, _ in alike], keys[1:], differing)
        for label, (own, runs) in zip(names, alike, strict=True):
            counted = [f for f in runs if f.run.state == "finished"] or [f for f in runs if f.rows]
            apart = tuple((key, own.get(key, "not set")) for key in differing)
            groups.append(Group(label, tuple(runs), tuple(counted), value, own, apart))
    return groups


def differing_keys(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Keys whose values are not the same in all."""
    keys = dict.fromkeys(key for one in settings for key in one)
    return [key for key in keys if len({one.get(key) for one in settings}) > 1]


def _names(
    value: str, settings: Sequence[Mapping[str, str]], always: Sequence[str], differing: Sequence[str]
) -> list[str]:
    # Another backend has other precision settings; its name says enough.
    telling = [key for key in differing if not (BACKEND in differing and key.startswith(OF_BACKEND))]
    shown = [*always, *(key for key in telling if key not in always)]
    names = []
    for number, one in enumerate(settings):
        parts = [_part(key, one.get(key, "not set")) for key in shown]
        suffix = ", ".join(parts)
        if len(suffix) > SUFFIX_CHARS + sum(len(part) + 2 for part in parts[: len(always)]):
            suffix = ", ".join([*parts[: len(always)], f"setting {number + 1}"])
        names.append(f"{value} · {suffix}" if suffix else value)
    if len(set(names)) < len(names):  # two keys whose last parts are the same
        names = [f"{name} ({number + 1})" for number, name in enumerate(names)]
    return names


def _part(key: str, value: str) -> str:
    """A setting in a label, briefly: `channels_last`, `tf32 on`, `lr 0.009` for 0.009000000000000001."""
    if key in WORDS_THAT_TELL:
        return value
    name = NAMES.get(key, key.rpartition(".")[2])
    if value in ("True", "False"):
        return f"{name} {'on' if value == 'True' else 'off'}"
    try:
        return f"{name} {float(value):.6g}" if "." in value else f"{name} {value}"
    except ValueError:
        return f"{name} {value}"


def check_keys(option: str, keys: Sequence[str], figures: Sequence[RunFigures]) -> None:
    """Raise UserError for a key that no run has."""
    known = dict.fromkeys([BACKEND, *(key for f in figures for key in pooling_settings(f))])
    for key in keys:
        if key not in known:
            hint = did_you_mean(key, known, 0.5) or "name a config key such as backend or batch_size"
            raise UserError(f"{option} {key!r}: no run has this setting; {hint}")
