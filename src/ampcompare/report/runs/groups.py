"""Which runs are pooled: those that differ in nothing but the seed. All else sets groups apart, by name.

A group is the runs of one value of the compared key (the backend, usually) under one and the same setting.
Two runs of one backend with different batch sizes, or on different machines, are two groups, and their labels
say which is which.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median

import numpy as np

from ampcompare import metrics
from ampcompare.errors import UserError, did_you_mean
from ampcompare.records.tree import lookup
from ampcompare.report.palette import ordered
from ampcompare.report.runs.ending import Outcome
from ampcompare.report.runs.figures import MEANS, MEDIANS, OF_THE_SEED, RunFigures, steady_rows
from ampcompare.report.runs.labels import BACKEND, NOT_SET, differing_keys, names_of, unique
from ampcompare.report.runs.metric import ComparedMetric, unit_of
from ampcompare.report.runs.outcomes import Outcomes
from ampcompare.report.runs.sample import Ignored, countable, lost, sample, seed_key, with_own_times
from ampcompare.report.runs.settings import arm_of, as_recorded_later, follows, pooling_settings
from ampcompare.report.statistics.samples import Estimate, mean, mean_of_seeds

__all__ = ["BACKEND", "Group", "Reached", "again", "check_keys", "differing_keys", "group_runs", "seed_key"]

Pool = tuple[str, bool, tuple[tuple[str, str], ...]]  # value compared, whether of the control, settings
QUANTILES = {"p5": 5, "p25": 25, "p50": 50, "p75": 75, "p95": 95}
AGAIN = "again (A/A)"  # behind the value of the baseline's runs that are there as a control


@dataclass(frozen=True)
class Reached:
    """How many of the counted runs reached the target."""

    runs: int
    of: int

    @property
    def words(self) -> str:
        """`reached by 2 of 3`."""
        return f"reached by {self.runs} of {self.of}"


@dataclass(frozen=True)
class Group:
    """Runs that may be pooled. `counted`: those whose figures count, the finished; where none is, those that
    were stopped or go on, as far as they came. A failed run counts for no figure: it is an outcome.

    `value` is that of the compared key and decides the colour; `label` is unique; `apart` are the settings,
    with their values, in which the group differs from others of the same value. `ignored` are for each run
    its values of the ignored settings, by which it is paired. `is_control`: the baseline once more (A/A).
    """

    label: str
    runs: tuple[RunFigures, ...]
    counted: tuple[RunFigures, ...]
    value: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    apart: tuple[tuple[str, str], ...] = ()
    ignored: tuple[Ignored, ...] = ()
    is_control: bool = False

    @cached_property
    def outcomes(self) -> Outcomes:
        """The runs by how they ended."""
        return Outcomes.of(self.label, self.runs)

    @property
    def is_unfinished(self) -> bool:
        """Whether the figures come from runs that did not finish."""
        return bool(self.counted) and all(r.outcome is not Outcome.FINISHED for r in self.counted)

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

    @property
    def reached(self) -> Reached:
        """How many of the counted runs reached the `Analysis`' target."""
        return Reached(len(self.values("seconds_to_target")), self.n)

    @cached_property
    def means(self) -> dict[str, Estimate | None]:
        """Of each of MEANS the mean with its interval, None where nothing was recorded. Each has an n of its
        own: of seeds or of processes (`sample`), and of those alone that have the figure (`lost`). Times of a
        group of which every run shared its machine are of these."""
        found = {}
        for name in MEANS:
            values = self.sample(name) or self.sample(name, own_times=False)
            unit = "seeds" if name in OF_THE_SEED else "runs"
            found[name] = mean(values, *self._bounds(name, values.values()), unit)
        return found

    def _bounds(self, name: str, values: Collection[float]) -> tuple[float, float]:
        """Between what a figure can lie at all: no throughput is below 0, no share above 1."""
        key = metrics.EVAL_ACCURACY if name == "best_accuracy" else self.runs[0].metric or ""
        if name not in ("quality", "best_accuracy"):
            return 0.0, math.inf
        unit = self.runs[0].unit if name == "quality" else None
        metric = ComparedMetric(key, read_as=unit or unit_of(key, values))
        if metric.is_share:
            return metric.bounds
        return 0.0 if metrics.find(key) and min(values, default=0.0) >= 0 else -math.inf, math.inf

    @cached_property
    def medians(self) -> dict[str, float | None]:
        """Of each of MEDIANS the median over the counted runs, None where nothing was recorded."""
        return {name: median(values) if (values := self.values(name)) else None for name in MEDIANS}

    @cached_property
    def step_times(self) -> dict[str, float]:
        """Quantiles of the `timed` runs' step times (ms, means of log intervals after warm-up), and how many
        `intervals` they are of; empty where none was recorded.
        """
        windows = [f.run.numbers(metrics.STEP_TIME)[steady_rows(f.run)] for f in self.timed]
        values = np.concatenate(windows) if windows else np.empty(0)
        values = values[np.isfinite(values)]
        if not len(values):
            return {}
        found = {name: float(np.percentile(values, q)) for name, q in QUANTILES.items()}
        return {"intervals": len(values), **found}

    def values(self, name: str) -> list[float]:
        """One attribute of RunFigures of the counted runs that have it."""
        return [value for r in self.counted if (value := getattr(r, name)) is not None]

    def sample(self, name: str, factor: float = 1.0, *, own_times: bool = True) -> dict[Hashable, float]:
        """The counted runs' measurements of one attribute of RunFigures, times `factor`, under what they are
        paired by: the seed and the ignored settings' values; of a machine at work each process is one, and
        its number among those of the same seed belongs to the key. Times are those of runs that had their
        machine to themselves; without `own_times` of all.
        """
        runs = with_own_times(self.counted, name) if own_times else self.counted
        return sample(runs, self._ignored_of(runs), name, factor)

    @cached_property
    def timed(self) -> tuple[RunFigures, ...]:
        """The counted runs that had their machine to themselves; all of them where none had."""
        return with_own_times(self.counted, "images_per_second") or self.counted

    @property
    def shares_machine(self) -> bool:
        """Whether every counted run shared its machine: then none of its times is to be compared."""
        return bool(self.counted) and all(run.shares_machine for run in self.counted)

    def lost(self, name: str) -> tuple[tuple[str, str], ...]:
        """Each seed or run that a figure lacks, and why: `("seed 2", "failed: its last loss is NaN")`."""
        return lost(self.runs, self.counted, name)

    def lacking(self, name: str) -> tuple[tuple[str, str], ...]:
        """Of `lost` those whose other figures count."""
        return lost(self.counted, self.counted, name)

    def per_seed(self, name: str, factor: float = 1.0) -> dict[Hashable, float]:
        """One attribute of RunFigures for each seed of the counted runs."""
        found = ((seed_key(r), getattr(r, name)) for r in self.counted)
        return mean_of_seeds((seed, value * factor) for seed, value in found if value is not None)

    def _ignored_of(self, runs: Sequence[RunFigures]) -> list[Ignored]:
        known = {id(run): values for run, values in zip(self.runs, self.ignored, strict=False)}
        return [known.get(id(run), ()) for run in runs]


