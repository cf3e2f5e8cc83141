"""The lay-out of a comparison in time and over cards, from starting times: what else differed with it.

A machine drifts: it warms up, is shared, gets an update. Groups that ran one after the other differ by that
too, and no interval of theirs knows of it. The same holds of groups that had cards of their own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from ampcompare import metrics
from ampcompare.report.runs.cards import cards, cards_of
from ampcompare.report.runs.figures import RunFigures
from ampcompare.report.runs.groups import Group
from ampcompare.report.runs.sample import started
from ampcompare.report.statistics.estimate import CONFIDENCE, Estimate, T
from ampcompare.report.statistics.student import t_quantile
from ampcompare.report.words import change, interval, listed

FEWEST = 2  # runs of a group for its place in time to say anything
DRIFT_LEVEL = 0.01
DRIFT_SAID = 0.01  # of smaller drift only what could explain a difference is worth a sentence
FEWEST_TO_DRIFT = 6  # runs in all: below that a trend has no degrees of freedom worth the name
Pair = tuple[str, str]


@dataclass(frozen=True)
class Layout:
    """How the groups of a comparison lie in time and on cards.

    `apart` are pairs of labels, the earlier first: groups of two runs or more of which all of one began
    before any of the other, and not all at once. `on_other_cards` are pairs that have no card in common.
    `drift` is the throughput of the last run to that of the first by a straight line of its logarithm over
    the starting times, each group with a level of its own; None where it cannot be told.
    """

    apart: tuple[Pair, ...] = ()
    on_other_cards: tuple[Pair, ...] = ()
    drift: Estimate | None = None

    @property
    def one_after_the_other(self) -> bool:
        """Whether two groups are wholly apart in time."""
        return bool(self.apart)

    @property
    def drifted(self) -> bool:
        """Whether drift is shown, at 1 %: every report asks this, and few have any."""
        p = self.drift.p_of(1.0) if self.drift else None
        return p is not None and p < DRIFT_LEVEL

    @property
    def sentences(self) -> tuple[str, ...]:
        """What is to be said of it, gravest first; nothing of a sound lay-out."""
        said = []
        if self.apart:
            said.append(f"{_names(self.apart)} ran one after the other: drift counts as difference.")
        if self.on_other_cards:
            names = _names(self.on_other_cards)
            said.append(f"{names} ran on different cards: what differs between these counts as difference.")
        if self.drifted and self.drift and abs(self.drift.center) >= math.log1p(DRIFT_SAID):
            said.append(self.drift_sentence)
        return tuple(said)

    @property
    def drift_sentence(self) -> str:
        """What the drift is; nothing where none is known."""
        if self.drift is None:
            return ""
        span = interval(self.drift.low, self.drift.high, change)
        return (
            f"Throughput changed by {change(self.drift.value)} from the first run to the last ({span}), "
            "whatever the group."
        )

    def may_explain(self, speed: Estimate) -> bool:
        """Whether drift is shown that is as large as this ratio of throughputs, of which a difference is."""
        if not self.drifted or self.drift is None or speed.low is None or speed.high is None:
            return False
        return not speed.low <= 1 <= speed.high and abs(speed.center) <= abs(self.drift.center)


def layout(groups: Sequence[Group]) -> Layout:
    """The lay-out of groups that are compared; the A/A control lies at the ends by design and is left out."""
    groups = [g for g in groups if g.counted and not g.is_control]
    return Layout(tuple(_pairs(groups, _is_before)), tuple(_pairs(groups, _has_other_cards)), _drift(groups))


def _pairs(groups: Sequence[Group], holds: Callable[[Group, Group], bool]) -> list[Pair]:
    by_start = sorted(groups, key=lambda g: min(started(f) for f in g.counted))
    return [(a.label, b.label) for a, b in combinations(by_start, 2) if holds(a, b)]


def _names(pairs: Sequence[Pair]) -> str:
    return listed(dict.fromkeys(label for pair in pairs for label in pair))


def _is_before(early: Group, late: Group) -> bool:
    """Whether all runs of one began before any of the other, and did not all go on at one time."""
    first, then = ([t for f in g.counted if math.isfinite(t := started(f))] for g in (early, late))
    if min(len(first), len(then)) < FEWEST or max(first) >= min(then):
        return False
    return not _at_once([*early.counted, *late.counted])


def _at_once(runs: Sequence[RunFigures]) -> bool:
    """Whether there was a moment at which all runs went on, each on cards of its own."""
    each = [cards_of(run) for run in runs]
    have_own = all(each) and len(frozenset().union(*each)) == sum(map(len, each))
    return have_own and max(map(started, runs)) < min(map(_ended, runs))


def _ended(figures: RunFigures) -> float:
    """When a run ended, by its clock; the moment it began where it has none."""
    clock = figures.run.values(metrics.ELAPSED)
    clock = clock[np.isfinite(clock)]
    return started(figures) + (max(0.0, float(clock[-1])) if len(clock) else 0.0)


def _has_other_cards(one: Group, other: Group) -> bool:
    ours, theirs = cards(one.counted), cards(other.counted)
    return ours is not None and theirs is not None and not ours & theirs


def _drift(groups: Sequence[Group]) -> Estimate | None:
    """Least squares of the log throughput on time, with a level for each group on each of its cards."""
    rows = [
        ((g.label, cards([f])), started(f), f.images_per_second)
        for g in groups
        for f in g.counted
        if f.images_per_second and math.isfinite(started(f)) and not f.shares_machine
    ]
    sizes = Counter(level for level, *_ in rows)
    rows = [row for row in rows if sizes[row[0]] >= FEWEST]
    levels = list(dict.fromkeys(level for level, *_ in rows))
    df = len(rows) - len(levels) - 1
    times = np.array([t for _, t, _ in rows])
    if len(rows) < FEWEST_TO_DRIFT or df < 1 or (span := float(np.ptp(times))) <= 0:
        return None
    x = (times - times.min()) / span
    y = np.log([speed for *_, speed in rows])
    for level in levels:
        own = np.array([row[0] == level for row in rows])
        x[own] -= x[own].mean()
        y[own] -= y[own].mean()
    if (squares := float(x @ x)) <= 1e-9:  # every group at one moment of its own
        return None
    slope = float(x @ y) / squares
    error = math.sqrt(float(np.sum((y - slope * x) ** 2)) / df / squares)
    half = t_quantile((1 + CONFIDENCE) / 2, df) * error
    low, high = (math.exp(min(700.0, slope + end)) for end in (-half, half))
    method = "least squares of log throughput on the starting time, a level for each group, t interval"
    return Estimate(
        math.exp(min(700.0, slope)), low, high, len(rows), method, T, error=error, df=float(df), scale="log"
    )
