"""The quality figure that a comparison is about: eval accuracy unless the reader names another metric."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from ampcompare import metrics
from ampcompare.errors import UserError, did_you_mean
from ampcompare.records import RunRecord
from ampcompare.report.words import amount, in_percent, number, percent

DEFAULT_METRIC = metrics.EVAL_ACCURACY
ACCURACY_MARGIN = 0.5  # percentage points; what differs less is the same for most uses
FALLING = ("loss", "error", "perplexity", "seconds", "time", "joules", "mib")
ACCURACY_WORDS = frozenset({"acc", "acc1", "acc5", "top1", "top5"})  # parts of a name; "accuracy" in any part
PERCENT_WORDS = frozenset({"percent", "percentage", "pct"})
MAX_NAMES = 12


class Unit(Enum):
    """How a metric's values are to be read."""

    FRACTION = "fraction"  # logged as 0..1, shown in percent
    PERCENT = "percent"  # logged as 0..100, shown as it is
    PLAIN = "plain"


@dataclass(frozen=True)
class ComparedMetric:
    """A logged metric, in the unit in which it is shown: what is logged as a fraction is shown in percent.

    `margin` is the largest difference, in the shown unit, that still counts as the same; None: it is not
    tested. `read_as` says how the values are logged; None leaves it to the name.
    """

    key: str = DEFAULT_METRIC
    margin: float | None = ACCURACY_MARGIN
    read_as: Unit | None = None

    @property
    def name(self) -> str:
        """The metric in words: `eval accuracy`."""
        if listed := metrics.find(self.key):
            return listed.words
        return self.key.replace("/", " ").replace("_", " ")

    @property
    def scale(self) -> Unit:
        """How the values are logged."""
        return self.read_as or unit_of(self.key, ())

    @property
    def is_fraction(self) -> bool:
        """Whether it is logged as a fraction and shown in percent."""
        return self.scale is Unit.FRACTION

    @property
    def is_share(self) -> bool:
        """Whether it is shown in percent, however it is logged: differences are in percentage points."""
        return self.scale is not Unit.PLAIN

    @property
    def factor(self) -> float:
        """From the logged unit to the shown one."""
        return 100.0 if self.is_fraction else 1.0

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the largest value that there can be, in the logged unit."""
        if not self.is_share:
            return -math.inf, math.inf
        return 0.0, 1.0 if self.is_fraction else 100.0

    @property
    def unit(self) -> str:
        """The unit of a difference."""
        if self.is_share:
            return "points"
        listed = metrics.find(self.key)
        return listed.unit if listed and listed.unit != metrics.SHARE else ""

    @property
    def difference(self) -> str:
        """A difference at the head of a column: `difference, points`."""
        return f"difference, {self.unit}" if self.unit else "difference"

    @property
    def axis(self) -> str:
        """The metric on an axis: `eval accuracy, %`."""
        return f"{self.name}, %" if self.is_share else self.name

    @property
    def tolerance(self) -> str:
        """The margin with its unit: `0.5 points`; nothing where there is none."""
        return "" if self.margin is None else self.with_unit(f"{self.margin:g}")

    @property
    def show(self) -> Callable[[float | None], str]:
        """Shows a value that was logged as a reader wants it: `93.62 %`."""
        by_unit = {Unit.FRACTION: percent, Unit.PERCENT: in_percent, Unit.PLAIN: number}
        return by_unit[self.scale]

    def with_unit(self, difference: str) -> str:
        """A difference with its unit: `0.5 points`, `1 point`, `0.1`."""
        unit = "point" if self.unit == "points" and difference == "1" else self.unit
        return f"{difference} {unit}".rstrip()

    def size(self, difference: float) -> str:
        """How large a difference is, without its sign and unit: `0.37`, `0.0041`."""
        text = amount(difference, 2) if self.is_share else number(abs(difference))
        return text if float(text.replace(",", "")) else number(abs(difference), 2)

    def as_share(self, value: float) -> float | None:
        """A logged value as a fraction 0..1; None of a metric that is none."""
        return value * self.factor / 100 if self.is_share else None

    def as_shown(self, value: float) -> float:
        """A value as somebody gave it, in the shown unit: of a fraction both 0.93 and 93 may be said."""
        return value * 100 if self.is_fraction and abs(value) <= 1 else value

    @property
    def falls(self) -> bool:
        """Whether lower is better; a metric that we do not log is judged by its name."""
        listed = metrics.find(self.key)
        if listed and listed.better:
            return listed.better == metrics.LOWER
        return any(word in self.key.lower() for word in FALLING)


def choose_metric(
    key: str, margin: float | None, runs: Sequence[RunRecord], planned: float | None = None
) -> ComparedMetric:
    """The metric as it was asked for; its margin is the one given, else the planned, else that of accuracies.

    Raises UserError where no run has the metric and it is not the default.
    """
    if margin is not None and not 0 < margin < float("inf"):
        raise UserError(f"--margin {margin:g}: expected a number above 0, in the unit of the metric as shown")
    names = dict.fromkeys(str(name) for run in runs for name in run.history.columns)
    logged = [name for name in names if not name.startswith("_")]
    summarised = any(run.summary_number(key) is not None for run in runs)
    if key != DEFAULT_METRIC and key not in logged and not summarised:
        near = did_you_mean(key, logged, 0.5)
        known = ", ".join(sorted(logged)[:MAX_NAMES]) or "nothing"
        raise UserError(f"--metric {key!r}: no run has it; {near and near + ' '}logged: {known}")
    chosen = ComparedMetric(key, None, unit_of(key, _values(key, runs)))
    default = ACCURACY_MARGIN if chosen.is_share else None
    return replace(chosen, margin=next((m for m in (margin, planned, default) if m is not None), None))


def unit_of(key: str, values: Iterable[float]) -> Unit:
    """How a metric is logged, by its name and all its values.

    A name that says percent is believed, and one that says accuracy where its values lie in 0..1 (a fraction)
    or in 0..100 (percent). Beyond that it is neither, and shown as it is. Of no value the name alone decides.
    """
    says_percent = any(part in PERCENT_WORDS for part in _parts(key))
    known = list(values)
    low, high = min(known, default=0.0), max(known, default=1.0)
    if not (says_percent or says_accuracy(key)) or low < 0 or high > 100:
        return Unit.PLAIN
    return Unit.FRACTION if high <= 1 and not says_percent else Unit.PERCENT


def says_accuracy(key: str) -> bool:
    """Whether the name is that of an accuracy: `eval/accuracy`, `val_acc`, `top1`."""
    return any("accuracy" in part or part in ACCURACY_WORDS for part in _parts(key))


def _parts(key: str) -> list[str]:
    return re.split(r"[^a-z0-9]+", key.lower())


def _values(key: str, runs: Sequence[RunRecord]) -> Iterator[float]:
    for run in runs:
        told = run.summary_number(key)
        for value in (*run.values(key), *([] if told is None else [told])):
            if math.isfinite(value):
                yield float(value)
