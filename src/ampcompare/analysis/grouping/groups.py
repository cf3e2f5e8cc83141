"""Pool runs that differ only in the seed. Every other difference splits groups.

A group has the runs of one value of the compared key (usually the backend) under one setting. Two runs of one
backend with different batch sizes, or on different machines, are in two groups, and their labels name the
difference.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from ampcompare.analysis.grouping import run_table
from ampcompare.analysis.grouping.backend_info import FP32, display_name, order_backends
from ampcompare.analysis.grouping.compared_metric import ComparedMetric
from ampcompare.analysis.grouping.distinguishing_settings import (
    BACKEND,
    NOT_SET,
    control_position,
    differing_keys,
    identity_of,
    is_perturbed,
    make_labels,
    name_of_value,
)
from ampcompare.analysis.grouping.run_metrics import (
    METRICS_BY_COLUMN,
    RUN_METRICS,
    SCORE,
    RunMetric,
)
from ampcompare.analysis.grouping.run_table import (
    OUTCOME,
    PROCESS,
    REFUSED,
    RUN,
    SEED,
    SETTINGS,
    is_machine_shared,
)
from ampcompare.analysis.statistics.estimate import Estimate
from ampcompare.analysis.statistics.mean_difference import estimate_mean
from ampcompare.analysis.statistics.multiplicity import Proportion, estimate_proportion
from ampcompare.config.schema import OPTIONS, PERTURBATION
from ampcompare.identity.run_identity import RunIdentity
from ampcompare.precision.registry import PLAIN
from ampcompare.runs import RunRecord
from ampcompare.runs.nested import as_text
from ampcompare.runs.run_state import RunState
from ampcompare.runtime.formatting import plural

CHAOS_ARM = "chaos"  # of a sweep, as `control_position` returns it
UNPERTURBED = as_text(OPTIONS[PERTURBATION].default)
Pool = tuple[tuple[str, str], ...]  # the settings that all runs share, sorted


class Kind(Enum):
    """What a group is trained for.

    Attributes:
        ARM: A value that is compared, or the baseline.
        AA: An A/A control: the baseline once more.
        CHAOS: The baseline once more, with changed last bits of its initial weights (`chaos_control`).
    """

    ARM = "arm"
    AA = "A/A control"
    CHAOS = "chaos control"

    def name_of(self, value: str) -> str:
        """Return the name of a group of this kind, as files have it.

        >>> Kind.ARM.name_of("none"), Kind.AA.name_of("none"), Kind.CHAOS.name_of("none")
        ('none', 'none again (A/A)', 'none again (last bits changed)')
        """
        if self is Kind.AA:
            return f"{value} again (A/A)"
        if self is Kind.CHAOS:
            return f"{value} again (last bits changed)"
        return value

    def display_name_of(self, backend: str) -> str:
        """Return the name of a group of this kind, as people read it.

        >>> Kind.ARM.display_name_of("none"), Kind.AA.display_name_of("none")
        ('fp32 (none)', 'fp32 (none), A/A control')
        >>> Kind.CHAOS.display_name_of("none"), Kind.CHAOS.display_name_of("bf16")
        ('fp32 again, last bits changed', 'bf16 again, last bits changed')
        """
        if self is Kind.AA:
            return f"{display_name(backend)}, A/A control"
        if self is Kind.CHAOS:
            return f"{FP32 if backend == PLAIN else backend} again, last bits changed"
        return display_name(backend)


@dataclass(frozen=True)
class Outcomes:
    """The number of runs by outcome. A failed run is an outcome of its setting that no mean may hide."""

    finished: int = 0
    failed: int = 0
    stopped: int = 0
    preempted: int = 0
    running: int = 0
    queued: int = 0
    refused: int = 0

    @property
    def ended(self) -> int:
        """Number of runs that finished or failed."""
        return self.finished + self.failed

    @property
    def failures(self) -> Proportion | None:
        """The proportion of failed runs among those that ended, with its exact interval; None if none did."""
        return estimate_proportion(self.failed, self.ended) if self.ended else None

    @property
    def text(self) -> str:
        """The counts in words: `5 of 5 runs`, `3 of 6 runs, 1 stopped, 2 running`."""
        others = [f"{n} {word}" for word, n in vars(self).items() if n and word != "finished"]
        return ", ".join([f"{self.finished} of {plural(sum(vars(self).values()), 'run')}", *others])


@dataclass(eq=False)
class Group:
    """Runs that may be pooled.

    Attributes:
        label: The unique label, as files have it.
        display_name: The label as people read it: `fp32 (none)` for the backend `none`.
        all_rows: All rows of the table of runs that belong to the group.
        value: The name of the group without settings: the value of the compared key, or the name of a
            control, such as `none again (A/A)`.
        kind: Whether the group is compared or is a control of the baseline.
        base_value: The value of the compared key; for a control, that of the baseline which it repeats. It
            decides the colour.
        settings: The settings that all runs share.
        distinguishing_settings: The settings, with their values, that differ from other groups of the same
            value.
        bench_estimates: Estimates from a benchmark that replace those of the runs, by column.
        outcomes: How the runs ended.
        rows: The counted rows: finished runs; else unfinished runs as far as they came; else failed runs.
        records: The records of the counted rows.
        n: Number of counted runs.
        seeds: Number of recorded seeds.
        is_unfinished: Whether no run finished.
        devices: Names of the devices, "" for a run without a recorded device.
    """

    label: str
    all_rows: pd.DataFrame
    metric: ComparedMetric
    base_value: str = ""
    kind: Kind = Kind.ARM
    settings: Mapping[str, str] = field(default_factory=dict)
    distinguishing_settings: tuple[tuple[str, str], ...] = ()
    bench_estimates: Mapping[str, Estimate] = field(default_factory=dict)
    display_name: str = ""

    def __post_init__(self) -> None:
        self.display_name = self.display_name or self.label
        self.value = self.kind.name_of(self.base_value)
        counts = self.all_rows[OUTCOME].value_counts()
        self.outcomes = Outcomes(**{outcome: int(n) for outcome, n in counts.items()})
        self.rows = _counted_rows(self.all_rows)
        self._by_start = self.rows.sort_values(run_table.STARTED, kind="stable")
        self._samples: dict[tuple[str, bool], pd.Series] = {}
        self.records: tuple[RunRecord, ...] = tuple(self.rows[RUN])

        self.n = len(self.rows)
        self.seeds = int(self.rows[SEED].nunique())
        self.is_unfinished = self.n > 0 and not self.outcomes.finished
        self.devices = frozenset(self.rows[run_table.DEVICE])

    @property
    def is_control(self) -> bool:
        """Return whether this is the baseline once more, an A/A control or one with changed last bits."""
        return self.kind is not Kind.ARM

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """The mean of each recorded metric; the geometric mean for ratios.

        With geometric means, the ratio of two groups' means is the ratio that is shown for them.
        """
        means = ((run_metric.column, self._mean(run_metric)) for run_metric in RUN_METRICS)
        return {column: mean for column, mean in means if mean is not None} | dict(self.bench_estimates)

    @cached_property
    def identities(self) -> list[RunIdentity]:
        """The identity of each run."""
        return [identity_of(run) for run in self.all_rows[RUN]]

    def _mean(self, run_metric: RunMetric) -> Estimate | None:
        values = self.sample(run_metric.column)
        if values.empty:  # the value is shown, and not compared
            values = self.sample(run_metric.column, own_times=False)
        if run_metric.column != SCORE:
            return estimate_mean(values, log=run_metric.is_ratio)
        estimate = estimate_mean(values, resolution=self.metric.resolution)
        if estimate is not None and self.metric.is_percentage:
            return replace(estimate, bounds=(0.0, 100.0))
        return estimate

    def sample(self, column: str, *, own_times: bool = True) -> pd.Series:
        """Return the values of one metric of the counted runs, indexed by the seed that pairs them.

        A metric that the seed decides has one value per seed: several runs of one seed are averaged. For
        other metrics each process is one value, the mean of its runs. Its label has the seeds of the process,
        and a number that distinguishes processes with the same seeds.

        Args:
            column: Column of the metric.
            own_times: Whether to leave out the times of runs that shared their machine.
        """
        key = (column, own_times)
        if key not in self._samples:  # each is needed a dozen times
            self._samples[key] = self._sample(column, own_times)
        return self._samples[key]

    def _sample(self, column: str, own_times: bool) -> pd.Series:
        rows = self._by_start
        run_metric = METRICS_BY_COLUMN[column]
        counts = rows[column].notna()
        if run_metric.is_of_seed:
            values = rows[column][counts & (rows[OUTCOME] != RunState.FAILED)]
            by_seed = values.groupby(_seed_labels(rows), sort=False)
            return pd.Series({seed: math.fsum(own) / len(own) for seed, own in by_seed}, dtype=float)
        if run_metric.is_timed and own_times:
            counts &= ~is_machine_shared(rows)
        return _sample_by_process(rows, counts, run_metric)

    def counts_processes(self, column: str) -> bool:
        """Return whether the values of a metric are those of processes, some of which have several runs."""
        has_shared_process = bool(self.rows[PROCESS].duplicated().any())
        return has_shared_process and not METRICS_BY_COLUMN[column].is_of_seed


def _counted_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the finished runs; if there is none, unfinished runs as far as they came, else failed runs.

    Metrics that the seed decides leave out failed runs (`Group.sample`).
    """
    states = rows[OUTCOME]
    has_rows = rows[run_table.ROWS] > 0
    finished = states == RunState.FINISHED
    unfinished = states.isin([RunState.STOPPED, RunState.PREEMPTED, RunState.RUNNING]) & has_rows
    failed = (states == RunState.FAILED) & has_rows
    return rows[next((mask for mask in (finished, unfinished, failed) if mask.any()), finished)]


