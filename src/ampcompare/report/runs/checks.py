"""What may be wrong with runs although they finished: at chance, one after the other, stalled, spoilt."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from itertools import combinations
from statistics import median

import numpy as np
import pandas as pd

from ampcompare import metrics
from ampcompare.records import RunRecord
from ampcompare.report.runs.groups import Group
from ampcompare.report.runs.metric import ComparedMetric, says_accuracy
from ampcompare.report.runs.shared import cards, cards_of
from ampcompare.report.runs.table import (
    CLASSES,
    IMAGES,
    LARGEST,
    QUALITY,
    RUN,
    SECONDS,
    SPEED,
    STARTED,
    STEPS,
    environment_of,
    shares_machine,
    steady_rows,
)
from ampcompare.report.statistics.estimate import Estimate
from ampcompare.report.words import plural

FEWEST_EVALUATIONS = 3  # that are all the same: two may be by chance, of a small test set above all
SATURATION = 0.995  # from here on a constant accuracy is no wonder
ERRORS_ABOVE_CHANCE = 3.0
MOST_DECIMALS = 6  # of a figure that was rounded where it was logged; more are those of a computation
# A stall takes 1.25 times the median or more, and five times the spread of the others more: of noise with a
# standard deviation of 15 % none in 2,000 runs of 200 intervals lost 2 %.
STALL_FACTOR, STALL_SPREADS, STALL_SHARE = 1.25, 5.0, 0.02
WARM_START, FEWEST_INTERVALS = 0.1, 10  # share of the intervals left out; how many there must be after it
ODD_SHARE, ODD_SPREADS = 0.15, 5.0
MEDIAN_GAP = 0.03
FEWEST_TO_DRIFT = 6  # runs in all: below that a trend has no degrees of freedom worth the name
DRIFT_LEVEL, DRIFT_SAID = 0.99, 0.01  # every report asks this, and few have any
Pair = tuple[str, str]


def learned_nothing(group: Group, metric: ComparedMetric) -> str:
    """Why the metric of a group says nothing, at chance or constant; else nothing. One such run is enough:
    paired with another such, it would pass for a perfect agreement.

    At chance is a run at or below 1/classes + 3 sqrt(p (1 - p) / images), p = 1/classes (k/classes for a
    top-k accuracy); constant one whose evaluations, three at least, all gave the same below 99.5 %. Of
    metrics other than accuracies only constancy can be told.
    """
    rows = group.rows[group.rows[QUALITY].notna()]
    is_accuracy = metric.is_share and not metric.falls
    low = [_chance(row, metric.key) for _, row in rows.iterrows() if is_accuracy and _at_chance(row, metric)]
    if low:
        return f"at chance in {len(low)} of {plural(len(rows), 'run')} ({low[0] * 100:g} % by guessing)"
    ceiling = SATURATION * 100 if is_accuracy else math.inf
    stuck = [run for run in rows[RUN] if _is_constant(run, metric, ceiling)]
    return f"the same at every evaluation in {len(stuck)} of {plural(len(rows), 'run')}" if stuck else ""


def _at_chance(row: pd.Series, metric: ComparedMetric) -> bool:
    p = _chance(row, metric.key)
    above = ERRORS_ABOVE_CHANCE * math.sqrt(p * (1 - p) / row[IMAGES]) if row[IMAGES] > 0 else 0.0
    return 0 < p < 1 and row[QUALITY] / 100 <= p + above


def _chance(row: pd.Series, key: str) -> float:
    """The accuracy of guessing; 0 where the classes are not known, and for what is no classification."""
    if not row[CLASSES] >= 1 or not says_accuracy(key):
        return 0.0
    top = re.search(r"top[_-]?(\d{1,6})", key.lower())
    return min(1.0, (int(top[1]) if top else 1) / row[CLASSES])


def chance_of(rows: pd.DataFrame, metric: ComparedMetric) -> float:
    """The highest accuracy of guessing among the runs, in the shown unit; 0 where there is none."""
    return 100 * max((_chance(row, metric.key) for _, row in rows.iterrows()), default=0.0)


def _is_constant(run: RunRecord, metric: ComparedMetric, below: float) -> bool:
    values = run.values(metric.key) * metric.factor
    return len(values) >= FEWEST_EVALUATIONS and bool((values == values[0]).all() and values[0] < below)


def resolution_of(rows: pd.DataFrame, metric: ComparedMetric) -> float:
    """The least by which the metric of two runs can differ, in the shown unit: one answer of the test set,
    else the last decimal that was logged; 0 of a metric that is continuous.
    """
    known = rows[rows[QUALITY].notna()]
    if metric.is_share and len(known) and known[IMAGES].notna().all():
        return float(100 / known[IMAGES].min())
    decimals = -1
    for value in (value for run in known[RUN] for value in run.values(metric.key)):
        decimals = max(decimals, _decimals(float(value)))
        if decimals > MOST_DECIMALS:
            return 0.0
    return metric.factor * 10.0**-decimals if decimals >= 0 else 0.0


def _decimals(value: float) -> int:
    text = np.format_float_positional(value, trim="-") if math.isfinite(value) and value else "0"
    return len(text.partition(".")[2])


def stalled_share(run: RunRecord) -> float | None:
    """The share of its time after warm-up that a run lost in stalled log intervals; None if below 2 %.

    An interval is stalled if it took 1.25 times the median or more, and is off it by five robust standard
    deviations of the logarithms (1.4826 times the median absolute deviation).
    """
    speeds = run.numbers(metrics.THROUGHPUT)[steady_rows(run)]
    speeds = speeds[(speeds > 1 / LARGEST) & (speeds < LARGEST)]
    times = 1 / speeds[math.ceil(WARM_START * len(speeds)) :]
    if len(times) < FEWEST_INTERVALS:
        return None
    usual = float(np.median(times))
    off = np.log(times / usual)
    spread = 1.4826 * float(np.median(np.abs(off)))
    stalls = times[off >= max(math.log(STALL_FACTOR), STALL_SPREADS * spread)]
    share = float(np.sum(stalls - usual) / np.sum(times))
    return share if share >= STALL_SHARE else None


def odd_ones(group: Group) -> list[tuple[pd.Series, float]]:
    """Runs whose throughput is unlike that of all others of the group, as ratios to the others' median: off
    by 15 % and by five times the range of the others. Of three runs or more that had their machine.
    """
    rows = group.rows[~shares_machine(group.rows) & (group.rows[SPEED] > 0)]
    speeds, found = np.log(rows[SPEED].to_numpy(float)), []
    for number, (_, row) in enumerate(rows.iterrows() if len(rows) > 2 else ()):
        others = np.delete(speeds, number)
        off = float(speeds[number] - median(others))
        if abs(off) > max(-math.log1p(-ODD_SHARE), ODD_SPREADS * float(np.ptp(others))):
            found.append((row, math.exp(off)))
    return found


def median_gap(group: Group, base: Group) -> tuple[float, float] | None:
    """The ratio of two groups' throughputs, of medians, and that of their whole training seconds a step,
    where these differ by more than 3 %: by what a median leaves out.
    """
    both = []
    for side in (group, base):
        rows = side.rows[~shares_machine(side.rows)]
        rows = rows[(rows[SPEED] > 0) & (rows[STEPS] > 0) & (rows[SECONDS] > 1e-9)]
        if rows.empty:
            return None
        both.append((np.log(rows[SPEED]).mean(), np.log(rows[STEPS] / rows[SECONDS]).mean()))
    by_median, by_seconds = (math.exp(both[0][i] - both[1][i]) for i in (0, 1))
    return (by_median, by_seconds) if abs(math.log(by_median / by_seconds)) > math.log1p(MEDIAN_GAP) else None


def spoiled_at(run: RunRecord) -> tuple[int, float] | None:
    """How many buffers (BatchNorm's statistics) an overflow left non-finite for good, and by which step; None
    where nothing is recorded, or all was put back.
    """
    if run.option("training.on_nonfinite_buffers") == "restore":
        return None
    counts = run.numbers(metrics.NONFINITE_BUFFERS)
    rows = np.flatnonzero((counts >= 1) & (counts <= LARGEST))
    told = run.summary_number(metrics.NONFINITE_BUFFERS)
    most = float(counts[rows].max()) if len(rows) else told if told is not None else 0.0
    if not 1 <= most <= LARGEST:
        return None
    exact = run.summary_number(metrics.NONFINITE_AT)
    by_row = float(run.numbers(metrics.STEP)[rows[0]]) if len(rows) else math.nan
    return int(most), exact if exact is not None else by_row


def apart_in_time(groups: Sequence[Group]) -> list[Pair]:
    """Pairs of labels, the earlier first, of groups of two runs or more of which all of one began before any
    of the other, and not all at once: a machine drifts, and no interval of theirs knows of it.
    """
    return _pairs(groups, _is_before)


def on_other_cards(groups: Sequence[Group]) -> list[Pair]:
    """Pairs of labels of groups that have no card, or host, in common."""

    def differ(one: Group, other: Group) -> bool:
        ours, theirs = cards(one.rows), cards(other.rows)
        return bool(ours and theirs and not ours & theirs)

    return _pairs(groups, differ)


def _pairs(groups: Sequence[Group], holds: Callable[[Group, Group], bool]) -> list[Pair]:
    by_start = sorted((g for g in groups if g.n), key=lambda g: float(g.rows[STARTED].min()))
    return [(a.label, b.label) for a, b in combinations(by_start, 2) if holds(a, b)]


def _is_before(early: Group, late: Group) -> bool:
    first, then = (g.rows[STARTED][np.isfinite(g.rows[STARTED])] for g in (early, late))
    if min(len(first), len(then)) < 2 or first.max() >= then.min():
        return False
    return not _at_once(pd.concat([early.rows, late.rows]))


def _at_once(rows: pd.DataFrame) -> bool:
    """Whether there was a moment at which all runs went on, each on cards of its own."""
    each = [cards_of(row) for _, row in rows.iterrows()]
    have_own = all(each) and len(frozenset().union(*each)) == sum(map(len, each))
    ends = [row[STARTED] + _seconds(row[RUN]) for _, row in rows.iterrows()]
    return have_own and bool(rows[STARTED].max() < min(ends))


def _seconds(run: RunRecord) -> float:
    clock = run.values(metrics.ELAPSED)
    clock = clock[np.isfinite(clock)]
    return max(0.0, float(clock[-1])) if len(clock) else 0.0


def drift_of(groups: Sequence[Group]) -> Estimate | None:
    """The throughput of the last run to that of the first by a straight line of its logarithm over the
    starting times, with a level for each group on each of its cards; at 99 %. None where it cannot be told.
    """
    found = []
    for group in groups:
        for _, row in group.rows[~shares_machine(group.rows)].iterrows():
            if row[SPEED] > 0 and math.isfinite(row[STARTED]):
                found.append((group.label, cards_of(row), row[STARTED], math.log(row[SPEED])))
    frame = pd.DataFrame(found, columns=["label", "cards", "x", "y"])
    by = frame.groupby(["label", "cards"])
    frame = frame[by["x"].transform("size") >= 2]
    by = frame.groupby(["label", "cards"])
    df, span = len(frame) - by.ngroups - 1, float(np.ptp(frame["x"])) if len(frame) else 0.0
    if len(frame) < FEWEST_TO_DRIFT or df < 1 or span <= 0:
        return None
    x = (frame["x"] - by["x"].transform("mean")) / span
    y = frame["y"] - by["y"].transform("mean")
    if (squares := float(x @ x)) <= 1e-9:  # every group at one moment of its own
        return None
    slope = float(x @ y) / squares
    error = math.sqrt(float(((y - slope * x) ** 2).sum()) / df / squares)
    ratio = math.exp(min(700.0, slope))
    return Estimate(ratio, (ratio, ratio), len(frame), error, float(df), log=True, level=DRIFT_LEVEL)


def leaves_out(found: Estimate | None, null: float) -> bool:
    """Whether an interval leaves a value out."""
    low, high = found.ends if found else (None, None)
    return low is not None and high is not None and not low <= null <= high


def commits_of(rows: pd.DataFrame) -> list[str]:
    """The states of the code that the runs were recorded with, seven characters each."""
    said = (environment_of(run).get("git_commit") for run in rows[RUN])
    heads = [str(one).partition("-") for one in said if isinstance(one, str) and one]
    return list(dict.fromkeys(f"{head[:7]}{dash}{rest}" for head, dash, rest in heads))
