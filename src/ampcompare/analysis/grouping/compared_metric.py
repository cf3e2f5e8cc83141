"""The compared quality, by default the evaluation accuracy, and the units of speed and memory."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ampcompare import metrics
from ampcompare.analysis.grouping.logged_keys import finite_values, is_logged, not_logged
from ampcompare.analysis.grouping.unevaluated_values import negative_placeholder
from ampcompare.config.task_spec import SAMPLE_COUNTS
from ampcompare.errors import UserError
from ampcompare.runs import RunRecord
from ampcompare.runs.nested import lookup
from ampcompare.runtime.formatting import (
    capital,
    in_percent,
    number,
)

DEFAULT_METRIC = metrics.EVAL_ACCURACY
ACCURACY_MARGIN = 0.5  # percentage points
MAXIMIZE, MINIMIZE = "maximize", "minimize"
GOALS = {metrics.HIGHER: MAXIMIZE, metrics.LOWER: MINIMIZE}
PERCENT_WORDS = frozenset({"percent", "percentage", "pct"})
# parts of a name; "accuracy" counts inside a part, too
ACCURACY_WORDS = frozenset({"acc", "acc1", "acc5", "top1", "top5"})
GOAL_WORDS = {"min": MINIMIZE, "max": MAXIMIZE, MINIMIZE: MINIMIZE, MAXIMIZE: MAXIMIZE}
GOAL_SUFFIXES = {"": "", MINIMIZE: ":min", MAXIMIZE: ":max"}


class Unit(Enum):
    """The unit in which values of a metric are logged."""

    FRACTION = "fraction"  # logged as 0..1, shown in percent
    PERCENT = "percent"  # logged as 0..100, shown as it is
    PLAIN = "plain"


UNIT_WORDS = {unit.value: unit for unit in Unit}


@dataclass
class ComparedMetric:
    """A logged metric, in the unit in which it is shown: fractions are shown in percent.

    Attributes:
        key: The logged key.
        margin: The largest difference, in the shown unit, that counts as the same. None: equivalence is not
            tested.
        scale: How the values are logged.
        goal: `maximize` or `minimize`; "" if it is unknown, then higher counts as better.
        display_name: The name that runs give to a metric that is not ours.
        target: The value, as shown, up to which training is timed.
        resolution: The smallest difference between two runs, in the shown unit. It is a lower bound of the
            standard deviation.
        is_best: Whether a run's best value counts instead of its last.
        counts_samples: Whether a value is a fraction of the samples, so that one sample is the smallest
            difference between two runs.
        largest: The size of the scale, in the shown unit: 100 points, or 1 for other values of 0 to 1.
            Infinite if it is not known.
        name: The name in texts.
        noun: The name beside speed and memory.
        title: The name at the beginning of a sentence, and above a chart.
        is_titled: Whether the name begins with a capital letter there. A logged key does not.
        axis: The name on an axis.
        noun_title: The noun at the beginning of a sentence.
        lower_is_better: Whether lower values are better.
        better: The direction in which values are better, `higher` or `lower`.
        worse: The other direction.
        is_percentage: Whether it is shown in percent. Differences are then in percentage points.
        is_accuracy: Whether it is a percentage of which more is better.
        factor: Factor from logged to shown values.
        unit: Unit of differences.
        tolerance: The margin with its unit, "" without a margin.
        zone: The ends of the zone in which differences count as the same; empty without a margin.
    """

    key: str = DEFAULT_METRIC
    margin: float | None = ACCURACY_MARGIN
    scale: Unit = Unit.FRACTION
    goal: str = MAXIMIZE
    display_name: str = ""
    target: float | None = None
    resolution: float = 0.0
    is_best: bool = False
    counts_samples: bool = False
    largest: float = math.inf

    def __post_init__(self) -> None:
        listed = metrics.find(self.key)
        name = listed.label if listed else self.display_name or self.key
        best = "best " if self.is_best else ""

        self.lower_is_better = self.goal == MINIMIZE
        self.better, self.worse = ("lower", "higher") if self.lower_is_better else ("higher", "lower")
        self.is_percentage = self.scale is not Unit.PLAIN
        self.is_accuracy = self.is_percentage and not self.lower_is_better

        self.name = f"{best}{name}"
        # Another percentage may be an F1 score, so only the default metric is called accuracy.
        self.noun = f"{best}accuracy" if self.key == DEFAULT_METRIC else self.name
        self.is_titled = bool(best or listed)
        self.title = capital(self.name) if self.is_titled else self.name
        self.noun_title = capital(self.noun) if self.is_titled else self.noun
        self.axis = f"{self.name}, %" if self.is_percentage else self.name

        self.factor = 100.0 if self.scale is Unit.FRACTION else 1.0
        own_unit = listed.unit if listed and listed.unit != metrics.FRACTION else ""
        self.unit = "points" if self.is_percentage else own_unit
        self.tolerance = "" if self.margin is None else self.with_unit(f"{self.margin:g}")
        self.zone = () if self.margin is None else (-self.margin, self.margin)

    def with_unit(self, difference: str) -> str:
        """Return a difference with its unit: `0.5 points`, `1 point`, `0.1`."""
        unit = "point" if self.unit == "points" and difference == "1" else self.unit
        return f"{difference} {unit}".rstrip()

    def show_value(self, shown: float) -> str:
        """Return a value, in the shown unit, as text."""
        return in_percent(shown) if self.is_percentage else number(shown)

    def describe_wide_margin(self, margin: float) -> str:
        """Return that a margin covers every value of the metric, and a smaller one; "" if it does not."""
        if margin < self.largest:
            return ""
        scale = self.with_unit(f"0 to {self.largest:g}")
        example = f"--margin {self.largest / 100:g}"
        return f"the values of {self.key} lie within {scale}; give a smaller margin, such as {example}"

    def as_shown(self, value: float) -> float:
        """Convert a value from the user to the shown unit. A fraction may be given as 0.93 or as 93."""
        return value * self.factor if abs(value) <= 1 else value


IMAGES, SAMPLES, MIB = "images/s", "samples/s", "MiB"


@dataclass(frozen=True)
class Quantities:
    """The units of throughput and memory, "" if unknown.

    Attributes:
        speed: Unit of throughput.
        memory: Unit of memory.
        step: What counts the rows.
        time: Unit in which the inverse of a throughput is shown, where the runs log a time: `s (epoch_time)`.
            "" where the throughput itself is shown.
        times_per_second: Number of these units in a second: 1000 for milliseconds.
    """

    speed: str = IMAGES
    memory: str = MIB
    step: str = "optimizer step"
    time: str = ""
    times_per_second: float = 1.0

    @property
    def item(self) -> str:
        """One unit of what throughput counts: `image`, `sample`, `step`."""
        noun, per, _ = self.speed.rpartition("/")
        return noun.removesuffix("s") if per and noun else "item"

    @property
    def shown_speed(self) -> str:
        """The unit of `show_speed`."""
        return self.time or self.speed

    def show_speed(self, throughput: float) -> str:
        """Return a throughput as text, without its unit; as a time, where the runs log a time."""
        if self.time and throughput > 0:
            return number(self.times_per_second / throughput)
        return number(throughput)

    def show_memory(self, value: float) -> str:
        """Return a peak of memory as text, without its unit."""
        return f"{value:,.0f}" if self.memory == MIB else number(value)


OWN = Quantities()


def own_goal(key: str) -> str:
    """Return `maximize` or `minimize` as we declare it for our own metric; "" for any other key."""
    declared = metrics.find(key)
    return GOALS.get(declared.better, "") if declared else ""


def parse_metric(text: str, runs: Sequence[RunRecord]) -> tuple[str, str, Unit | None]:
    """Return key, goal and unit of `KEY[:min|:max][:percent|:fraction|:plain]`.

    A key that a run has as it stands is that key, whatever it ends with.

    Returns:
        The key; the goal, "" if it is not given; the unit, None if it is not given.

    Raises:
        UserError: The values have no such unit, or may have another.
    """
    key = text
    goal = ""
    unit = None
    while not is_logged(key, runs):
        head, colon, word = key.rpartition(":")
        if colon and word in GOAL_WORDS:
            goal = GOAL_WORDS[word]
        elif colon and word in UNIT_WORDS:
            unit = UNIT_WORDS[word]
        else:
            break
        key = head
    _check_named_unit(f"{key}{GOAL_SUFFIXES[goal]}", key, unit, runs)
    return key, goal, unit


def _check_named_unit(text: str, key: str, unit: Unit | None, runs: Sequence[RunRecord]) -> None:
    """Refuse a unit of percentages for a loss, and percentages that may be fractions.

    Args:
        text: The metric as the user names it, without a unit.
        unit: The unit that the user names, None without one.

    Raises:
        UserError: The values have no such unit, or may have another.
    """
    if unit not in (Unit.FRACTION, Unit.PERCENT):
        return
    if "loss" in metrics.split_words(key.rpartition("/")[2]):
        raise UserError(f"--metric {text}:{unit.value}: a loss is no percentage; leave :{unit.value} out")
    values = finite_values(key, runs)
    if unit is Unit.FRACTION or declared_unit(key, runs) or not values or max(values) > 1:
        return
    raise UserError(
        f"--metric {text}:percent: all values are at most 1 ({min(values):g} to {max(values):g}), so they "
        f"may be fractions; if 1 means 100%: --metric {text}:fraction; if 1 means 1%: --metric {text}:plain, "
        "which shows the values as they are"
    )


def declared_unit(key: str, runs: Sequence[RunRecord]) -> Unit | None:
    """Return the unit that the format of the runs declares for a key; None if it declares none."""
    return next((UNIT_WORDS[unit] for run in runs if (unit := run.units.get(key)) in UNIT_WORDS), None)


def choose_metric(
    key: str,
    margin: float | None,
    runs: Sequence[RunRecord],
    *,
    unit: Unit | None = None,
    goal: str = "",
    is_asked: bool = True,
) -> ComparedMetric:
    """Return the compared metric.

    Args:
        key: The logged key.
        margin: None takes that of accuracies, if it is one.
        runs: The runs whose names and values tell what is not given.
        unit: How the values are logged. None infers it from name and values.
        goal: `maximize` or `minimize`. "" takes that of our own metric.
        is_asked: Whether the user named the key.

    Raises:
        UserError: No run has a metric that the user named, or its values do not fit the unit, or the margin
            is not above 0 or covers the whole scale.
    """
    if margin is not None and not 0 < margin < math.inf:
        raise UserError(f"--margin {margin:g}: expected a number above 0, in the unit of the metric as shown")
    if is_asked and key != DEFAULT_METRIC and not is_logged(key, runs):
        raise _unknown_metric(key, runs)
    if unit is None:
        unit = declared_unit(key, runs)
    values = finite_values(key, runs)
    if unit in (Unit.FRACTION, Unit.PERCENT):
        placeholder = negative_placeholder(values)
        values = [value for value in values if value != placeholder]
        low = min(values, default=0.0)
        high = max(values, default=0.0)
        if low < 0 or high > (1.0 if unit is Unit.FRACTION else 100.0):
            raise UserError(
                f"--metric {key}:{unit.value}: it is logged as {low:g} to {high:g}; leave :{unit.value} out"
            )
    scale = unit or unit_of(key, values)
    default = None if scale is Unit.PLAIN else ACCURACY_MARGIN
    largest = 100.0
    if scale is Unit.PLAIN:
        largest = 1.0 if values and min(values) >= 0 and max(values) <= 1 else math.inf
    metric = ComparedMetric(
        key,
        default if margin is None else margin,
        scale,
        goal or own_goal(key),
        counts_samples=math.isfinite(largest) and _counts_samples(key, runs),
        largest=largest,
    )
    if margin is not None and (reason := metric.describe_wide_margin(margin)):
        raise UserError(f"--margin {margin:g}: {reason}")
    return metric


def _counts_samples(key: str, runs: Sequence[RunRecord]) -> bool:
    """Return whether a metric is a fraction of the samples: as the runs record it, else by its key.

    By its key it is one if the last part is `accuracy` or `top5_accuracy`: `eval/accuracy`, not `val_acc`.
    """
    path = f"{metrics.TASK}.metrics.{key}.counts_samples"
    recorded = [lookup(run.environment, path) for run in runs]
    known = [value for value in recorded if isinstance(value, bool)]
    if known:
        return all(known)
    return key.rpartition("/")[2] in SAMPLE_COUNTS


def _unknown_metric(text: str, runs: Sequence[RunRecord]) -> UserError:
    """Return the error for a metric that no run logged as a number."""
    head = text
    while ":" in head and not is_logged(head, runs):
        head = head.rpartition(":")[0]
    if head == text or not is_logged(head, runs):
        return not_logged("--metric", text, runs)
    suffixes = ("min", "max", *UNIT_WORDS)
    unknown = next(word for word in text.removeprefix(f"{head}:").split(":") if word not in suffixes)
    return UserError(
        f"--metric {text!r}: expected one of {', '.join(suffixes)} after the key, not {unknown!r}"
    )


def unit_of(key: str, values: Sequence[float]) -> Unit:
    """Return how a metric is logged, by its name and all its values.

    A name with "percent" means percent. The name of an accuracy means a fraction if all values lie in 0..1,
    and percent if they lie in 0..100. Everything else is shown as it is. Without values the name alone
    decides.
    """
    says_percent = any(part in PERCENT_WORDS for part in metrics.split_words(key))
    if not says_percent and not is_accuracy_name(key):
        return Unit.PLAIN
    low = min(values, default=0.0)
    high = max(values, default=1.0)
    if low < 0 or high > 100:
        return Unit.PLAIN
    return Unit.FRACTION if high <= 1 and not says_percent else Unit.PERCENT


def is_accuracy_name(key: str) -> bool:
    """Return whether a name is that of an accuracy: `eval/accuracy`, `val_acc`, `valAcc`, `top1`."""
    has_word = any("accuracy" in part or part in ACCURACY_WORDS for part in metrics.split_words(key))
    return has_word and "loss" not in key.lower()