def _seed_labels(rows: pd.DataFrame) -> dict[Any, str]:
    """Return the seed of each row by its index. A run without a recorded seed is not paired."""
    return {index: seed or f"run {index}" for index, seed in rows[SEED].items()}


def _sample_by_process(rows: pd.DataFrame, counts: pd.Series, run_metric: RunMetric) -> pd.Series:
    """Return the mean of the values of each process.

    Args:
        rows: All runs of the processes: their seeds label the process.
        counts: Whether the value of a row counts.
    """
    labels = _seed_labels(rows)
    by_seeds: dict[str, list[float]] = {}
    for _, own in rows.groupby(PROCESS, sort=False):
        counted = own[run_metric.column][counts[own.index]].to_numpy(float)
        if not len(counted):
            continue
        # A single value stays unchanged, to the last bit.
        mean = float(counted.mean())
        if run_metric.is_ratio and len(counted) > 1:
            mean = float(np.exp(np.log(counted).mean()))
        label = "+".join(sorted(labels[index] for index in own.index))
        by_seeds.setdefault(label, []).append(mean)
    numbered = {f"{label} ({n})": mean for label, means in by_seeds.items() for n, mean in enumerate(means)}
    return pd.Series(numbered, dtype=float)


def group_runs(
    rows: pd.DataFrame,
    metric: ComparedMetric,
    keys: Sequence[str] = (BACKEND,),
    ignored: frozenset[str] = frozenset(),
) -> list[Group]:
    """Pool the runs of a table into groups, known backends first.

    The runs of a control have a value of their own, `none again (A/A)` or `none again (last bits changed)`,
    and follow the group that they repeat.

    Args:
        rows: The table of runs.
        keys: The first key is compared, all are in the labels.
        ignored: Settings that may differ within a group.
    """
    pools = _pool_rows(rows, keys, ignored)
    groups: list[Group] = []
    ordered = order_backends(value for value, _ in pools)
    for value, kind in itertools.product(ordered, Kind):
        pools_of_value = pools.get((value, kind), {})
        name = kind.name_of(value)
        shown = kind.name_of(name_of_value(keys[0], value))
        if keys[0] == BACKEND:
            shown = kind.display_name_of(value)
        settings = [dict(pool) for pool in pools_of_value]
        differing = differing_keys(settings)
        labels = make_labels(name, settings, keys[1:], differing, [group.label for group in groups])
        groups += [
            Group(
                label=label,
                display_name=f"{shown}{label.removeprefix(name)}",
                all_rows=rows[rows.index.isin(indices)],
                metric=metric,
                base_value=value,
                kind=kind,
                settings=own,
                distinguishing_settings=tuple((key, own.get(key, NOT_SET)) for key in differing),
            )
            for label, own, indices in zip(labels, settings, pools_of_value.values(), strict=True)
        ]
    return groups


