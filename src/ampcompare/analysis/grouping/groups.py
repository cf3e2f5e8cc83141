"""Which runs are pooled: those that differ in nothing but the seed. All else sets groups apart, by name.

A group is the runs of one value of the compared key (the backend, usually) under one and the same setting.
Two runs of one backend with different batch sizes, or on different machines, are two groups, and their labels
say which is which.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pandas as pd

from ampcompare.analysis.grouping import run_table
from ampcompare.analysis.grouping.backend_info import AA_SUFFIX, order_backends
from ampcompare.analysis.grouping.compared_metric import ComparedMetric
from ampcompare.analysis.grouping.distinguishing_settings import (
    BACKEND,
    NOT_SET,
    control_position,
    differing_keys,
    make_labels,
)
from ampcompare.analysis.grouping.run_metrics import (
    BEST,
    BY_COLUMN,
    FINAL,
    PEAK,
    RUN_METRICS,
    SCORE,
    SECONDS,
    RunMetric,
)
from ampcompare.analysis.grouping.run_table import OUTCOME, REFUSED, RUN, SEED, SETTINGS, is_machine_shared
from ampcompare.analysis.statistics.estimate import Estimate
from ampcompare.analysis.statistics.mean_difference import mean
from ampcompare.analysis.statistics.multiplicity import Proportion, estimate_proportion
from ampcompare.runs import RunRecord
from ampcompare.runs.run_state import RunState
from ampcompare.runtime.formatting import plural

Pool = tuple[tuple[str, str], ...]  # what its runs have in common


@dataclass(frozen=True)
class Outcomes:
    """How many runs ended how: a failed run is an outcome of its setting, which no mean may hide."""

    finished: int = 0
    failed: int = 0
    stopped: int = 0
    preempted: int = 0
    running: int = 0
    queued: int = 0
    refused: int = 0

    @property
    def ended(self) -> int:
        return self.finished + self.failed

    @property
    def failures(self) -> Proportion | None:
        """The failed among those that ended, with the exact interval; None where none did."""
        return estimate_proportion(self.failed, self.ended) if self.ended else None

    @property
    def text(self) -> str:
        """`5 of 5 runs`, `3 of 5 runs, 2 failed`, `3 of 6 runs, 1 stopped, 2 running`."""
        every = vars(self).items()
        others = [f"{n} {word}" for word, n in every if n and word != "finished"]
        return ", ".join([f"{self.finished} of {plural(sum(vars(self).values()), 'run')}", *others])


@dataclass(eq=False)
class Group:
    """Runs that may be pooled: `all_rows` of the table of runs. `value` is that of the compared key and
    decides the colour; `label` is unique; `apart` are the settings, with their values, in which the group
    differs from others of the same value. `is_control`: the baseline once more (A/A). `metric` is the
    compared one. `measured` are figures that go before those of its runs.
    """

    label: str
    all_rows: pd.DataFrame
    metric: ComparedMetric
    value: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    distinguishing_settings: tuple[tuple[str, str], ...] = ()
    is_control: bool = False
    bench_estimates: Mapping[str, Estimate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        said, has_rows = self.all_rows[OUTCOME], self.all_rows[run_table.ROWS] > 0
        self.outcomes = Outcomes(**{word: int(n) for word, n in said.value_counts().items()})
        # The runs whose figures count are the finished. Where none did, those stopped or going on, as far as
        # they came; where all failed, these, but for what a seed decides (`sample`).
        finished = said == RunState.FINISHED
        going = said.isin([RunState.STOPPED, RunState.PREEMPTED, RunState.RUNNING]) & has_rows
        failed = (said == RunState.FAILED) & has_rows
        counts = next((mask for mask in (finished, going, failed) if mask.any()), finished)
        self.rows = self.all_rows[counts]
        self._by_start = self.rows.sort_values(run_table.STARTED, kind="stable")
        self.records: tuple[RunRecord, ...] = tuple(self.rows[RUN])
        self.n, self.seeds = len(self.rows), int(self.rows[SEED].nunique())  # seeds: those recorded
        self.is_unfinished = self.n > 0 and not self.outcomes.finished
        self.devices = frozenset(self.rows[run_table.DEVICE])  # an empty name where none was recorded

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """The mean of each figure that was recorded, of ratios the geometric one, so that two groups' means
        stand in the very ratio that is given of them. Each is of the runs that have it (`sample`)."""
        every = {figure.column: self._mean(figure) for figure in RUN_METRICS}
        return {name: found for name, found in every.items() if found} | dict(self.bench_estimates)

    def _mean(self, figure: RunMetric) -> Estimate | None:
        values = self.sample(figure.column)
        if values.empty:  # shown, and not compared
            values = self.sample(figure.column, own_times=False)
        if figure.column != SCORE:
            return mean(values, log=figure.is_ratio)
        found = mean(values, resolution=self.metric.resolution)
        return replace(found, bounds=(0.0, 100.0)) if found and self.metric.is_percentage else found

    def sample(self, column: str, *, own_times: bool = True) -> pd.Series:
        """One figure of the counted runs that have it, by the seed, by which it is paired. Of what the seed
        decides, a seed that was run several times is one measurement, its mean; of a machine at work every
        process is one, and its number among those of the same seed belongs to the index. Times are those of
        runs that had their machine to themselves; else of all.
        """
        rows, figure = self._by_start, BY_COLUMN[column]
        counts = rows[column].notna()
        if figure.is_of_seed:
            counts &= rows[OUTCOME] != RunState.FAILED
        if figure.is_timed and own_times:
            counts &= ~is_machine_shared(rows)
        rows = rows[counts]
        found: dict[str, list[float]] = {}
        for place, seed, value in zip(rows.index, rows[SEED], rows[column], strict=True):
            # A run without a recorded seed is paired with none.
            found.setdefault(seed or f"run {place}", []).append(value)
        if figure.is_of_seed:
            return pd.Series(
                {key: math.fsum(values) / len(values) for key, values in found.items()}, dtype=float
            )
        pairs = {f"{key} ({n})": value for key, values in found.items() for n, value in enumerate(values)}
        return pd.Series(pairs, dtype=float)


def group_runs(
    rows: pd.DataFrame,
    metric: ComparedMetric,
    keys: Sequence[str] = (BACKEND,),
    ignored: frozenset[str] = frozenset(),
) -> list[Group]:
    """The groups, known backends first. The first of `keys` is compared, all are in the labels.

    A run of the A/A control has a value of its own, `none again (A/A)`, and comes behind the one it repeats.
    """
    pools: dict[str, dict[Pool, list[Any]]] = {}
    is_refused = rows[OUTCOME] == REFUSED
    for place, row in [*rows[~is_refused].iterrows(), *rows[is_refused].iterrows()]:
        own = {k: v for k, v in row[SETTINGS].items() if k not in ignored}
        value = row[SETTINGS].get(keys[0], NOT_SET)
        if control_position(row[RUN]):
            value = control_value(value)
            own |= {keys[0]: value} if keys[0] in own else {}
        alike, pool = pools.setdefault(value, {}), tuple(sorted(own.items()))
        if is_refused[place]:  # the record may have no more than what was asked
            asked = {(k, v) for k, v in pool if row[RUN].option(k) is not None}
            pool = pool if pool in alike else next((one for one in alike if asked <= {*one}), pool)
        alike.setdefault(pool, []).append(place)
    groups: list[Group] = []
    plain = order_backends(value.removesuffix(AA_SUFFIX) for value in pools)
    for value in (named for one in plain for named in (one, control_value(one)) if named in pools):
        settings = [dict(pool) for pool in pools[value]]
        differing, taken = differing_keys(settings), [group.label for group in groups]
        labels = make_labels(value, settings, keys[1:], differing, taken)
        for label, own, places in zip(labels, settings, pools[value].values(), strict=True):
            distinguishing_settings = tuple((key, own.get(key, NOT_SET)) for key in differing)
            members, is_control = rows[rows.index.isin(places)], value.endswith(AA_SUFFIX)
            groups.append(Group(label, members, metric, value, own, distinguishing_settings, is_control))
    return groups


def control_value(value: str) -> str:
    return f"{value}{AA_SUFFIX}"


# Of what a publication measures (`published.publication.MEASURED`) the columns of other names.
COLUMN_OF = {"seconds": SECONDS, "peak_memory": PEAK}


def sample_measurement(group: Group, what: str) -> pd.Series:
    """The counted runs' measurements of what publications give, in its unit: per process, accuracies per
    seed.
    """
    values = group.sample(COLUMN_OF.get(what, what))
    return 100 * values if what in (FINAL, BEST) else values


def name_run(group: Group, row: pd.Series) -> str:
    """`seed 2`, or the run's name and id where the group has several of that seed."""
    if row[SEED] is None or (group.all_rows[SEED] == row[SEED]).sum() > 1:
        return f"{row[run_table.NAME]} ({row[RUN].id})"
    return f"seed {row[SEED]}"
