"""The quality figure that a comparison is about: eval accuracy unless the reader names another metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ampcompare.errors import UserError, did_you_mean
from ampcompare.records import RunRecord

DEFAULT_METRIC = "eval/accuracy"
ACCURACY_MARGIN = 0.5  # percentage points; what differs less is the same for most uses
FALLING = ("loss", "error", "perplexity", "seconds", "time", "joules", "mib")
MAX_NAMES = 12


@dataclass(frozen=True)
class Metric:
    """A logged metric, in the unit in which it is shown: accuracies are fractions and shown in percent.

    `margin` is the largest difference, in that unit, that still counts as the same; None: equivalence is not
    tested.
    """

    key: str = DEFAULT_METRIC
    margin: float | None = ACCURACY_MARGIN

    @property
    def name(self) -> str:
        """The metric in words: `eval accuracy`."""
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
        return "points" if self.is_fraction else ""

    @property
    def falls(self) -> bool:
        """Whether lower is better."""
        return any(word in self.key.lower() for word in FALLING)


def choose_metric(key: str, margin: float | None, runs: Sequence[RunRecord]) -> Metric:
    """The metric as it was asked for. Raises UserError where no run has one that is not the default."""
    if margin is not None and not 0 < margin < float("inf"):
        raise UserError(
            f"--margin {margin:g}: expected a number above 0, in the unit in which the metric is shown"
        )
    logged = dict.fromkeys(
        name for run in runs for name in run.history.columns if not str(name).startswith("_")
    )
    if (
        key != DEFAULT_METRIC
        and key not in logged
        and not any(run.summary_number(key) is not None for run in runs)
    ):
        near = did_you_mean(key, logged, 0.5)
        names = ", ".join(sorted(logged)[:MAX_NAMES]) or "nothing"
        raise UserError(f"--metric {key!r}: no run has it; {near and near + ' '}logged: {names}")
    default = Metric(key, None)
    if margin is None and default.is_fraction:
        margin = ACCURACY_MARGIN
    return Metric(key, margin)