def _pool_rows(
    rows: pd.DataFrame, keys: Sequence[str], ignored: frozenset[str]
) -> dict[tuple[str, Kind], dict[Pool, list[Any]]]:
    """Return the index of each row, by the compared value and kind, and by the settings that pool it."""
    pools: dict[tuple[str, Kind], dict[Pool, list[Any]]] = {}
    chaotic = _find_chaos_runs(rows, keys)
    is_refused = rows[OUTCOME] == REFUSED
    # Refused runs come last: they join a pool of other runs.
    for index, row in [*rows[~is_refused].iterrows(), *rows[is_refused].iterrows()]:
        value, kind, settings = _place_row(row, keys, is_chaotic=index in chaotic)
        pools_of_value = pools.setdefault((value, kind), {})
        pool = tuple(sorted((key, text) for key, text in settings.items() if key not in ignored))
        if is_refused[index]:
            pool = _pool_of_refused(row[RUN], pool, pools_of_value)
        pools_of_value.setdefault(pool, []).append(index)
    return pools


def _place_row(row: pd.Series, keys: Sequence[str], *, is_chaotic: bool) -> tuple[str, Kind, dict[str, str]]:
    """Return the compared value of a row, the kind of its group, and the settings of that group.

    Args:
        keys: The first key is compared.
        is_chaotic: Whether the run repeats others with changed last bits.
    """
    settings = dict(row[SETTINGS])
    value = settings.get(keys[0], NOT_SET)
    ordinary_arms = ("", CHAOS_ARM) if PERTURBATION in keys else ("",)
    kind = Kind.ARM
    if is_chaotic:
        kind = Kind.CHAOS
        # The name tells the change, so the group's other settings are those of the baseline.
        if PERTURBATION in settings:
            settings[PERTURBATION] = UNPERTURBED
    elif control_position(row[RUN]) not in ordinary_arms:
        kind = Kind.AA
    if keys[0] in settings:
        settings[keys[0]] = kind.name_of(value)
    return value, kind, settings


