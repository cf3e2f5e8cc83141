"""Pool runs that differ only in the seed. Every other difference splits groups.

A group has the runs of one value of the compared key (usually the backend) under one setting. Two runs of one
backend with different batch sizes, or on different machines, are in two groups, and their labels name the
difference.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from ampcompare.analysis.grouping import run_table
from ampcompare.analysis.grouping.backend_info import (
    AA_SUFFIX,
    CHAOS_SUFFIX,
    display_name,
    is_control_value,
    order_backends,
    repeated_value,
)
from ampcompare.analysis.grouping.compared_metric import ComparedMetric
from ampcompare.analysis.grouping.distinguishing_settings import (
    BACKEND,
    NOT_SET,
    control_position,
    differing_keys,
    identity_of,
    is_perturbed,
    make_labels,
)
from ampcompare.analysis.grouping.run_metrics import (
    BEST,
    FINAL,
    METRICS_BY_COLUMN,
    PEAK,
    RUN_METRICS,
    SCORE,
    SECONDS,
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
from ampcompare.runs import RunRecord
from ampcompare.runs.nested import as_text
from ampcompare.runs.run_state import RunState
from ampcompare.runtime.formatting import plural

CHAOS_ARM = "chaos"  # of a sweep, as `control_position` returns it
UNPERTURBED = as_text(OPTIONS[PERTURBATION].default)
Pool = tuple[tuple[str, str], ...]  # the settings that all runs share, sorted


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
        every = vars(self).items()
        others = [f"{n} {word}" for word, n in every if n and word != "finished"]
        return ", ".join([f"{self.finished} of {plural(sum(vars(self).values()), 'run')}", *others])


@dataclass(eq=False)
class Group:
    """Runs that may be pooled.

    Attributes:
        label: The unique label, as files have it.
        display_name: The label as people read it: `fp32 (none)` for the backend `none`.
        all_rows: All rows of the table of runs that belong to the group.
        value: The value of the compared key. It decides the colour.
        settings: The settings that all runs share.
        distinguishing_settings: The settings, with their values, that differ from other groups of the same
            value.
        is_control: Whether this is a control, the baseline once more: an A/A control, or one that begins with
            changed last bits (`analysis.chaos_control`).
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
    value: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    distinguishing_settings: tuple[tuple[str, str], ...] = ()
    is_control: bool = False
    bench_estimates: Mapping[str, Estimate] = field(default_factory=dict)
    display_name: str = ""

    def __post_init__(self) -> None:
        self.display_name = self.display_name or self.label
        states, has_rows = self.all_rows[OUTCOME], self.all_rows[run_table.ROWS] > 0
        self.outcomes = Outcomes(**{word: int(n) for word, n in states.value_counts().items()})
        # Finished runs count. If there is none, unfinished runs count as far as they came, else failed
        # runs, except for metrics that the seed decides (`sample`).
        finished = states == RunState.FINISHED
        unfinished = states.isin([RunState.STOPPED, RunState.PREEMPTED, RunState.RUNNING]) & has_rows
        failed = (states == RunState.FAILED) & has_rows
        counts = next((mask for mask in (finished, unfinished, failed) if mask.any()), finished)
        self.rows = self.all_rows[counts]
        self._by_start = self.rows.sort_values(run_table.STARTED, kind="stable")
        self.records: tuple[RunRecord, ...] = tuple(self.rows[RUN])
        self.n, self.seeds = len(self.rows), int(self.rows[SEED].nunique())  # seeds: those recorded
        self.is_unfinished = self.n > 0 and not self.outcomes.finished
        self.devices = frozenset(self.rows[run_table.DEVICE])  # "" for a run without a recorded device

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """The mean of each recorded metric; the geometric mean for ratios.

        With geometric means, the ratio of two groups' means is the ratio that is shown for them.
        """
        means = {run_metric.column: self._mean(run_metric) for run_metric in RUN_METRICS}
        return {name: mean_of_metric for name, mean_of_metric in means.items() if mean_of_metric} | dict(
            self.bench_estimates
        )

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
        return replace(estimate, bounds=(0.0, 100.0)) if estimate and self.metric.is_percentage else estimate

    def sample(self, column: str, *, own_times: bool = True) -> pd.Series:
        """Return the values of one metric of the counted runs, indexed by the seed that pairs them.

        A metric that the seed decides has one value per seed: several runs of one seed are averaged. For
        other metrics each process is one value, the mean of its runs. Its label has the seeds of the process,
        and a number that distinguishes processes with the same seeds.

        Args:
            column: Column of the metric.
            own_times: Whether to leave out the times of runs that shared their machine.
        """
        rows, run_metric = self._by_start, METRICS_BY_COLUMN[column]
        counts = rows[column].notna()
        if run_metric.is_of_seed:
            counts &= rows[OUTCOME] != RunState.FAILED
        if run_metric.is_timed and own_times:
            counts &= ~is_machine_shared(rows)
        # A run without a recorded seed is not paired.
        seeds = {index: seed or f"run {index}" for index, seed in rows[SEED].items()}
        if run_metric.is_of_seed:
            by_seed: dict[str, list[float]] = {}
            for index, value in rows[column][counts].items():
                by_seed.setdefault(seeds[index], []).append(value)
            return pd.Series({key: math.fsum(v) / len(v) for key, v in by_seed.items()}, dtype=float)
        by_seeds: dict[str, list[float]] = {}
        for _, own in rows.groupby(PROCESS, sort=False):
            values = own[column][counts[own.index]]
            if values.empty:
                continue
            mean = _geometric_mean(values) if run_metric.is_ratio else float(values.mean())
            names = "+".join(sorted(seeds[index] for index in own.index))
            by_seeds.setdefault(names, []).append(mean)
        pairs = {f"{names} ({n})": mean for names, means in by_seeds.items() for n, mean in enumerate(means)}
        return pd.Series(pairs, dtype=float)

    @property
    def shares_processes(self) -> bool:
        """Return whether one process trained several of the counted runs."""
        return bool(self.rows[PROCESS].duplicated().any())

    def counts_processes(self, column: str) -> bool:
        """Return whether the values of a metric are those of processes, some of which have several runs."""
        return self.shares_processes and not METRICS_BY_COLUMN[column].is_of_seed


