"""Whether the accuracies of a group say anything: that two groups are both at chance makes them no equals."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampcompare import metrics
from ampcompare.report.runs.figures import RunFigures
from ampcompare.report.runs.groups import Group
from ampcompare.report.runs.metric import ComparedMetric, says_accuracy
from ampcompare.report.words import listed

INFORMATIVE, CHANCE, CONSTANT, SATURATED = "informative", "chance", "constant", "saturated"
FEWEST_EVALUATIONS = 3  # that are all the same: two may be by chance, of a small test set above all
SATURATION = 0.995  # from here on nothing is left to lose or gain that a margin could tell
ERRORS_ABOVE_CHANCE = 3.0
OFF_COUNT = 0.01  # as far as a share in single precision is off a count of answers


@dataclass(frozen=True)
class Information:
    """What the compared metric of a group says: `word` is informative, chance, constant or saturated.

    `sentence` says why, and nothing where it is informative. `classes` and `images` (of the test set) are
    None where they are not known; `error` is the binomial standard error of one run's value, as a fraction,
    at the group's own mean: sqrt(p (1 - p) / images).
    """

    word: str = INFORMATIVE
    sentence: str = ""
    classes: int | None = None
    images: int | None = None
    error: float | None = None

    @property
    def says_nothing(self) -> bool:
        """Whether no equivalence may rest on it. At the ceiling, which is said apart, it may."""
        return self.word in (CHANCE, CONSTANT)

    @property
    def size(self) -> str:
        """`10,000 test images: a single accuracy is known to ±0.25 points (binomial standard error)`."""
        if self.images is None:
            return "size of the test set not recorded"
        if self.error is None:
            return f"{self.images:,} test images"
        points = f"±{self.error * 100:.2g} points"
        return (
            f"{self.images:,} test images: a single accuracy is known to {points} (binomial standard error)"
        )


def information(label: str, runs: Sequence[RunFigures], metric: ComparedMetric) -> Information:
    """What the metric says of the counted `runs` of the group `label`.

    At chance is a run at or below 1/classes + 3 sqrt(p (1 - p) / images), p = 1/classes (k/classes for a
    top-k accuracy); constant one whose evaluations, three at least, all gave the same below 99.5 %. One such
    run is enough: paired with another such, it would pass for a perfect agreement. Saturated is a mean of
    99.5 % or more. Of metrics other than accuracies only constancy can be told.
    """
    values = [v for f in runs if (v := f.quality) is not None]
    if not values:
        return Information()
    is_accuracy = metric.is_share and not metric.falls
    whole = 100 / metric.factor  # 1, or 100 where it is logged in percent
    images = _common([f.test_images for f in runs])
    classes = _common([f.classes for f in runs])
    mean = float(np.mean(values)) / whole
    p = min(1.0, max(0.0, mean))
    # Without classes an answer is no sample's: of the tokens of a text nobody said how many there are.
    error = math.sqrt(p * (1 - p) / images) if is_accuracy and images and classes else None
    known: dict[str, Any] = {"classes": classes, "images": images, "error": error}
    judged = [(f, f.quality / whole) for f in runs if is_accuracy and f.quality is not None]
    low = [f for f, share in judged if share <= chance_level(f, metric.key)]
    if low:
        guess = metric.show(chance_of(low[0], metric.key) * whole)
        at = f"{guess} by guessing among {low[0].classes} classes"
        whom = _whose(label, low, runs)
        return Information(CHANCE, f"{whom} at chance ({at}): {metric.name} says nothing there", **known)
    stuck = [f for f in runs if is_constant(f, metric.key, SATURATION * whole if is_accuracy else math.inf)]
    if stuck:
        whom = _whose(label, stuck, runs)
        why = f"the same {metric.name} ({metric.show(stuck[0].quality)}) at every evaluation"
        return Information(CONSTANT, f"{whom} at {why}: nothing was learned that it could tell", **known)
    if is_accuracy and mean >= SATURATION:
        why = f"{metric.name} of {label} is saturated ({metric.show(mean * whole)}): it could tell no gain"
        return Information(SATURATED, why, **known)
    return Information(**known)


def step_of(groups: Sequence[Group], metric: ComparedMetric) -> float:
    """The least amount by which the metric of two runs can differ, in the shown unit: an answer of the test
    set. 0 where its size is not known, and where the figures are no shares of it (of the tokens of its
    texts, a mean over classes).
    """
    runs = [f for group in groups for f in group.counted if f.quality is not None]
    images = _common([f.test_images for f in runs])
    if not metric.is_share or not images:
        return 0.0
    answers = [f.quality * metric.factor / 100 * images for f in runs if f.quality is not None]
    is_counted = all(abs(number - round(number)) < OFF_COUNT for number in answers)
    return 100 / images if is_counted else 0.0


def test_set(groups: Sequence[Group], metric: ComparedMetric) -> str:
    """The size of the test set, and what it leaves open of an accuracy at the groups' means; or nothing."""
    if not metric.is_share:
        return ""
    found = [(g.label, information(g.label, g.counted, metric)) for g in groups if g.counted]
    known = [(label, one) for label, one in found if one.images is not None and one.error is not None]
    if not known:
        if any(one.images is not None for _, one in found):
            return ""
        return "The size of the test set is not recorded." if any(g.means["quality"] for g in groups) else ""
    sizes = listed(f"{images:,}" for images in dict.fromkeys(one.images for _, one in known))
    errors = [one.error * 100 for _, one in known if one.error is not None]
    span = " to ".join(dict.fromkeys(f"{end:.2g}" for end in (min(errors), max(errors))))
    return f"Accuracies are of {sizes} test images: the binomial standard error of one is {span} points."


def chance_of(figures: RunFigures, key: str) -> float:
    """The accuracy of guessing; 0 where the classes are not known, and for what is no classification."""
    if not figures.classes or not says_accuracy(key):
        return 0.0
    top = re.search(r"top[_-]?(\d{1,6})", key.lower())
    return min(1.0, (int(top[1]) if top else 1) / figures.classes)


def chance_level(figures: RunFigures, key: str) -> float:
    """The highest accuracy that is taken for guessing: three standard errors of the test set above it; that
    of guessing itself where the size of the test set is not known, -1 where the classes are not.
    """
    p = chance_of(figures, key)
    if not 0 < p < 1:
        return -1.0
    above = ERRORS_ABOVE_CHANCE * math.sqrt(p * (1 - p) / figures.test_images) if figures.test_images else 0.0
    return p + above


def is_constant(figures: RunFigures, key: str = metrics.EVAL_ACCURACY, below: float = SATURATION) -> bool:
    """Whether all evaluations of a run, three at least, gave one and the same value, one below `below`."""
    values = figures.run.values(key)
    return len(values) >= FEWEST_EVALUATIONS and bool((values == values[0]).all()) and bool(values[0] < below)


def _common(values: Sequence[int | None]) -> int | None:
    """The value that all have; of several the least, which claims least; None where one is not known."""
    known = [v for v in values if v is not None]
    return min(known) if known and len(known) == len(values) else None


def _whose(label: str, some: Sequence[RunFigures], runs: Sequence[RunFigures]) -> str:
    if len(some) == len(runs):
        return f"{label} is" if len(runs) == 1 else f"all {len(runs)} runs of {label} are"
    seeds = listed(dict.fromkeys(f"seed {f.seed}" for f in some[:3]))
    return f"{len(some)} of {len(runs)} runs of {label} ({seeds}) {'is' if len(some) == 1 else 'are'}"
