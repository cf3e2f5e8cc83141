"""The A/A control: the baseline once more, as a group of its own, first and last in the sweep.

Nothing differs between it and the baseline, so what is found between them is what no change at all does. Its
last runs against its first say whether the machine has drifted meanwhile.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from ampcompare.report import words
from ampcompare.report.runs.figures import RunFigures
from ampcompare.report.runs.groups import Group, again, differing_keys
from ampcompare.report.runs.informative import step_of
from ampcompare.report.runs.metric import ComparedMetric
from ampcompare.report.runs.settings import arm_of
from ampcompare.report.statistics.samples import Estimate, difference, ratio

FIRST, LAST = "first", "last"


@dataclass(frozen=True)
class Control:
    """The control `group` against its `baseline`. `speed` is the ratio of throughputs, `quality` the
    difference in the metric's shown unit, `drift` the ratio of the last bookends' throughput to that of the
    first (not paired: the unit of speed is the process); None what cannot be told.

    `alarm`: drift is shown at 5 %. `differs`: so is a speed or quality other than the baseline's.
    """

    group: Group
    baseline: Group
    speed: Estimate | None = None
    quality: Estimate | None = None
    drift: Estimate | None = None

    @property
    def alarm(self) -> bool:
        """Whether the 95 % interval of the drift leaves out 1."""
        return _leaves_out(self.drift, 1.0)

    @property
    def differs(self) -> bool:
        """Whether the control is found to differ from the baseline, which it is."""
        return _leaves_out(self.speed, 1.0) or _leaves_out(self.quality, 0.0)

    @property
    def sentence(self) -> str:
        """What no change at all does here, and whether the machine drifted."""
        parts = []
        if self.speed:
            span = words.between(self.speed.low, self.speed.high, words.number)
            parts.append(f"trains {words.ratio(self.speed.value)} as fast{span}")
        if self.quality:
            span = words.between(self.quality.low, self.quality.high, words.signed)
            parts.append(f"ends {words.signed(self.quality.value)} away{span}")
        said = f"No change at all: {self.baseline.label} once more {words.listed(parts)}." if parts else ""
        if self.drift is None:
            return said
        span = words.between(self.drift.low, self.drift.high, words.number)
        told = f"From first to last the speed changed to {words.ratio(self.drift.value)}{span}"
        end = ": the machine drifted, and every speed here with it." if self.alarm else "; no drift is shown."
        return f"{said} {told}{end}".strip()


def controls(groups: Sequence[Group], metric: ComparedMetric) -> list[Control]:
    """The control groups, each with the baseline that it repeats."""
    found = []
    for group in (g for g in groups if g.is_control):
        base = next((g for g in groups if not g.is_control and is_repeated(g, group)), None)
        if base is not None:
            found.append(_control(group, base, metric))
    return found


def is_repeated(group: Group, control: Group) -> bool:
    """Whether the control repeats this group: its value, and nothing else that differs."""
    differing = differing_keys([group.settings, control.settings])
    return control.value == again(group.value) and all(
        group.settings.get(key) == group.value for key in differing
    )


def _control(group: Group, base: Group, metric: ComparedMetric) -> Control:
    name = "images_per_second"
    sides = (side.sample("quality", metric.factor) for side in (group, base))
    return Control(
        group,
        base,
        ratio(group.sample(name), base.sample(name)) if len(group.devices | base.devices) == 1 else None,
        difference(*sides, step=step_of((group, base), metric)),
        drift_of(group),
    )


def drift_of(group: Group) -> Estimate | None:
    """The throughput of the last runs as a ratio to that of the first, all runs of either end (Welch)."""
    first, last = (_at(group.counted, where) for where in (FIRST, LAST))
    return ratio(last, first)


def _at(runs: Sequence[RunFigures], where: str) -> dict[Hashable, float]:
    """The throughputs of the runs at one end, under keys that pair with nothing."""
    speeds = [f.images_per_second for f in runs if arm_of(f.run) == where and not f.shares_machine]
    return {(where, number): speed for number, speed in enumerate(speeds) if speed is not None}


def _leaves_out(estimate: Estimate | None, value: float) -> bool:
    if estimate is None or estimate.low is None or estimate.high is None:
        return False
    return not estimate.low <= value <= estimate.high
