"""Use the speed of `ampcompare bench` instead of that of whole runs, which are minutes apart."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ampcompare.analysis.bench_file import BenchArm, BenchFile
from ampcompare.analysis.bench_match import (
    NOT_VERIFIED,
    identity_differences,
    is_same_execution,
    refuse_other_work,
    tolerated_differences,
)
from ampcompare.analysis.grouping.groups import BACKEND, Group
from ampcompare.analysis.grouping.run_metrics import MEMORY, PEAK, SPEED, THROUGHPUT
from ampcompare.analysis.statistics.estimate import Estimate
from ampcompare.analysis.statistics.median_interval import side_of
from ampcompare.runtime import formatting


@dataclass
class BenchEstimate(Estimate):
    """An estimate from `n` interleaved rounds, or from `n` starts of the trainings.

    Attributes:
        has_known_interval: Whether `observed_range` is an interval; from twelve rounds or three starts on.
        resolution: How far from 1, as a fraction, the ratio of two identical trainings may be.
        is_of_starts: Whether the starts are counted, and not the rounds.
    """

    has_known_interval: bool = False
    resolution: float = 0.0
    is_of_starts: bool = False

    def side_of(self, null: float) -> int:
        """Return 1 if the interval lies above what two identical trainings differ by, -1 if below, else 0."""
        low, high = self.ends
        if low is None or high is None:
            return 0
        return side_of(low, high, self.resolution, null)

    @cached_property
    def ends(self) -> tuple[float, float] | tuple[None, None]:
        """The ends of the interval, both None if there is none."""
        return self.observed_range if self.has_known_interval else (None, None)

    @property
    def basis(self) -> str:
        """The number of rounds, or of starts. Peak memory is measured once."""
        if self.n == 1:
            return "one measurement"
        return f"{self.n} starts" if self.is_of_starts else f"{self.n} interleaved rounds"


class BenchResults(BenchFile):
    """The file of a benchmark, matched with the groups of a report."""

    @property
    def smallest_difference(self) -> str:
        """The smallest difference in speed that is resolved: `5.6%`; "" if there is no such limit."""
        return f"{100 * self.resolution:.2g}%" if self.resolution else ""

    @property
    def caption(self) -> str:
        """The source of the speed and what limits it, as part of the table's caption."""
        if not self.is_even:
            control = formatting.ratio(self.control.ratio or 1.0)
            return (
                "throughput from `ampcompare bench`, without intervals, because the machine was not stable: "
                f"a second run of the baseline measured {control}"
            )
        source = f"throughput from `ampcompare bench` ({formatting.level(self.level)})"
        if self.smallest_difference:
            return f"{source}, where differences below {self.smallest_difference} are not resolved"
        return source

    @property
    def text(self) -> str:
        """A sentence that names the source of the speed."""
        count = f"{max(arm.rounds for arm in self.arms)} interleaved rounds"
        if self.is_of_starts:
            count = f"{self.starts} starts"
        source = f"Throughput is from `ampcompare bench`: {count} on {self.machine}"
        control = formatting.ratio(self.control.ratio or 1.0)
        if not self.is_even:
            return (
                f"{source}. The A/A control, a second run of the baseline, measured {control}: the "
                "machine was not stable, so throughput has no confidence intervals."
            )
        if any(arm.low is not None for arm in self.arms[1:]):
            source = f"{source}, {formatting.level(self.level)} confidence intervals"
        return f"{source}. The A/A control measured {control}."

    def find_arm(self, group: Group) -> BenchArm | None:
        """Return the arm that measured what the group's runs train, None if there is none.

        Backend, device, execution, network, data and code must be the same, as far as they were recorded. If
        several arms match, it is the arm with the fewest other differences.
        """
        if not group.devices <= {self.device, ""}:
            return None
        fingerprint = self.fingerprint or {}

        def is_same(arm: BenchArm) -> bool:
            return (
                arm.ratio is not None
                and arm.options.get(BACKEND) == group.value
                and is_same_execution(arm.options, group)
                and not identity_differences(fingerprint, arm.facts, group)
            )

        return min(
            filter(is_same, self.arms),
            key=lambda arm: len(tolerated_differences(fingerprint, arm.options, group)),
            default=None,
        )

    def caveats(self, groups: Sequence[Group]) -> list[str]:
        """Return what a reader must know about the benchmark of these groups, one sentence each."""
        fingerprint = self.fingerprint or {}
        differences: dict[str, None] = {}
        for group in groups:
            arm = None if group.is_control else self.find_arm(group)
            if arm is not None:
                differences |= dict.fromkeys(tolerated_differences(fingerprint, arm.options, group))
        sentences = []
        if self.fingerprint is None:
            sentences.append(NOT_VERIFIED)
        if differences:
            sentences.append(f"The benchmark and the runs differ in {formatting.listed(differences)}.")
        return sentences

    def group_estimates(self, group: Group, *, has_memory: bool) -> dict[str, Estimate]:
        """Return a group's own speed, and its memory.

        Args:
            has_memory: Whether the memory is from the benchmark, too, for all groups alike.
        """
        arm = self.find_arm(group)
        if arm is None:
            return {}
        estimates: dict[str, Estimate] = {}
        baseline = self.arms[0].images_per_second
        if baseline is not None and arm.ratio is not None:
            # Not its own median rate: the speed-up is the median of the ratios within rounds, and the two
            # have to agree in a report.
            estimates[THROUGHPUT] = _without_interval(baseline * arm.ratio, arm.rounds)
        if has_memory and arm.peak_mib is not None:
            estimates[PEAK] = _without_interval(arm.peak_mib, arm.rounds)
        return estimates

    def ratios(self, group: Group, base: Group) -> dict[str, Estimate]:
        """Return the ratios of a group to the baseline of the benchmark, by question."""
        arm = self.find_arm(group)
        base_arm = self.find_arm(base)
        if arm is None or arm.ratio is None or base_arm is None or base_arm.label != self.baseline:
            return {}
        speed = _without_interval(arm.ratio, self.starts if self.is_of_starts else arm.rounds)
        speed = replace(speed, level=self.level, resolution=self.resolution, is_of_starts=self.is_of_starts)
        if self.is_even and arm.low is not None and arm.high is not None:
            speed = replace(speed, observed_range=(arm.low, arm.high), has_known_interval=True)
        ratios: dict[str, Estimate] = {SPEED: speed}
        if arm.peak_mib and base_arm.peak_mib:
            ratios[MEMORY] = _without_interval(arm.peak_mib / base_arm.peak_mib, 1)
        return ratios


def _without_interval(value: float, n: int) -> BenchEstimate:
    return BenchEstimate(value, (value, value), n, log=True)


def read_bench(file: str | Path, groups: Sequence[Group]) -> BenchResults:
    """Read the JSON of `ampcompare bench` for these groups of runs.

    Raises:
        UserError: The file is not such JSON, or it measured another network, other data or other code than
            the runs have.
    """
    results = BenchResults.read(file)
    refuse_other_work(str(file), results.fingerprint or {}, [arm.facts for arm in results.arms], groups)
    return results
