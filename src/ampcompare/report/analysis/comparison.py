"""One group against the baseline, like with like: of the same config, and speed on one device only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

from ampcompare.report.analysis.claims import EQUIVALENCE, RATIOS, Claim, Levels, claims_of, null_of
from ampcompare.report.runs.control import Control
from ampcompare.report.runs.groups import BACKEND, Group, differing_keys
from ampcompare.report.runs.informative import information, step_of
from ampcompare.report.runs.metric import ComparedMetric
from ampcompare.report.runs.settings import follows
from ampcompare.report.statistics.samples import Equivalence, Estimate, difference, equivalence, ratio
from ampcompare.report.words import listed, some

ENVIRONMENT = "environment."
DEVICE = ("environment.device_name", "environment.device_type")
MAX_KEYS = 6
SHARED = "their runs shared the machine: times are not compared"


@final
@dataclass(frozen=True)
class Comparison:
    """A group against its baseline. None is what cannot be said.

    `speed`, `memory`, `energy` and `time` (to the target) are ratios to the baseline (speed above 1: faster,
    memory below 1: less), `quality` is the difference of the metric in its shown unit; all with their plain
    95 % interval. `claims` are the tests of them, within the families of all groups that are compared, by
    question (`QUESTIONS` of claims.py); a control arm has none, being what claims are held against.
    `equivalence` is the test of quality within the metric's margin. `refusal` says why nothing is compared,
    `loose` names what differs in software or machine although it is, `silence` says why nothing is claimed of
    quality: failed runs on one side, or a metric that says nothing. `control` is the A/A arm of the baseline,
    where there is one. `is_stuck`: the group learned nothing while the baseline did; what it lost may be
    claimed, that it is equivalent never.
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
    claims: Mapping[str, Claim] = field(default_factory=dict)
    silence: str = ""
    is_stuck: bool = False
    control: Control | None = None

    @property
    def speedup(self) -> float | None:
        """The ratio of throughputs, None where it cannot be given."""
        return self.speed.value if self.speed else None

    @property
    def shared_machine(self) -> str:
        """Why no times are compared although both sides have them; nothing where they are."""
        is_shared = any(side.shares_machine for side in (self.group, self.baseline) if side)
        return SHARED if is_shared and self.speed is None else ""

    @property
    def n(self) -> int:
        """Pairs, or seeds, that the comparison rests on."""
        return max((e.n for e in (self.speed, self.memory, self.quality) if e), default=0)

    @property
    def enough_seeds(self) -> bool:
        """Whether anything has an interval."""
        return any(e.has_interval for e in (self.speed, self.quality) if e)

    @property
    def is_control(self) -> bool:
        """Whether the group is the baseline once more: what no change at all does."""
        return self.group.is_control

    @property
    def is_unfinished(self) -> bool:
        """Whether the figures of one side come from runs that did not finish."""
        return any(side.is_unfinished for side in (self.group, self.baseline) if side)

    @property
    def has_failed(self) -> bool:
        """Whether a run of this group failed: its quality is then not kept, whatever the others reached."""
        return bool(self.group.outcomes.failed)

    @property
    def is_equivalent(self) -> bool:
        """Whether the metric is shown to be the same, within the margin."""
        return EQUIVALENCE in self.claims and self.claims[EQUIVALENCE].rejected

    @property
    def is_better(self) -> bool:
        """Whether the metric is shown to have gained, more than no change at all does: to be higher, or lower
        where lower is better.
        """
        claim = self.claims.get("quality")
        is_shown = claim is not None and (claim.is_below if self.metric.falls else claim.is_above)
        return is_shown and not self.is_within_control("quality")

    @property
    def is_worse(self) -> bool:
        """Whether the metric is shown to have lost, be it within the margin."""
        claim = self.claims.get("quality")
        return claim is not None and (claim.is_above if self.metric.falls else claim.is_below)

    @property
    def keeps_quality(self) -> bool:
        """Whether nothing is lost: equivalent within the margin, or better; never with a failed run."""
        return self.is_equivalent or self.is_better

    @property
    def is_faster(self) -> bool:
        """Whether a speed-up is shown, and more than no change at all shows here."""
        claim = self.claims.get("speed")
        return claim is not None and claim.is_above and not self.is_within_control("speed")

    def is_within_control(self, question: str) -> bool:
        """Whether the figure is no further from no change, to either side, than the interval of the A/A arm
        reaches: no more than no change at all does.
        """
        ours: Estimate | None = getattr(self, question)
        no_change: Estimate | None = getattr(self.control, question, None)
        if ours is None or no_change is None or no_change.low is None or no_change.high is None:
            return False
        null = ours.on_scale(null_of(question))
        reach = max(abs(no_change.on_scale(end) - null) for end in (no_change.low, no_change.high))
        return abs(ours.center - null) <= reach

    @property
    def chip(self) -> str:
        """What is known of quality in a word: failed, equivalent, lower, higher, undecided; or nothing."""
        if self.has_failed:
            return "failed"
        if self.is_equivalent:
            return "equivalent"
        if (claim := self.claims.get("quality")) is not None and claim.rejected:
            return "higher" if claim.is_above else "lower"
        return "" if self.quality is None or self.is_control else "undecided"

    @property
    def look(self) -> str:
        """The chip whose look it wears: where less is better, lower is a gain."""
        other = {"lower": "higher", "higher": "lower"}
        return other.get(self.chip, self.chip) if self.metric.falls else self.chip

    @property
    def outcome(self) -> str:
        """The same in a few words, with the size of a difference."""
        if self.refusal:
            return "not compared"
        if self.is_control:
            return "the baseline once more"
        if self.has_failed:
            return self.group.outcomes.sentence
        if self.silence and self.baseline and self.baseline.outcomes.failed:
            return f"not claimed: {self.silence}"
        if not self.group.counted:
            return self.group.outcomes.others or "no figures"
        if self.silence:
            return f"{self.metric.name} says nothing"
        if self.is_unfinished:
            return "not finished"
        return self._difference() or "not enough seeds to tell"

    def _difference(self) -> str:
        claim, within = self.claims.get("quality"), f"within {self.metric.tolerance}"
        if claim is not None and claim.rejected:
            size = self.metric.with_unit(self.metric.size(claim.estimate.value))
            lost = f"{size} {'higher' if claim.is_above else 'lower'}"
            return f"{lost}, {within}" if self.is_equivalent else lost
        if self.is_equivalent:
            return f"equivalent {within}"
        return "undecided" if claim is not None else ""


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
    return [k for k in keys if k != key and not k.startswith(follows(key))]


