"""How far the runs of a group came: a quality after 10 epochs is not compared with one after 4."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ampcompare.analysis.grouping.groups import Group
from ampcompare.analysis.grouping.run_metrics import EPOCHS, STEPS
from ampcompare.analysis.grouping.run_table import RUN
from ampcompare.runs.nested import is_number
from ampcompare.runtime import formatting

TOLERANCE = 0.02  # runs whose lengths lie within this fraction came equally far
UNITS = {STEPS: "step", EPOCHS: "epoch"}


@dataclass(frozen=True)
class TrainingLength:
    """The last step or epoch of the runs of a group.

    Attributes:
        unit: What is counted, `step` or `epoch`.
        first: That of the run that came least far.
        last: That of the run that came furthest.
        planned: The number that was planned, where all runs record the same one; else NaN.
    """

    unit: str
    first: float
    last: float
    planned: float = math.nan

    @property
    def text(self) -> str:
        """`step 400 of 1,000`, `epoch 4`, `epochs 4 to 10`."""
        several = self.first != self.last
        span = " to ".join(
            formatting.count(end) for end in ((self.first, self.last) if several else (self.last,))
        )
        of = f" of {formatting.count(self.planned)}" if math.isfinite(self.planned) else ""
        return f"{self.unit}{'s' * several} {span}{of}"


def measure_progress(group: Group, column: str) -> TrainingLength | None:
    """Return how far the counted runs came, in steps or epochs; None where a run does not record it."""
    values = group.rows[column]
    if values.empty or values.isna().any():
        return None
    planned = {run.option("max_steps") for run in group.rows[RUN]} if column == STEPS else set()
    known = [float(value) for value in planned if is_number(value) and value > 0]
    of = known[0] if len(planned) == len(known) == 1 else math.nan
    return TrainingLength(UNITS[column], float(values.min()), float(values.max()), of)


def has_early_stopping(groups: Sequence[Group]) -> bool:
    """Return whether a run trained with early stopping, so that runs end where they are done."""
    return any(run.is_early_stopped for group in groups for run in group.rows[RUN])


def unequal_lengths(groups: Sequence[Group]) -> str:
    """Return how far each group came where they did not come equally far, "" where they did.

    Lengths are equal if steps or epochs agree within TOLERANCE over all runs, not known where a run records
    neither.
    """
    told = ""
    for column in (EPOCHS, STEPS):
        found = [measure_progress(group, column) for group in groups]
        known = [one for one in found if one is not None]
        if len(known) < len(groups):
            continue
        if min(one.first for one in known) >= (1 - TOLERANCE) * max(one.last for one in known):
            return ""
        parts = [f"{group.label} came to {one.text}" for group, one in zip(groups, known, strict=True)]
        told = " and ".join(parts)
    return told