def group_runs(
    figures: Sequence[RunFigures], keys: Sequence[str] = (BACKEND,), ignored: frozenset[str] = frozenset()
) -> list[Group]:
    """The groups, known backends first. The first of `keys` is compared, all are in the labels.

    A run of the A/A control has a value of its own, `none again (A/A)`, and comes behind the one it repeats.
    """
    settings_of = [pooling_settings(f) for f in figures]
    as_recorded_later(settings_of)
    varying = _varying(settings_of, keys[0], ignored)
    pools: dict[Pool, list[int]] = {}
    for number, every in enumerate(settings_of):
        settings = {k: v for k, v in every.items() if k not in ignored}
        value, is_control = every.get(keys[0], NOT_SET), bool(arm_of(figures[number].run))
        if is_control and keys[0] in settings:
            settings[keys[0]] = again(value)
        pools.setdefault((value, is_control, tuple(sorted(settings.items()))), []).append(number)
    _with_refused(pools, figures)
    groups: list[Group] = []
    for value in ordered(value for value, *_ in pools):
        for control in (False, True):
            which = (value, control)
            alike = [(dict(own), runs) for (*key, own), runs in pools.items() if tuple(key) == which]
            differing = differing_keys([settings for settings, _ in alike])
            shown = again(value) if control else value
            names = names_of(shown, [settings for settings, _ in alike], keys[1:], differing)
            for label, (own, numbers) in zip(unique(names, [g.label for g in groups]), alike, strict=True):
                runs = tuple(figures[n] for n in numbers)
                apart = tuple((key, own.get(key, NOT_SET)) for key in differing)
                unlike = tuple(tuple(settings_of[n].get(key, NOT_SET) for key in varying) for n in numbers)
                groups.append(Group(label, runs, countable(runs), shown, own, apart, unlike, control))
    return groups


def _with_refused(pools: dict[Pool, list[int]], figures: Sequence[RunFigures]) -> None:
    """Put runs that were refused, of which the record has no more than what was asked, to those of the same
    value that say nothing else: they are no setting of their own.
    """
    for pool, numbers in [*pools.items()]:
        if any(figures[n].outcome is not Outcome.REFUSED for n in numbers):
            continue
        config = figures[
            numbers[0]
        ].run.config  # what it lacks has the values of before there was such an option
        asked = {
            key: value for key, value in pool[2] if key != BACKEND and lookup(config, key, pool) is not pool
        }
        for other in pools:
            if other != pool and other[:2] == pool[:2] and {**dict(other[2]), **asked} == dict(other[2]):
                pools[other] += pools.pop(pool)
                break


def again(value: str) -> str:
    """The value of the A/A control that repeats a value."""
    return f"{value} {AGAIN}"


def _varying(
    settings_of: Sequence[Mapping[str, str]], compared: str, ignored: frozenset[str]
) -> tuple[str, ...]:
    """The ignored settings by whose values runs are paired: those that vary among runs of one value. Where
    each value has its own there is nothing alike to pair, and a backend's own settings are like no other's.
    """
    by_value: dict[str, list[Mapping[str, str]]] = {}
    for settings in settings_of:
        by_value.setdefault(settings.get(compared, NOT_SET), []).append(settings)
    varying = {key for alike in by_value.values() for key in differing_keys(alike) if key in ignored}
    return tuple(sorted(k for k in varying if not k.startswith(follows(compared))))


def check_keys(option: str, keys: Sequence[str], figures: Sequence[RunFigures]) -> None:
    """Raise UserError for a key that no run has."""
    known = dict.fromkeys([BACKEND, *(key for f in figures for key in pooling_settings(f))])
    for key in keys:
        if key not in known:
            hint = did_you_mean(key, known, 0.5) or "name a config key such as backend or batch_size"
            raise UserError(f"{option} {key!r}: no run has this setting; {hint}")