def compare(
    group: Group, base: Group, metric: ComparedMetric | None = None, differing: Sequence[str] = ()
) -> Comparison:
    """Compare a group with a baseline: speed, memory and energy on one and the same device only, times and
    energy only of runs that had it to themselves.
    """
    metric = metric or ComparedMetric()
    same_device = len(group.devices | base.devices) <= 1  # none: no run of theirs counts
    quality = None
    if not group.is_unfinished and not base.is_unfinished:  # unfinished runs are not as far
        sides = (side.sample("quality", metric.factor) for side in (group, base))
        quality = difference(*sides, step=step_of((group, base), metric))
        if quality and metric.is_share:
            quality = quality.within(-100, 100)  # points

    def of(name: str) -> Estimate | None:
        return ratio(group.sample(name), base.sample(name)) if same_device else None

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
        silence=_silence(group, base, metric),
        is_stuck=_is_stuck(group, base, metric),
    )


def _silence(group: Group, base: Group, metric: ComparedMetric) -> str:
    """Why nothing is claimed of quality although there is a figure; nothing where something may be."""
    if failed := [side.outcomes.sentence for side in (group, base) if side.outcomes.failed]:
        return listed(failed)
    known = (information(side.label, side.counted, metric) for side in (group, base))
    return next((one.sentence for one in known if one.says_nothing), "")


def _is_stuck(group: Group, base: Group, metric: ComparedMetric) -> bool:
    """Whether the group alone learned nothing, so that what it lost is no chance; equal it can never be."""
    if any(side.outcomes.failed for side in (group, base)):
        return False
    ours, theirs = (information(side.label, side.counted, metric) for side in (group, base))
    return ours.says_nothing and not theirs.says_nothing


def with_claims(
    comparisons: Sequence[Comparison], levels: Levels, arms: Sequence[Control] = ()
) -> list[Comparison]:
    """The comparisons with what is claimed of each, tested together. Nothing is claimed of unfinished runs.

    The control `arms` take no part in it: claims are held against them.
    """
    held = [c for c in comparisons if not c.is_control and not c.is_unfinished]
    margin = held[0].metric.margin if held else None
    barred = {place for place, c in enumerate(held) if c.is_stuck}
    tested = claims_of([_estimates(c) for c in held], margin, levels, barred)
    by_label = {c.group.label: claims for c, claims in zip(held, tested, strict=True)}
    of_base = {arm.baseline.label: arm for arm in arms}
    done = [_with(c, by_label.get(c.group.label, {})) for c in comparisons]
    return [replace(c, control=of_base.get(c.baseline.label)) if c.baseline else c for c in done]


def _estimates(comparison: Comparison) -> dict[str, Estimate]:
    """What may be claimed of a group, by question."""
    is_silent = comparison.silence and not comparison.is_stuck
    questions = RATIOS if is_silent else (*RATIOS, "quality")
    known = {question: getattr(comparison, question) for question in questions}
    return {question: estimate for question, estimate in known.items() if estimate is not None}


def _with(comparison: Comparison, claims: Mapping[str, Claim]) -> Comparison:
    if comparison.is_stuck:  # a loss that is shown is said; of anything else nothing is claimed
        shown = replace(comparison, claims=claims, silence="")
        if shown.is_worse:
            return shown
        claims = {question: claim for question, claim in claims.items() if question in RATIOS}
    found, margin = claims.get(EQUIVALENCE), comparison.metric.margin
    test = None
    if found is not None and margin is not None and comparison.quality is not None:
        test = equivalence(comparison.quality, margin, found.level)
    return replace(comparison, claims=claims, equivalence=test)


def _values(keys: Sequence[str], group: Group, base: Group) -> str:
    ours, theirs = ([side.settings.get(k, "not set") for k in keys] for side in (group, base))
    return some([f"{k} ({a} against {b})" for k, a, b in zip(keys, ours, theirs, strict=True)], MAX_KEYS)
