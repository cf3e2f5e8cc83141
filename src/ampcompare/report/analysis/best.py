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


@dataclass(frozen=True)
class Candidate:
    """The best `group` of one value of the compared key, of `tried` settings; `comparison` is that with the
    best of the baseline, None for the baseline itself.
    """

    group: Group
    tried: int
    settings: tuple[tuple[str, str], ...]
    comparison: Comparison | None

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
        each = "; ".join(map(self._of, self.candidates))
        picked = "A best is picked by the figure that is shown, which flatters it: no difference is claimed."
        return f"Best of {self._tried} each: {each}. {picked}"

    @property
    def headline(self) -> str:
        """`Best of 20 values of lr each: native 91.40 %, none 91.20 %`."""
        base, *others = self.candidates
        first = (min if self.metric.falls else max)(others, key=lambda one: one.quality)
        each = [f"{one.group.value} {self.metric.show_value(one.quality)}" for one in (first, base)]
        return f"Best of {self._tried} each: {', '.join(each)}"

    @property
    def _tried(self) -> str:
        least, *_, most = sorted(one.tried for one in self.candidates)
        names = words.some([key.rpartition(".")[2] for key in self.keys])
        return f"{most if most == least else f'{least} to {most}'} values of {names}"

    def _of(self, one: Candidate) -> str:
        metric, found = self.metric, one.comparison.estimates if one.comparison else {}
        text = f"{one.group.value} reaches {metric.name} {metric.show_value(one.quality)} ({one.at})"
        if QUALITY in found:
            text += f", {metric.with_unit(words.signed(found[QUALITY].value))}"
        return text + (f", {words.ratio(found[SPEED].value)} as fast" if SPEED in found else "")


def best_of_each(
    groups: Sequence[Group], key: str, baseline: str, metric: ComparedMetric, level: float
) -> BestOfEach | None:
    """The best group of each value of `key`, by the mean of the metric; None where nothing else was tuned.

    Tuned is what varies among the groups of one value, machine and software aside. A group with a failed run
    or without a finished one is tried, and never the best.
    """
    by_value: dict[str, list[Group]] = {}
    for group in sorted(groups, key=lambda group: group.value != baseline):
        if not group.is_control:
            by_value.setdefault(group.value, []).append(group)
    aside = (ENVIRONMENT, *follows(key))
    varied = [k for alike in by_value.values() for k in differing_keys([g.settings for g in alike])]
    tuned = [k for k in dict.fromkeys(varied) if k != key and not k.startswith(aside)]
    found: list[Candidate] = []
    for alike in by_value.values() if tuned else ():
        settings = [tuple((k, g.settings.get(k, NOT_SET)) for k in tuned) for g in alike]
        able = [g for g in alike if table.QUALITY in g.figures and not (g.is_unfinished or g.outcomes.failed)]
        if able:
            best = (min if metric.falls else max)(able, key=lambda g: g.figures[table.QUALITY].value)
            beside = compare(best, found[0].group, metric, level) if found else None
            found.append(Candidate(best, len(set(settings)), settings[alike.index(best)], beside))
    if len(found) < 2 or found[0].group.value != baseline or found[0].tried < 2:
        return None
    return BestOfEach(tuple(tuned), tuple(found), metric) if max(c.tried for c in found[1:]) > 1 else None
