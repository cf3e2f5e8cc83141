"""Compare the best group of each value if a sweep also tuned another setting, such as the learning rate.

Runs of a random or Bayesian search have no two settings in common, so no two groups differ in the compared
key alone. How good each backend gets with its own best setting can still be shown. The best of many is chosen
by the value that is shown, which makes it look better than it is. So no difference is claimed.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ampcompare.analysis.comparison import ENVIRONMENT, Levels, compare
from ampcompare.analysis.grouping.backend_info import display_name
from ampcompare.analysis.grouping.compared_metric import ComparedMetric
from ampcompare.analysis.grouping.distinguishing_settings import (
    BACKEND,
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
    """The statements of the report about the best group of each value.

    Attributes:
        sentence: The note.
        headline: The headline.
        label: The label of the group that the headline is about.
    """

    sentence: str
    headline: str
    label: str


def find_best_per_value(
    groups: Sequence[Group], key: str, baseline: str, metric: ComparedMetric, levels: Levels
) -> BestPerValue | None:
    """Return the best group of each value of `key`; None if no other setting was tuned.

    A setting is tuned if it varies among the groups of one value; machine and software do not count. A group
    with a failed run, or without a finished run, counts as tried and is never the best.

    Args:
        groups: All groups.
        key: The compared key.
        baseline: The value of the baseline.
        metric: The compared metric. Its mean decides.
        levels: Level of the intervals by question.
    """
    by_value: dict[str, list[Group]] = {baseline: []}
    for group in groups:
        if not group.is_control:
            by_value.setdefault(group.value, []).append(group)
    varied = [k for same_value in by_value.values() for k in differing_keys([g.settings for g in same_value])]
    not_tuned = (ENVIRONMENT, CHANGED_CODE, *dependent_prefixes(key))
    tuned = [k for k in dict.fromkeys(varied) if k != key and not k.startswith(not_tuned)]
    best_of = min if metric.lower_is_better else max
    best: dict[str, Group] = {}
    tried: list[int] = []
    for value, same_value in by_value.items() if tuned else ():
        finished = [
            g for g in same_value if SCORE in g.estimates and not (g.is_unfinished or g.outcomes.failed)
        ]
        if finished:
            best[value] = best_of(finished, key=lambda g: g.estimates[SCORE].value)
            tried.append(len({tuple(g.settings.get(k) for k in tuned) for g in same_value}))
    if len(best) < 2 or baseline not in best or min(tried[0], max(tried[1:])) < 2:
        return None
    names = [k.rpartition(".")[2] for k in tuned]
    fewest, *_, largest = sorted(tried)
    values = f"{largest if largest == fewest else f'{fewest} to {largest}'} values"
    title = f"Best of {values} of {formatting.some(names)} per {key.rpartition('.')[2]}"
    texts, shown = [], {value: metric.show_value(g.estimates[SCORE].value) for value, g in best.items()}
    for value, group in best.items():
        tuned_values = [
            f"{name} {format_setting(group.settings.get(k, NOT_SET))}"
            for name, k in zip(names, tuned, strict=True)
        ]
        text = f"{_name(value, key)} reaches {metric.name} {shown[value]} ({', '.join(tuned_values)})"
        differences = compare(group, best[baseline], levels).estimates if value != baseline else {}
        if QUALITY in differences:
            text += f", {metric.with_unit(formatting.signed(differences[QUALITY].value))}"
        texts.append(
            text + (f", {formatting.ratio(differences[SPEED].value)} as fast" if SPEED in differences else "")
        )
    others = [value for value in best if value != baseline]
    top = best_of(others, key=lambda value: best[value].estimates[SCORE].value)
    warning = (
        "The best is chosen by the metric that is shown, which favours lucky runs: no difference is claimed."
    )
    heading = f"{title}: {_name(top, key)} {shown[top]}, {_name(baseline, key)} {shown[baseline]}"
    return BestPerValue(f"{title}: {'; '.join(texts)}. {warning}", heading, best[top].display_name)


def _name(value: str, key: str) -> str:
    return display_name(value) if key == BACKEND else value
