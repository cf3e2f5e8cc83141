"""Holds what is known of a group relative to its baseline: estimates, claims, and why there are none.

Every claim is read from one two-sided interval (`claims`); why there is none is decided in `reasons`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ampcompare.analysis.claims import KEEPS_QUALITY, NOT_FINISHED, Claim, Finding, Reason
from ampcompare.analysis.grouping.groups import Group
from ampcompare.analysis.grouping.run_metrics import MEMORY, QUALITY, SPEED
from ampcompare.analysis.statistics.estimate import Estimate
from ampcompare.analysis.statistics.sample_size import pool_deviations


@dataclass(eq=False)
class Comparison:
    """A group relative to its baseline.

    Attributes:
        group: The compared group.
        baseline: The baseline group. None if no baseline matches the group.
        not_compared_reason: Why no baseline matches.
        uncontrolled_differences: Settings of machine and software that differ.
        estimates: By question: ratios to the baseline (speed above 1 is faster, memory below 1 is less), and
            the difference in quality in its shown unit.
        relative_to_control: The same estimates relative to the runs of the A/A control.
        has_control: Whether there is an A/A control.
        drift: For a control, the throughput of its last runs relative to its first.
        no_quality: Why nothing can be claimed about quality, whatever the values are.
        degenerate: Why the group's metric says nothing although the baseline's does. The group then lost
            quality, whether the interval shows it or not.
        is_missing_in_bench: Whether a benchmark has the speed of other groups and no arm for this one.
        seed_correlation: The correlation of the quality with that of the baseline over the shared seeds; None
            if it is not defined.
        claims: The claims by question; none for a control, and before both groups have finished runs.
    """

    group: Group
    baseline: Group | None
    not_compared_reason: str = ""
    uncontrolled_differences: tuple[str, ...] = ()
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    relative_to_control: Mapping[str, Estimate] = field(default_factory=dict)
    has_control: bool = False
    drift: Estimate | None = None
    no_quality: Reason | None = None
    degenerate: Reason | None = None
    is_missing_in_bench: bool = False
    seed_correlation: float | None = None
    claims: Mapping[str, Claim] = field(default_factory=dict)

    @property
    def is_control(self) -> bool:
        """Return whether the group is a control: the baseline once more."""
        return self.group.is_control

    @property
    def sides(self) -> tuple[Group, ...]:
        """The group, and its baseline if it has one."""
        return (self.group,) if self.baseline is None else (self.group, self.baseline)

    @property
    def devices(self) -> frozenset[str]:
        """Names of the devices of all runs, "" for a run without a recorded device."""
        return frozenset().union(*(side.devices for side in self.sides))

    @property
    def no_claim_reason(self) -> str:
        """Return why nothing can be claimed about quality, whatever the values are; "" if something can."""
        return self.no_quality.text if self.no_quality else ""

    @property
    def speedup(self) -> float | None:
        """Return the ratio of speeds, None if speeds are not compared."""
        return self.estimates[SPEED].value if SPEED in self.estimates else None

    @property
    def shown(self) -> frozenset[str]:
        """Return every word that is shown."""
        return frozenset(word for claim in self.claims.values() for word in claim.shown)

    @property
    def is_faster(self) -> bool:
        """Return whether the group is shown to be faster, and not within 2% of the baseline's speed."""
        return SPEED in self.claims and self.claims[SPEED].finding is Finding.FASTER

    @property
    def keeps_quality(self) -> bool:
        """Return whether quality is shown to be equivalent, better, or not lower by more than the margin."""
        return QUALITY in self.claims and self.claims[QUALITY].finding in KEEPS_QUALITY

    @property
    def is_quality_lost(self) -> bool:
        """Return whether quality is shown to be worse beyond the margin, or nothing was learned."""
        is_worse = QUALITY in self.claims and self.claims[QUALITY].finding is Finding.WORSE
        return is_worse or self.degenerate is not None

    @property
    def open_claims(self) -> tuple[Claim, ...]:
        """The claims on speed and quality that more seeds may decide."""
        may_be_claimed = not self.is_control and not self.not_compared_reason
        if may_be_claimed and not self.claims and self.group.outcomes.running:
            return (Claim(SPEED, None, reason=NOT_FINISHED),)
        return tuple(
            claim
            for claim in self.claims.values()
            if claim.is_open and claim.question != MEMORY and not claim.is_by_benchmark
        )


def pool_spreads(comparisons: Sequence[Comparison]) -> dict[str, tuple[float, float]]:
    """Return the standard deviation of one pair over all groups and its degrees of freedom, by question.

    Only forecasts of further seeds use it.
    """
    spreads = {}
    for question in (SPEED, QUALITY):
        estimates = [c.estimates[question] for c in comparisons if question in c.estimates]
        paired = [estimate for estimate in estimates if estimate.is_paired]
        pooled = pool_deviations(paired or estimates)
        if pooled is not None:
            spreads[question] = pooled
    return spreads
