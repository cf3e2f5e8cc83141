"""What the templates ask of the comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ampcompare.report.analysis.claims import Claim
from ampcompare.report.analysis.comparison import Comparison
from ampcompare.report.analysis.phrases import tested
from ampcompare.report.analysis.verdict import Verdict
from ampcompare.report.analysis.views import View
from ampcompare.report.runs.groups import Group
from ampcompare.report.statistics.estimate import Estimate

FIGURES = ("images_per_second", "peak_mib", "quality")  # of which the table says what seeds they lack


@dataclass(frozen=True)
class Shown:
    """The comparison as the templates read it."""

    view: View
    tolerance: str

    @property
    def baseline(self) -> str:
        """The value that the others are compared with."""
        return self.view.baseline

    @property
    def comparisons(self) -> Sequence[Comparison]:
        """Every group but the baselines against the one that fits it."""
        return self.view.comparisons

    @property
    def verdict(self) -> Verdict:
        """The answer in words."""
        return self.view.verdict

    def comparison(self, label: str) -> Comparison | None:
        """The comparison of one group."""
        return self.view.comparison(label)

    def tested(self, comparison: Comparison, question: str) -> Estimate | None:
        """The estimate at the level at which it was tested."""
        return tested(comparison, question)

    def claim(self, comparison: Comparison, question: str) -> Claim | None:
        """What is claimed of a group, None where that was not tested."""
        return comparison.claims.get(question)

    def lost_runs(self, group: Group) -> list[tuple[str, str]]:
        """The seeds or runs that every figure of a group lacks, and why."""
        every = [group.lost(name) for name in FIGURES]
        return [pair for pair in every[0] if all(pair in pairs for pairs in every)]

    def lost(self, group: Group, name: str) -> list[tuple[str, str]]:
        """Those that this figure lacks beyond these."""
        everywhere = self.lost_runs(group)
        return [pair for pair in group.lost(name) if pair not in everywhere]