def _geometric_mean(values: pd.Series) -> float:
    """Return the geometric mean of positive values; a single value unchanged, to the last bit."""
    return float(values.iloc[0]) if len(values) == 1 else float(np.exp(np.log(values).mean()))


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
    pools: dict[str, dict[Pool, list[Any]]] = {}
    is_refused = rows[OUTCOME] == REFUSED
    chaotic = _find_chaos_runs(rows, keys)
    ordinary_arms = ("", CHAOS_ARM) if PERTURBATION in keys else ("",)
    for index, row in [*rows[~is_refused].iterrows(), *rows[is_refused].iterrows()]:
        settings_of_row = {k: v for k, v in row[SETTINGS].items() if k not in ignored}
        value = row[SETTINGS].get(keys[0], NOT_SET)
        if index in chaotic:
            value = chaos_value(value)
            # The value names the change, so the group's other settings are those of the baseline.
            settings_of_row |= {keys[0]: value} if keys[0] in settings_of_row else {}
            settings_of_row |= {PERTURBATION: UNPERTURBED} if PERTURBATION in settings_of_row else {}
        elif control_position(row[RUN]) not in ordinary_arms:
            value = control_value(value)
            settings_of_row |= {keys[0]: value} if keys[0] in settings_of_row else {}
        pools_of_value, pool = pools.setdefault(value, {}), tuple(sorted(settings_of_row.items()))
        if is_refused[index]:  # its record may only have the requested options
            requested = {(k, v) for k, v in pool if row[RUN].option(k) is not None}
            pool = (
                pool
                if pool in pools_of_value
                else next((candidate for candidate in pools_of_value if requested <= {*candidate}), pool)
            )
        pools_of_value.setdefault(pool, []).append(index)
    groups: list[Group] = []
    plain_values = order_backends(map(repeated_value, pools))
    for value in (
        named
        for candidate in plain_values
        for named in (candidate, control_value(candidate), chaos_value(candidate))
        if named in pools
    ):
        settings = [dict(pool) for pool in pools[value]]
        differing, labels_taken = differing_keys(settings), [group.label for group in groups]
        labels = make_labels(value, settings, keys[1:], differing, labels_taken)
        for label, settings_of_row, indices in zip(labels, settings, pools[value].values(), strict=True):
            distinguishing_settings = tuple((key, settings_of_row.get(key, NOT_SET)) for key in differing)
            group_rows, is_control = rows[rows.index.isin(indices)], is_control_value(value)
            groups.append(
                Group(
                    label,
                    group_rows,
                    metric,
                    value,
                    settings_of_row,
                    distinguishing_settings,
                    is_control,
                    display_name=display_name(label) if keys[0] == BACKEND else label,
                )
            )
    return groups


def count_ended_seeds(groups: Sequence[Group]) -> int:
    """Return the smallest number of seeds with an ended run among the groups; 0 without a group."""
    ended = [RunState.FINISHED.value, RunState.FAILED.value]
    counts = (group.all_rows[SEED][group.all_rows[OUTCOME].isin(ended)].nunique() for group in groups)
    return min(counts, default=0)


def control_value(value: str) -> str:
    """Return the value of the A/A control of a baseline with this value."""
    return f"{value}{AA_SUFFIX}"


def chaos_value(value: str) -> str:
    """Return the value of the control of such a baseline that begins with changed last bits."""
    return f"{value}{CHAOS_SUFFIX}"


def _find_chaos_runs(rows: pd.DataFrame, keys: Sequence[str]) -> frozenset[Any]:
    """Return the index of each run that repeats others of its compared value with changed last bits.

    If all runs of a value began so, or if this is what is compared, they are an ordinary group.
    """
    if PERTURBATION in keys:
        return frozenset()
    values = {index: own.get(keys[0], NOT_SET) for index, own in rows[SETTINGS].items()}
    changed = {index for index, run in rows[RUN].items() if is_perturbed(run)}
    repeated = {value for index, value in values.items() if index not in changed}
    return frozenset(index for index in changed if values[index] in repeated)


# Columns of published measurements that have another name there.
COLUMN_OF = {"seconds": SECONDS, "peak_memory": PEAK}


def sample_measurement(group: Group, measurement: str) -> pd.Series:
    """Return the values of a published measurement, in its unit.

    They are per process; accuracies are per seed.

    Args:
        measurement: A key of `publication.MEASUREMENTS`.
    """
    values = group.sample(COLUMN_OF.get(measurement, measurement))
    return 100 * values if measurement in (FINAL, BEST) else values


def counts_processes(group: Group, measurement: str) -> bool:
    """Return whether the values of a published measurement are those of processes with several runs.

    Args:
        measurement: A key of `publication.MEASUREMENTS`.
    """
    return group.counts_processes(COLUMN_OF.get(measurement, measurement))


def name_run(group: Group, row: pd.Series) -> str:
    """Return `seed 2`, or name and id of the run if the group has several runs of that seed."""
    if row[SEED] is None or (group.all_rows[SEED] == row[SEED]).sum() > 1:
        return f"{row[run_table.NAME]} ({row[RUN].id})"
    return f"seed {row[SEED]}"
