"""The quality figure that a comparison is about: eval accuracy unless the reader names another metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ampcompare import metrics
from ampcompare.errors import UserError, did_you_mean
from ampcompare.records import RunRecord
from ampcompare.report.words import number, percent

DEFAULT_METRIC = metrics.EVAL_ACCURACY
ACCURACY_MARGIN = 0.5  # percentage points; what differs less is the same for most uses
FALLING = ("loss", "error", "perplexity", "seconds", "time", "joules", "mib")
MAX_NAMES = 12


@dataclass(frozen=True)
class ComparedMetric:
    """A logged metric, in the unit in which it is shown: accuracies are fractions and shown in percent.

    `margin` is the largest difference, in that unit, that still counts as the same; None: it is not tested.
    """

    key: str = DEFAULT_METRIC
    margin: float | None = ACCURACY_MARGIN

    @property
    def name(self) -> str:
        """The metric in words: `eval accuracy`."""
        if listed := metrics.find(self.key):
            return listed.words
        return self.key.replace("/", " ").replace("_", " ")

    @property
    def is_fraction(self) -> bool:
        """Whether it is logged as a fraction and shown in percent."""
        return "accuracy" in self.key.lower()

    @property
    def factor(self) -> float:
        """From the logged unit to the shown one."""
        return 100.0 if self.is_fraction else 1.0

    @property
    def unit(self) -> str:
        """The unit of a difference."""
        if self.is_fraction:
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
        return f"{self.name}, %" if self.is_fraction else self.name

    @property
    def tolerance(self) -> str:
        """The margin with its unit: `0.5 points`; nothing where there is none."""
        return "" if self.margin is None else f"{self.margin:g} {self.unit}".rstrip()

    def show(self, value: float | None) -> str:
        """A value as it was logged, as a reader wants it: `93.62 %`."""
        return percent(value) if self.is_fraction else number(value)

    @property
    def falls(self) -> bool:
        """Whether lower is better; a metric that we do not log is judged by its name."""
        listed = metrics.find(self.key)
        if listed and listed.better:
            return listed.better == metrics.LOWER
        return any(word in self.key.lower() for word in FALLING)


def choose_metric(key: str, margin: float | None, runs: Sequence[RunRecord]) -> ComparedMetric:
    """The metric as it was asked for. Raises UserError where no run has one that is not the default."""
    if margin is not None and not 0 < margin < float("inf"):
        raise UserError(f"--margin {margin:g}: expected a number above 0, in the unit of the metric as shown")
    names = dict.fromkeys(str(name) for run in runs for name in run.history.columns)
    logged = [name for name in names if not name.startswith("_")]
    summarised = any(run.summary_number(key) is not None for run in runs)
    if key != DEFAULT_METRIC and key not in logged and not summarised:
        near = did_you_mean(key, logged, 0.5)
        known = ", ".join(sorted(logged)[:MAX_NAMES]) or "nothing"
        raise UserError(f"--metric {key!r}: no run has it; {near and near + ' '}logged: {known}")
    if margin is None and ComparedMetric(key).is_fraction:
        margin = ACCURACY_MARGIN
    return ComparedMetric(key, margin)
