"""Compare the best group of each value if a sweep also tuned another setting, such as the learning rate.

Runs of a random or Bayesian search have no two settings in common, so no two groups differ in the compared
key alone. How good each backend gets with its own best setting can still be shown. The best of many is chosen
by the value that is shown, which makes it look better than it is. So no difference is claimed.
"""

from collections.abc import Iterable, Sequence
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
    short_key,
)
from ampcompare.analysis.grouping.groups import Group
from ampcompare.analysis.grouping.run_metrics import QUALITY, SCORE, SPEED
from ampcompare.runtime import formatting


class BestPerValue(NamedTuple):
    """The statements of the report about the best group of each value.

    Attributes:
        sentence: The note.
        headline: The best of the others and of the baseline.
    """

    sentence: str
    headline: str


def find_best_per_value(
    groups: Sequence[Group], key: str, baseline: str, metric: ComparedMetric, levels: Levels
) -> BestPerValue | None:
    """Return the best group of each value of `key`; None if no other setting was tuned.

    A setting is tuned if it varies among the groups of one value; machine and software do not count. A group
    with a failed run, or without a finished run, counts as tried and is never the best.

    Args:
        groups: All groups, controls too.
        key: The compared key.
        baseline: The value of the baseline.
        metric: The compared metric. Its mean decides.
        levels: Level of the intervals by question.
    """
    by_value: dict[str, list[Group]] = {baseline: []}
    for group in groups:
        if not group.is_control:
            by_value.setdefault(group.value, []).append(group)
    tuned = _tuned_settings(by_value.values(), key)
    if not tuned:
        return None

    best_of = min if metric.lower_is_better else max
    best: dict[str, Group] = {}
    counts: dict[str, int] = {}  # of tried settings, by value
    for value, same_value in by_value.items():
        finished = [
            group
            for group in same_value
            if SCORE in group.estimates and not group.is_unfinished and not group.outcomes.failed
        ]
        if finished:
            best[value] = best_of(finished, key=lambda group: group.estimates[SCORE].value)
            counts[value] = len({tuple(group.settings.get(name) for name in tuned) for group in same_value})
    others = [value for value in best if value != baseline]
    if baseline not in best or not others:
        return None
    if counts[baseline] < 2 or max(counts[value] for value in others) < 2:
        return None

    title = _title(tuned, key, counts.values())
    scores = {value: metric.show_value(group.estimates[SCORE].value) for value, group in best.items()}
    texts = []
    for value, group in best.items():
        text = f"{_name(value, key)} reaches {metric.name} {scores[value]} ({_describe_tuned(group, tuned)})"
        differences = {} if value == baseline else compare(group, best[baseline], levels).estimates
        if QUALITY in differences:
            text += f", {metric.with_unit(formatting.signed(differences[QUALITY].value))}"
        if SPEED in differences:
            text += f", {formatting.ratio(differences[SPEED].value)} as fast"
        texts.append(text)
    top = best_of(others, key=lambda value: best[value].estimates[SCORE].value)
    return BestPerValue(
        f"{title}: {'; '.join(texts)}. The best is chosen by the metric that is shown, which favours lucky "
        "runs: no difference is claimed.",
        f"{title}: {_name(top, key)} {scores[top]}, {_name(baseline, key)} {scores[baseline]}",
    )


def _tuned_settings(groups_by_value: Iterable[Sequence[Group]], key: str) -> list[str]:
    """Return the settings besides `key` that vary among the groups of a value."""
    varied: dict[str, None] = {}
    for same_value in groups_by_value:
        varied |= dict.fromkeys(differing_keys([group.settings for group in same_value]))
    not_tuned = (ENVIRONMENT, CHANGED_CODE, *dependent_prefixes(key))
    return [name for name in varied if name != key and not name.startswith(not_tuned)]


def _title(tuned: Sequence[str], key: str, counts: Iterable[int]) -> str:
    """Return `Best of 3 to 5 values of lr per backend`, with the numbers of settings that were tried."""
    fewest, *_, most = sorted(counts)
    count = f"{most}" if fewest == most else f"{fewest} to {most}"
    names = formatting.some([short_key(name) for name in tuned])
    return f"Best of {count} values of {names} per {short_key(key)}"


def _describe_tuned(group: Group, tuned: Sequence[str]) -> str:
    """Return the tuned settings of a group: `lr 0.1, weight_decay 0.0005`."""
    return ", ".join(
        f"{short_key(name)} {format_setting(group.settings.get(name, NOT_SET))}" for name in tuned
    )


def _name(value: str, key: str) -> str:
    return display_name(value) if key == BACKEND else value
