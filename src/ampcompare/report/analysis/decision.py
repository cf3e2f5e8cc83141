"""The decision in a sentence: the fastest that keeps its quality, and what the faster ones lose."""

from __future__ import annotations

from collections.abc import Sequence

from ampcompare.report import words
from ampcompare.report.analysis import phrases
from ampcompare.report.analysis.best import BestOfEach
from ampcompare.report.analysis.comparison import SHARED, Comparison, compare
from ampcompare.report.foreign.settings import ALL
from ampcompare.report.runs.groups import BACKEND, Group
from ampcompare.report.runs.informative import information
from ampcompare.report.runs.labels import noun
from ampcompare.report.runs.metric import ComparedMetric

MOST = 3  # others of which the headline says why they are not it


def headline(
    groups: Sequence[Group],
    comparisons: Sequence[Comparison],
    key: str,
    wanted: str,
    metric: ComparedMetric,
    best: BestOfEach | None = None,
) -> str:
    """The answer against the baseline, the value `wanted` of `key`; `best` where another key was tuned."""
    if not (bases := [g for g in groups if g.value == wanted]):
        if all(g.value == ALL for g in groups):
            return "All runs have the same settings: name what differs with --group-by to compare it."
        others = words.listed(dict.fromkeys(g.value for g in groups))
        return f"There is no run of the baseline {wanted!r} here, only of {others}: nothing to compare with."
    held = [c for c in comparisons if not c.is_control]
    if not held:
        ran = words.listed(b.label for b in bases)
        return f"Only {ran} was run: there is nothing to compare it with yet."
    if all(b.is_unfinished or not b.counted for b in bases):
        return f"There is no finished run of the baseline {wanted!r} to compare with: {_ended(bases)}."
    compared = [c for c in held if not c.refusal]
    if not compared and best is not None:
        return best.sentence
    if not compared:
        return f"Nothing is compared: {held[0].group.label} is not, because {held[0].refusal}."
    return _Decision(compared, key, wanted, metric).sentence


def _ended(groups: Sequence[Group]) -> str:
    """How the runs of groups without a finished one ended."""
    said = [part for g in groups for part in (g.outcomes.sentence, g.outcomes.others) if part]
    return (
        words.listed(said) if said else f"no run of {words.listed(g.label for g in groups)} has any figures"
    )


def _throughput(comparison: Comparison) -> float | None:
    found = comparison.group.means["images_per_second"]
    return found.value if found else None


