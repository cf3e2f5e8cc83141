"""The quality that a comparison is about, eval accuracy unless another is named; units of the others."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from ampcompare import metrics
from ampcompare.errors import UserError, did_you_mean
from ampcompare.runs import RunRecord
from ampcompare.runs.nested import flatten
from ampcompare.runtime.formatting import amount, capital, in_percent, number

DEFAULT_METRIC = metrics.EVAL_ACCURACY
ACCURACY_MARGIN = 0.5  # percentage points; what differs less is the same for most uses
MAXIMIZE, MINIMIZE = "maximize", "minimize"
GOALS = {metrics.HIGHER: MAXIMIZE, metrics.LOWER: MINIMIZE}
PERCENT_WORDS = frozenset({"percent", "percentage", "pct"})
ACCURACY_WORDS = frozenset({"acc", "acc1", "acc5", "top1", "top5"})  # parts of a name; "accuracy" in any part
MAX_NAMES = 12
GOAL_WORDS = {"min": MINIMIZE, "max": MAXIMIZE, MINIMIZE: MINIMIZE, MAXIMIZE: MAXIMIZE}


class Unit(Enum):
    FRACTION = "fraction"  # logged as 0..1, shown in percent
    PERCENT = "percent"  # logged as 0..100, shown as it is
    PLAIN = "plain"


UNIT_WORDS = {unit.value: unit for unit in Unit}


@dataclass
class ComparedMetric:
    """A logged metric, in the unit in which it is shown: what is logged as a fraction is shown in percent.

    `margin` is the largest difference, in the shown unit, that still counts as the same; None: it is not
    tested. `scale` says how the values are logged. `goal` is maximize or minimize, empty where nobody knows:
    more is taken as better. `words` are what runs of a metric that is not ours call it, `target` is the
    value, as shown, up to which training is timed, `is_best` says that a run's best value counts instead of
    its last, `floor` the least that its spread is taken for: what two
    runs cannot differ in is no certainty.
    """

    key: str = DEFAULT_METRIC
    margin: float | None = ACCURACY_MARGIN
    scale: Unit = Unit.FRACTION
    goal: str = MAXIMIZE
    display_name: str = ""
    target: float | None = None
    resolution: float = 0.0
    is_best: bool = False

    def __post_init__(self) -> None:
        listed = metrics.find(self.key)
        name = listed.label if listed else self.display_name or self.key
        best = "best " if self.is_best else ""
        self.name = f"{best}{name}"
        self.lower_is_better = self.goal == MINIMIZE
        self.is_percentage = self.scale is not Unit.PLAIN  # in percent; differences are in percentage points
        self.is_accuracy = self.is_percentage and not self.lower_is_better
        # What it is, beside speed and memory. Another share may be an F1 score, so it keeps its name.
        self.noun = f"{best}accuracy" if self.key == DEFAULT_METRIC else self.name
        # Above a chart and at the beginning of a sentence: a logged key stays as it is.
        self.title = capital(self.name) if best or listed else self.name
        self.axis = f"{self.name}, %" if self.is_percentage else self.name
        self.factor = 100.0 if self.scale is Unit.FRACTION else 1.0  # from what is logged to what is shown
        own = listed.unit if listed and listed.unit != metrics.FRACTION else ""
        self.unit = "points" if self.is_percentage else own  # of differences
        self.tolerance = "" if self.margin is None else self.with_unit(f"{self.margin:g}")

    def with_unit(self, difference: str) -> str:
        """A difference with its unit: `0.5 points`, `1 point`, `0.1`."""
        unit = "point" if self.unit == "points" and difference == "1" else self.unit
        return f"{difference} {unit}".rstrip()

    def show_value(self, shown: float) -> str:
        return in_percent(shown) if self.is_percentage else number(shown)

    def size(self, difference: float) -> str:
        """How large a difference is, without its sign and unit: `0.37`, `0.0041`."""
        text = amount(difference, 2) if self.is_percentage else number(abs(difference))
        return text if float(text.replace(",", "")) else number(abs(difference), 2)

    def as_shown(self, value: float) -> float:
        """A value as somebody gave it, in the shown unit: of a fraction both 0.93 and 93 may be said."""
        return value * self.factor if abs(value) <= 1 else value


IMAGES, SAMPLES, MIB = "images/s", "samples/s", "MiB"


@dataclass(frozen=True)
class Quantities:
    """What throughput and memory are counted in, empty where nobody said it; `step` is what rows are counted
    by.
    """

    speed: str = IMAGES
    memory: str = MIB
    step: str = "optimizer step"

    @property
    def item(self) -> str:
        """What is counted, one of it: `image`, `sample`, `step`."""
        noun, per, _ = self.speed.rpartition("/")
        return noun.removesuffix("s") if per and noun else "item"

    def show_memory(self, value: float) -> str:
        """A peak in a cell, without its unit."""
        return f"{value:,.0f}" if self.memory == MIB else number(value)


OWN = Quantities()


def infer_goal(key: str) -> str | None:
    """`maximize` or `minimize`, by what we declared or by the name; None where neither tells."""
    listed = metrics.find(key)
    return GOALS.get((listed and listed.better) or metrics.guess_direction(key))


def parse_metric(said: str, runs: Sequence[RunRecord]) -> tuple[str, str, Unit | None]:
    """Key, goal and unit of `KEY[:min|:max][:percent|:fraction|:plain]`; what is not said is empty, and None.

    A key that a run has as it stands is that key, whatever it ends with.
    """
    key, goal, unit = said, "", None
    while not is_logged(key, runs):
        head, colon, word = key.rpartition(":")
        if not colon or word not in {*GOAL_WORDS, *UNIT_WORDS}:
            break
        key, goal, unit = head, GOAL_WORDS.get(word, goal), UNIT_WORDS.get(word, unit)
    return key, goal, unit


def choose_metric(
    key: str,
    margin: float | None,
    runs: Sequence[RunRecord],
    *,
    unit: Unit | None = None,
    goal: str = "",
    is_asked: bool = True,
) -> ComparedMetric:
    """The metric as it was asked for; its margin is the one given, else that of accuracies.

    `unit` and `goal` are those given, else the name and the values decide. Raises UserError where no run has
    the metric although it `is_asked` for and not the default, and for a unit that its values cannot have.
    """
    if margin is not None and not 0 < margin < math.inf:
        raise UserError(f"--margin {margin:g}: expected a number above 0, in the unit of the metric as shown")
    if is_asked and key != DEFAULT_METRIC and not is_logged(key, runs):
        names = {str(name) for run in runs for name in (*run.logged, *dict(flatten(run.summary)))}
        logged = sorted(name for name in names if not name.startswith("_"))
        near, known = nearest_key(key, logged), ", ".join(logged[:MAX_NAMES]) or "nothing"
        if (head := _logged_head(key, runs)) != key:
            words = ("min", "max", *UNIT_WORDS)
            given = key.removeprefix(f"{head}:").split(":")
            odd, known = next(word for word in given if word not in words), ", ".join(words)
            raise UserError(f"--metric {key!r}: expected one of {known} after the key, not {odd!r}")
        raise UserError(f"--metric {key!r}: no run has it; {near and near + ' '}logged: {known}")
    every = (value for run in runs for value in (*run.values(key), run.summary_number(key)))
    values = [float(value) for value in every if value is not None and math.isfinite(value)]
    unit = unit or next((UNIT_WORDS[run.units[key]] for run in runs if key in run.units), None)
    placeholder = placeholder_of(unit, values)
    values = [value for value in values if value != placeholder]
    if unit in (Unit.FRACTION, Unit.PERCENT):
        low, high = min(values, default=0.0), max(values, default=0.0)
        why = "a loss is no share" if "loss" in metrics.split_words(key.rpartition("/")[2]) else ""
        if low < 0 or high > (1.0 if unit is Unit.FRACTION else 100.0):
            why = why or f"it is logged as {low:g} to {high:g}"
        if why:
            raise UserError(f"--metric {key}:{unit.value}: {why}; leave :{unit.value} out")
    scale = unit or unit_of(key, values)
    default = None if scale is Unit.PLAIN else ACCURACY_MARGIN
    direction = goal or infer_goal(key) or ""
    return ComparedMetric(key, default if margin is None else margin, scale, direction)


def _logged_head(text: str, runs: Sequence[RunRecord]) -> str:
    """Return the logged key that `KEY:WORD:WORD` begins with, the text itself where there is none."""
    head = text
    while ":" in head and not is_logged(head, runs):
        head = head.rpartition(":")[0]
    return head if is_logged(head, runs) else text


def placeholder_of(unit: Unit | None, values: Iterable[float]) -> float | None:
    """Return the value that stands for no evaluation among those of a percentage or fraction, None for none.

    It is the one negative value (-1) of a metric of which all other values can be percentages or fractions.
    """
    known = {*values}
    negative = {value for value in known if value < 0}
    is_percentage = unit in (Unit.FRACTION, Unit.PERCENT)
    return negative.pop() if is_percentage and len(negative) == 1 and max(known) >= 0 else None


def without_value(run: RunRecord, key: str, value: float) -> RunRecord:
    """Return the run without one value of a key, in its rows and its summary."""
    rows, values = run.logged_numbers(key)
    summary = {k: v for k, v in run.summary.items() if not (k == key and v == value)}
    kept = values != value
    logged = {k: column for k, column in run.logged.items() if k != key}
    logged |= {key: (rows[kept], values[kept])} if kept.any() else {}
    return replace(run, summary=summary, logged=logged)


def nearest_key(asked: str, keys: Sequence[str]) -> str:
    """`did you mean eval/accuracy?` for `acc`; nothing where no key is near."""
    inside = min((key for key in keys if asked.lower() in key.lower()), key=len, default="")
    return did_you_mean(asked, keys, 0.5) or (inside and f"did you mean {inside}?")


def is_logged(key: str, runs: Sequence[RunRecord]) -> bool:
    """Whether any of the runs has a number under a key, in its rows or its summary."""
    return any(len(run.values(key)) or run.summary_number(key) is not None for run in runs)


def unit_of(key: str, values: Iterable[float]) -> Unit:
    """How a metric is logged, by its name and all its values.

    A name that says percent is believed, and one that says accuracy where its values lie in 0..1 (a fraction)
    or in 0..100 (percent). Beyond that it is neither, and shown as it is. Of no value the name alone decides.
    """
    says_percent = any(part in PERCENT_WORDS for part in metrics.split_words(key))
    known = list(values)
    low, high = min(known, default=0.0), max(known, default=1.0)
    if not (says_percent or is_accuracy_name(key)) or low < 0 or high > 100:
        return Unit.PLAIN
    return Unit.FRACTION if high <= 1 and not says_percent else Unit.PERCENT


def is_accuracy_name(key: str) -> bool:
    """Whether the name is that of an accuracy: `eval/accuracy`, `val_acc`, `valAcc`, `top1`."""
    found = any("accuracy" in part or part in ACCURACY_WORDS for part in metrics.split_words(key))
    return found and "loss" not in key.lower()