def _pool_of_refused(run: RunRecord, pool: Pool, pools: Iterable[Pool]) -> Pool:
    """Return the first pool with the requested options: the record of a refused run may have no others."""
    if pool in pools:
        return pool
    requested = {(key, text) for key, text in pool if run.option(key) is not None}
    return next((candidate for candidate in pools if requested <= {*candidate}), pool)


def count_ended_seeds(groups: Sequence[Group]) -> int:
    """Return the smallest number of seeds with an ended run among the groups; 0 without a group."""
    ended = [RunState.FINISHED.value, RunState.FAILED.value]
    counts = (group.all_rows[SEED][group.all_rows[OUTCOME].isin(ended)].nunique() for group in groups)
    return min(counts, default=0)


def _find_chaos_runs(rows: pd.DataFrame, keys: Sequence[str]) -> frozenset[Any]:
    """Return the index of each run that repeats others of its compared value with changed last bits.

    If all runs of a value began so, or if this is what is compared, they are an ordinary group.
    """
    if PERTURBATION in keys:
        return frozenset()
    values = rows[SETTINGS].map(lambda own: own.get(keys[0], NOT_SET))
    changed = rows[RUN].map(is_perturbed).astype(bool)
    return frozenset(rows.index[changed & values.isin(values[~changed])])


def name_with_id(row: pd.Series) -> str:
    """Return the name of a run, with its id if the two differ."""
    name = row[run_table.NAME]
    run_id = row[RUN].id
    return name if name == run_id else f"{name} ({run_id})"


def name_run(group: Group, row: pd.Series) -> str:
    """Return `seed 2`, or name and id of the run if the group has several runs of that seed."""
    if row[SEED] is None or (group.all_rows[SEED] == row[SEED]).sum() > 1:
        return name_with_id(row)
    return f"seed {row[SEED]}"
