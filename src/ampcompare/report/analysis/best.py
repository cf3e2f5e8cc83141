"""The best of each: where a sweep tried several values of another key, such as the learning rate.

Runs of a random or Bayesian search have no two settings in common, so that nothing can be compared like with
like. What can be answered is how good each backend gets with its own best value. The best of many is picked
by the very figure that is shown, so that it flatters, and more so the more were tried: nothing is claimed of
it beyond the figures themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ampcompare.report import words
from ampcompare.report.analysis.comparison import ENVIRONMENT, QUALITY, SPEED, Comparison, compare
from ampcompare.report.runs import table
from ampcompare.report.runs.groups import Group
from ampcompare.report.runs.metric import ComparedMetric
from ampcompare.report.runs.settings import NOT_SET, brief, differing_keys, follows

MANY = {  # keys that are tuned most often, several of them in words
    "optimizer.lr": "learning rates",
    "lr": "learning rates",
    "learning_rate": "learning rates",
    "batch_size": "batch sizes",
    "optimizer.weight_decay": "weight decays",
}


@dataclass(frozen=True)
class Candidate:
    """The best `group` of one value of the compared key, of `tried` settings; `comparison` is that with the
    best of the baseline, None for the baseline itself.
    """

    group: Group
    tried: int
    settings: tuple[tuple[str, str], ...]
    comparison: Comparison | None = None

    @property
    def quality(self) -> float:
        """Its metric, in the shown unit."""
        return self.group.figures[table.QUALITY].value

    @property
    def at(self) -> str:
        """`lr 0.034`."""
        return ", ".join(f"{key.rpartition('.')[2]} {brief(value)}" for key, value in self.settings)


@dataclass(frozen=True)
class BestOfEach:
    """The best candidate of each value of the compared key, the baseline's first; `keys`: what was tuned."""

    keys: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    metric: ComparedMetric

    @property
    def sentence(self) -> str:
        """What each gets to, and that picking flatters."""
        base, *others = self.candidates
        said = [self._of(one, base) for one in others]
        return (
            f"Best of {self._tried} each: {'; '.join(said)}. A best is picked by the very figure that is "
            "shown, which flatters it: no difference is claimed to be more than chance."
        )

    @property
    def headline(self) -> str:
        """`Best of 20 learning rates each: native 91.40 %, none 91.20 %`."""
        base, *others = self.candidates
        ranked = sorted(others, key=lambda one: one.quality, reverse=not self.metric.falls)
        each = [f"{one.group.value} {self.metric.show_value(one.quality)}" for one in (ranked[0], base)]
        return f"Best of {self._tried} each: {', '.join(each)}"

    def covers(self, comparison: Comparison) -> bool:
        """Whether a group that is not compared differs from the baseline only in what was tuned."""
        values = {c.group.value for c in self.candidates}
        return bool(comparison.refusal) and comparison.group.value in values

    @property
    def _many(self) -> str:
        if len(self.keys) > 1:
            return f"settings of {words.some(self.keys)}"
        return MANY.get(self.keys[0], f"values of {self.keys[0]}")

    @property
    def _tried(self) -> str:
        counts = {one.tried for one in self.candidates}
        most, least = max(counts), min(counts)
        return f"{most if most == least else f'{least} to {most}'} {self._many}"

    def _of(self, one: Candidate, base: Candidate) -> str:
        metric, compared = self.metric, one.comparison
        text = (
            f"{one.group.value} reaches {metric.name} {metric.show_value(one.quality)} ({one.at}), "
            f"{base.group.value} {metric.show_value(base.quality)} ({base.at})"
        )
        estimates = compared.estimates if compared else {}
        if QUALITY in estimates:
            text += f": {metric.with_unit(words.signed(estimates[QUALITY].value))}"
        if SPEED in estimates:
            text += f", {words.ratio(estimates[SPEED].value)} as fast"
        return text


def best_of_each(
    groups: Sequence[Group], key: str, baseline: str, metric: ComparedMetric, level: float
) -> BestOfEach | None:
    """The best group of each value of `key`, by the mean of the metric; None where nothing else was tuned.

    Tuned is what varies among the groups of one value, machine and software aside. A group with a failed run
    or without a finished one is tried, and never the best.
    """
    held = [g for g in groups if not g.is_control]
    by_value = {
        value: [g for g in held if g.value == value] for value in dict.fromkeys(g.value for g in held)
    }
    tuned = list(dict.fromkeys(k for alike in by_value.values() for k in _tuned(alike, key)))
    if not tuned or baseline not in by_value:
        return None
    found = {value: best for value, alike in by_value.items() if (best := _best(alike, tuned, metric))}
    if baseline not in found or found[baseline].tried < 2 or len(found) < 2:
        return None
    base = found.pop(baseline)
    others = [
        Candidate(one.group, one.tried, one.settings, compare(one.group, base.group, metric, level))
        for one in found.values()
    ]
    if not any(one.tried > 1 for one in others):
        return None
    return BestOfEach(tuple(tuned), (base, *others), metric)


def _tuned(groups: Sequence[Group], key: str) -> list[str]:
    """What was varied among the groups of one value on purpose."""
    keys = differing_keys([g.settings for g in groups])
    return [k for k in keys if k != key and not k.startswith((ENVIRONMENT, *follows(key)))]


def _best(groups: Sequence[Group], tuned: Sequence[str], metric: ComparedMetric) -> Candidate | None:
    settings = {g.label: tuple((k, g.settings.get(k, NOT_SET)) for k in tuned) for g in groups}
    sign = -1.0 if metric.falls else 1.0
    able = [
        (sign * mean.value, g)
        for g in groups
        if (mean := g.figures.get(table.QUALITY)) and not g.is_unfinished and not g.outcomes.failed
    ]
    if not able:
        return None
    best = max(able, key=lambda pair: pair[0])[1]
    return Candidate(best, len(set(settings.values())), settings[best.label])