class _Decision:
    """The groups by their speed, and what is said of them."""

    def __init__(self, compared: Sequence[Comparison], key: str, wanted: str, metric: ComparedMetric) -> None:
        self.key, self.wanted, self.metric, self.all = key, wanted, metric, compared
        finished = [c for c in compared if c.speed and not c.group.is_unfinished]
        # Where each has a baseline of its own (batch sizes, say) images a second tell which is fastest.
        is_of_one = len({c.baseline.label for c in finished if c.baseline}) < 2
        self.pace = {c.group.label: (c.speedup if is_of_one else _throughput(c)) or 0.0 for c in finished}
        self.ranked = sorted(finished, key=lambda c: -self.pace[c.group.label])
        self.faster = [c for c in self.ranked if c.is_faster]
        self.keepers = [c for c in self.faster if c.keeps_quality]

    @property
    def sentence(self) -> str:
        """The whole headline."""
        if not self.ranked:
            return self._without_speed()
        if self.keepers:
            return self._fastest_that_keeps()
        if self.faster:
            return self._none_that_keeps()
        if any("speed" in c.claims for c in self.ranked):
            return self._none_faster()
        return self._one_seed()

    def name(self, comparison: Comparison) -> str:
        """The group in a sentence; a bare number gets the name of what it is a value of."""
        return self._named(comparison.group.label)

    def _named(self, label: str) -> str:
        return label if self.key == BACKEND else f"{self.key.rpartition('.')[2]} {label}"

    def _trains(self, comparison: Comparison, *, with_doubt: bool = True) -> str:
        """`trains 1.90× as fast as none (95 %: 1.88 to 1.92)`."""
        base = comparison.baseline
        return phrases.speed(comparison, with_doubt=with_doubt, than=self._named(base.label) if base else "")

    @property
    def noun(self) -> str:
        """What is compared."""
        return noun(self.key)

    def _fastest_that_keeps(self) -> str:
        best = self.keepers[0]
        text = f"{self.name(best)} is the fastest that keeps its quality: {self._speed(best)}, "
        text += f"{self._quality(best)}."
        rivals = self._ahead_of(best)
        return text + self._rivals(rivals, "is faster still") + self._tie(best)

    def _ahead_of(self, comparison: Comparison) -> list[Comparison]:
        """Those that are faster, be it by chance."""
        return [c for c in self.ranked if self.pace[c.group.label] > self.pace[comparison.group.label]]

    def _tie(self, best: Comparison) -> str:
        """The next one that keeps its quality, where nothing shows it to be slower."""
        others = [c for c in self.keepers if c is not best]
        if not others:
            return ""
        direct = compare(best.group, others[0].group, self.metric).speed
        if direct is None or direct.low is None or direct.high is None or direct.low > 1:
            return ""
        next_one = f"{self.name(others[0])} ({words.ratio(others[0].speedup)})"
        return f" {next_one} keeps it too, and is not shown to be slower."

    def _none_that_keeps(self) -> str:
        first = self.faster[0]
        why = self._loss(first)
        if len(self.ranked) == 1 and first.has_failed:
            return f"{first.group.outcomes.sentence}; those that finished train {self._speed(first)}."
        if len(self.ranked) == 1:
            return f"{self.name(first)} trains {self._speed(first)}, but {why}."
        if nothing := self._nothing_of_all():
            others = "".join(f", {self.name(c)} {words.ratio(c.speedup)}" for c in self.faster[1:])
            kept = "but whether any of them keeps its quality is not shown"
            return f"{self.name(first)} trains {self._speed(first)}{others}, {kept}: {nothing}."
        start = f"No {self.noun} is shown to be faster and to keep its quality: "
        text = f"{start}{self.name(first)} trains {self._speed(first)}, but {why}."
        return text + self._rivals([c for c in self.faster if c is not first], "is faster too")

    def _nothing_of_all(self) -> str:
        """Why nothing can be told of the quality of any that is faster, where the baseline is the reason."""
        (base, *others) = {id(c.baseline): c.baseline for c in self.faster}.values()
        if others or base is None or base.outcomes.failed or not 1 < len(self.faster) <= MOST + 1:
            return ""
        found = information(base.label, base.counted, self.metric)
        is_all = all(c.silence and not c.has_failed for c in self.faster)
        return found.sentence if is_all and found.says_nothing else ""

    def _none_faster(self) -> str:
        first = next(c for c in self.ranked if "speed" in c.claims)
        claimed = [c for c in self.ranked if "speed" in c.claims]
        if all(c.claims["speed"].is_below for c in claimed):
            nearest = f"{self.name(first)} {self._trains(first)}"
            text = f"No {self.noun} trains faster than {self._named(self.wanted)}: {nearest}."
        else:
            first = next(c for c in claimed if not c.claims["speed"].is_below)
            nearest = f"{self.name(first)} {self._trains(first, with_doubt=False)}{self._why_not(first)}"
            text = f"No speed-up is shown: {nearest}."
        return text + self._rivals(self._ahead_of(first), "looks faster")

    def _why_not(self, comparison: Comparison) -> str:
        """What would decide a speed-up that is not shown, or that no change at all shows as much."""
        if comparison.claims["speed"].rejected:
            return phrases.doubt(comparison)
        more = phrases.more_seeds(comparison.claims["speed"].more_seeds)
        return f"; {more}" if more else ""

    def _one_seed(self) -> str:
        known = [c for c in self.ranked if not c.has_failed] or self.ranked
        first = known[0]
        what = self._trains(first)
        cost = phrases.quality(first)
        text = f"{self.name(first)} {what}" + (f" and {cost}" if cost else "")
        text += ": not enough seeds to tell what of this is chance"
        rivals = self._ahead_of(first)
        return (
            f"{text} (n{phrases.NBSP}={phrases.NBSP}{first.n}).{self._rivals(rivals, 'looks faster still')}"
        )

    def _without_speed(self) -> str:
        if without := [c.group for c in self.all if c.group.is_unfinished or not c.group.counted]:
            return f"Nothing can be compared: {_ended(without)}."
        shared = [bool(c.shared_machine) for c in self.all]
        if all(shared):
            start = f"{words.capital(SHARED)}."
        elif any(shared):
            start = (
                "No speed-up can be given: of some runs the times are not known, others shared the machine."
            )
        elif all(c.same_device for c in self.all):
            start = "Throughput is not recorded on both sides: no speed-up can be given."
        else:
            start = f"The {noun(self.key, many=True)} ran on different devices: no speed-up can be given."
        known = [c for c in self.all if c.quality is not None and c.claims]
        said = [f"{self.name(c)}: {phrases.quality(c)}." for c in known[:MOST]]
        if len(known) > MOST:
            said.append(f"Of {len(known) - MOST} more the lines below tell.")
        # Runs that shared their machine were made for their quality: that is the answer, the rest a remark.
        return " ".join([*said, start] if all(shared) else [start, *said])

    def _speed(self, comparison: Comparison) -> str:
        """`1.90× as fast as none (95 %: 1.88 to 1.92)`."""
        return self._trains(comparison).removeprefix("trains ")

    def _quality(self, comparison: Comparison) -> str:
        """`eval accuracy equivalent within 0.5 points (90 %: ...)`."""
        return f"{self.metric.name} {phrases.quality_of(comparison).removeprefix('is ')}"

    def _rivals(self, rivals: Sequence[Comparison], verb: str) -> str:
        """A sentence for each that is faster than the one chosen: why it is not it."""
        said = [
            f" {self.name(c)} {verb} ({words.ratio(c.speedup)}), but {self._loss(c)}." for c in rivals[:MOST]
        ]
        if len(rivals) > MOST:
            said.append(f" So are {len(rivals) - MOST} more, which the lines below are about.")
        return "".join(said)

    def _loss(self, comparison: Comparison) -> str:
        """Why a group is not the one to take, to follow "but"."""
        group, metric = comparison.group, self.metric
        if comparison.has_failed:
            done = len(group.outcomes.failed) + len(group.outcomes.finished)
            return f"{len(group.outcomes.failed)} of {done} of its runs failed"
        if comparison.silence and comparison.baseline and comparison.baseline.outcomes.failed:
            return f"nothing is claimed of its {metric.name}, as {comparison.silence}"
        if comparison.silence:
            return comparison.silence
        if comparison.quality is None:
            return f"no {metric.name} is recorded to say what it costs"
        if "speed" not in comparison.claims:
            return "one run is not enough to tell that from chance"
        if not comparison.is_faster:
            return "that is not shown to be more than chance"
        if not comparison.quality.has_interval:
            return f"one seed does not tell whether it keeps its {metric.name}"
        if comparison.is_worse:
            return f"its {metric.name} {phrases.quality_of(comparison)}"
        if metric.margin is None:
            return f"no margin is set within which its {metric.name} would count as kept (--margin)"
        return f"whether it keeps its {metric.name} {phrases.quality_of(comparison)}"
