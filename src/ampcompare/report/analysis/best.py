"""The best of each: where a sweep tried several values of another key, such as the learning rate.

Runs of a random or Bayesian search have no two settings in common, so that nothing can be compared like with
like. What can be answered is how good each backend gets with its own best value. The best of many is picked
by the very figure that is shown, which flatters it: nothing is claimed of it beyond the figures themselves.
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
    """The best `group` of one value of the compared key, of `tried` settings, `at` its own (`lr 0.034`);
    `comparison` is that with the best of the baseline, None for the baseline itself.
    """

    group: Group
    tried: int
    at: str
    comparison: Comparison | None

    def value(self, metric: ComparedMetric) -> str:
        return metric.show_value(self.group.figures[table.QUALITY].value)


@dataclass(frozen=True)
class BestOfEach:
    """The best of each value of the compared key, the baseline's first, and what is said of them."""

    candidates: tuple[Candidate, ...]
    sentence: str
    headline: str


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
    varied = [k for alike in by_value.values() for k in differing_keys([g.settings for g in alike])]
    aside = (ENVIRONMENT, *follows(key))
    tuned = [k for k in dict.fromkeys(varied) if k != key and not k.startswith(aside)]
    best_of = min if metric.falls else max
    found: list[Candidate] = []
    for alike in by_value.values() if tuned else ():
        tried = len({tuple(g.settings.get(k) for k in tuned) for g in alike})
        able = [g for g in alike if table.QUALITY in g.figures and not (g.is_unfinished or g.outcomes.failed)]
        if able:
            best = best_of(able, key=lambda g: g.figures[table.QUALITY].value)
            at = [f"{k.rpartition('.')[2]} {brief(best.settings.get(k, NOT_SET))}" for k in tuned]
            beside = compare(best, found[0].group, level) if found else None
            found.append(Candidate(best, tried, ", ".join(at), beside))
    if len(found) < 2 or found[0].group.value != baseline:
        return None
    base, *others = found
    if base.tried < 2 or max(one.tried for one in others) < 2:
        return None
    least, *_, most = sorted(one.tried for one in found)
    values = f"{most if most == least else f'{least} to {most}'} values"
    what = f"Best of {values} of {words.some([k.rpartition('.')[2] for k in tuned])} each"
    first = best_of(others, key=lambda one: one.group.figures[table.QUALITY].value)
    heads = [f"{one.group.value} {one.value(metric)}" for one in (first, base)]
    each = "; ".join(_said(one, metric) for one in found)
    picked = "A best is picked by the figure that is shown, which flatters it: no difference is claimed."
    return BestOfEach(tuple(found), f"{what}: {each}. {picked}", f"{what}: {', '.join(heads)}")


def _said(one: Candidate, metric: ComparedMetric) -> str:
    found = one.comparison.estimates if one.comparison else {}
    text = f"{one.group.value} reaches {metric.name} {one.value(metric)} ({one.at})"
    if QUALITY in found:
        text += f", {metric.with_unit(words.signed(found[QUALITY].value))}"
    return text + (f", {words.ratio(found[SPEED].value)} as fast" if SPEED in found else "")
