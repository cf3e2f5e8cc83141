"""One group against the baseline, like with like: of the same config, and speed on one device only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from ampcompare.report.analysis.groups import BACKEND, Group, differing_keys
from ampcompare.report.analysis.metric import ComparedMetric
from ampcompare.report.analysis.settings import OF_BACKEND
from ampcompare.report.analysis.statistics import Equivalence, Estimate, difference, equivalence, ratio
from ampcompare.report.words import listed, some

ENVIRONMENT = "environment."
DEVICE = ("environment.device_name", "environment.device_type")
MAX_KEYS = 6


@final
@dataclass(frozen=True)
class Comparison:
    """A group against its baseline. None is what cannot be said.

    `speed`, `memory`, `energy` and `time` (to the target) are ratios to the baseline (speed above 1: faster,
    memory below 1: less), `quality` is the difference of the metric in its shown unit, `equivalence` its test
    within the margin.
    `refusal` says why nothing is compared, `loose` names what differs in software or machine although it is.
    """

    group: Group
    baseline: Group | None
    metric: ComparedMetric
    refusal: str = ""
    same_device: bool = True
    loose: tuple[str, ...] = ()
    speed: Estimate | None = None
    memory: Estimate | None = None
    energy: Estimate | None = None
    time: Estimate | None = None
    quality: Estimate | None = None
    equivalence: Equivalence | None = None

    @property
    def speedup(self) -> float | None:
        """The ratio of throughputs, None where it cannot be given."""
        return self.speed.value if self.speed else None

    @property
    def n(self) -> int:
        """Pairs, or seeds, that the comparison rests on."""
        return max((e.n for e in (self.speed, self.memory, self.quality) if e), default=0)

    @property
    def enough_seeds(self) -> bool:
        """Whether anything has an interval."""
        return any(e.has_interval for e in (self.speed, self.quality) if e)

    @property
    def is_equivalent(self) -> bool:
        """Whether the metric is shown to be the same, within the margin."""
        return self.equivalence is not None and self.equivalence.holds

    @property
    def outcome(self) -> str:
        """What is known of the metric's difference, in a few words."""
        if self.refusal:
            return "not compared"
        if self.is_equivalent:
            return f"equivalent within {self.metric.tolerance}"
        if not self.enough_seeds:
            return "not enough seeds to tell"
        return f"equivalence not {'shown' if self.equivalence else 'tested'}"


def compare_all(groups: Sequence[Group], baseline: str, key: str, metric: ComparedMetric) -> list[Comparison]:
    """Every group but the baselines against the one baseline that fits it; nothing without a baseline."""
    bases = [g for g in groups if g.value == baseline]
    return [_compare_fitting(g, bases, key, metric) for g in groups if bases and g.value != baseline]


def _compare_fitting(group: Group, bases: Sequence[Group], key: str, metric: ComparedMetric) -> Comparison:
    gaps = {base.label: gap(group, base, key) for base in bases}
    fitting = [base for base in bases if not any(not k.startswith(ENVIRONMENT) for k in gaps[base.label])]
    if not fitting:
        nearest = min(bases, key=lambda base: len(gaps[base.label]))
        keys = [k for k in gaps[nearest.label] if not k.startswith(ENVIRONMENT)]
        refusal = f"it differs from {nearest.label} in {_values(keys, group, nearest)}"
        return Comparison(group, None, metric, refusal)
    counted = [base for base in fitting if base.counted] or fitting
    fewest = min(len(gaps[base.label]) for base in counted)
    nearest_ones = [base for base in counted if len(gaps[base.label]) == fewest]
    if len(nearest_ones) > 1:
        keys = differing_keys([base.settings for base in nearest_ones])
        names = listed(b.label for b in nearest_ones)
        refusal = f"{names} would both do; they differ in {listed(keys[:MAX_KEYS])}"
        return Comparison(group, None, metric, refusal)
    return compare(group, nearest_ones[0], metric, tuple(gaps[nearest_ones[0].label]))


def gap(group: Group, base: Group, key: str = BACKEND) -> list[str]:
    """Settings on which two groups differ although the comparison is not about them."""
    keys = differing_keys([group.settings, base.settings])
    return [k for k in keys if k != key and not (key == BACKEND and k.startswith(OF_BACKEND))]


def compare(
    group: Group, base: Group, metric: ComparedMetric | None = None, differing: Sequence[str] = ()
) -> Comparison:
    """Compare a group with a baseline: speed, memory and energy on one and the same device only."""
    metric = metric or ComparedMetric()
    same_device = len(group.devices | base.devices) == 1
    quality = None
    if not group.is_unfinished and not base.is_unfinished:  # unfinished runs are not as far
        ours, theirs = (side.per_seed("quality", metric.factor) for side in (group, base))
        quality = difference(ours, theirs)

    def of(name: str) -> Estimate | None:
        return ratio(group.per_seed(name), base.per_seed(name)) if same_device else None

    return Comparison(
        group,
        base,
        metric,
        same_device=same_device,
        loose=tuple(k for k in differing if k not in DEVICE),
        speed=of("images_per_second"),
        memory=of("peak_mib"),
        energy=of("joules_per_image"),
        time=of("seconds_to_target"),
        quality=quality,
        equivalence=equivalence(quality, metric.margin) if quality and metric.margin is not None else None,
    )


def _values(keys: Sequence[str], group: Group, base: Group) -> str:
    ours, theirs = ([side.settings.get(k, "not set") for k in keys] for side in (group, base))
    return some([f"{k} ({a} against {b})" for k, a, b in zip(keys, ours, theirs, strict=True)], MAX_KEYS)
