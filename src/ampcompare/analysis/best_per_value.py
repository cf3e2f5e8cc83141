"""The best of each: where a sweep tried several values of another key, such as the learning rate.

Runs of a random or Bayesian search have no two settings in common, so that nothing can be compared like with
like. What can be answered is how good each backend gets with its own best value. The best of many is picked
by the very figure that is shown, which flatters it: nothing is claimed of it beyond the figures themselves.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ampcompare.analysis.comparison import ENVIRONMENT, compare
from ampcompare.analysis.grouping.compared_metric import ComparedMetric
from ampcompare.analysis.grouping.distinguishing_settings import (
    CHANGED_CODE,
    NOT_SET,
    dependent_prefixes,
    differing_keys,
    format_setting,
)
from ampcompare.analysis.grouping.groups import Group
from ampcompare.analysis.grouping.run_metrics import QUALITY, SCORE, SPEED
from ampcompare.runtime import formatting


class BestPerValue(NamedTuple):
    """What is said of the best of each value: as a note, as the heading, and of which group that is."""

    sentence: str
    headline: str
    label: str


def find_best_per_value(
    groups: Sequence[Group], key: str, baseline: str, metric: ComparedMetric, level: float
) -> BestPerValue | None:
    """The best group of each value of `key`, by the mean of the metric, the baseline's first; None where
    nothing else was tuned.

    Tuned is what varies among the groups of one value, machine and software aside. A group with a failed run
    or without a finished one is tried, and never the best.
    """
    by_value: dict[str, list[Group]] = {baseline: []}
    for group in groups:
        if not group.is_control:
            by_value.setdefault(group.value, []).append(group)
    varied = [k for alike in by_value.values() for k in differing_keys([g.settings for g in alike])]
    aside = (ENVIRONMENT, CHANGED_CODE, *dependent_prefixes(key))
    tuned = [k for k in dict.fromkeys(varied) if k != key and not k.startswith(aside)]
    best_of = min if metric.lower_is_better else max
    found: dict[str, Group] = {}
    tried: list[int] = []
    for value, alike in by_value.items() if tuned else ():
        able = [g for g in alike if SCORE in g.estimates and not (g.is_unfinished or g.outcomes.failed)]
        if able:
            found[value] = best_of(able, key=lambda g: g.estimates[SCORE].value)
            tried.append(len({tuple(g.settings.get(k) for k in tuned) for g in alike}))
    if len(found) < 2 or baseline not in found or min(tried[0], max(tried[1:])) < 2:
        return None
    names = [k.rpartition(".")[2] for k in tuned]
    least, *_, most = sorted(tried)
    values = f"{most if most == least else f'{least} to {most}'} values"
    what = f"Best of {values} of {formatting.some(names)} each"
    each, shown = [], {value: metric.show_value(g.estimates[SCORE].value) for value, g in found.items()}
    for value, group in found.items():
        at = [
            f"{name} {format_setting(group.settings.get(k, NOT_SET))}"
            for name, k in zip(names, tuned, strict=True)
        ]
        text = f"{value} reaches {metric.name} {shown[value]} ({', '.join(at)})"
        beside = compare(group, found[baseline], level).estimates if value != baseline else {}
        if QUALITY in beside:
            text += f", {metric.with_unit(formatting.signed(beside[QUALITY].value))}"
        each.append(text + (f", {formatting.ratio(beside[SPEED].value)} as fast" if SPEED in beside else ""))
    others = [value for value in found if value != baseline]
    first = best_of(others, key=lambda value: found[value].estimates[SCORE].value)
    picked = "A best is picked by the figure that is shown, which flatters it: no difference is claimed."
    heading = f"{what}: {first} {shown[first]}, {baseline} {shown[baseline]}"
    return BestPerValue(f"{what}: {'; '.join(each)}. {picked}", heading, found[first].label)
