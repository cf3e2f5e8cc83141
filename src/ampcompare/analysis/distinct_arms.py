"""Arms that cannot be told apart by the compared metric, and the level of each interval that follows."""

from collections.abc import Sequence

from ampcompare.analysis.grouping.groups import Group
from ampcompare.analysis.grouping.run_metrics import COMPARED_METRICS, QUALITY, SCORE
from ampcompare.analysis.statistics.mean_difference import MIN_RUNS
from ampcompare.analysis.statistics.multiplicity import joint_level


def find_identical_arms(arms: Sequence[Group]) -> list[list[Group]]:
    """Return the sets of arms whose quality is bit-identical at every shared seed, largest first.

    Two backends may compute the same on one machine, as fp16 autocast and O1 do on some networks. Such arms
    need three shared seeds: fewer may agree by chance.
    """
    sets: list[list[Group]] = []
    for arm in arms:
        same = next((members for members in sets if _is_identical(members[0], arm)), None)
        if same is None:
            sets.append([arm])
        else:
            same.append(arm)
    return sorted((members for members in sets if len(members) > 1), key=len, reverse=True)


def _is_identical(one: Group, other: Group) -> bool:
    values = one.sample(SCORE)
    other_values = other.sample(SCORE)
    shared = values.index.intersection(other_values.index)
    return len(shared) >= MIN_RUNS and bool((values[shared] == other_values[shared]).all())


def interval_levels(
    arms: Sequence[Group], identical: Sequence[Sequence[Group]], share: float
) -> dict[str, float]:
    """Return the level of each interval, 0..1, by question.

    The intervals of one question hold together in 95% over all arms and looks. Arms with identical quality
    count once for the quality; their speeds and memory are measurements of their own.

    Args:
        arms: The groups that are compared with the baseline, comparable or not.
        identical: Sets of arms with identical quality.
        share: The fraction of the error that this look may spend.
    """
    repeated = sum(len(members) - 1 for members in identical)
    levels = {question: joint_level(len(arms), share=share) for question in COMPARED_METRICS}
    return levels | {QUALITY: joint_level(len(arms) - repeated, share=share)}
